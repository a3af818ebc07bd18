// SPDX-License-Identifier: Apache-2.0
// Data going straight from every rank to every other: in one hop, in any partition. All channels are served at the same
// time, so no order of sends and receives can block. Knows ranges, not which collective it is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "tandem/collective/detail/per_rank.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/bytes.hpp"
#include "tandem/core/copy.hpp"
#include "tandem/core/stream.hpp"
#include "tandem/reduce/apply.hpp"

namespace tandem::detail {

/// The sending half: for every other rank a range of this rank's buffer that goes to it.
template <class T, class E>
class PairwiseSend {
 public:
  /// `data` points to element 0; `range_for(member)` says what goes to a member. With `may_change`, what was handed to
  /// a channel may be overwritten at once, else only when this is gone.
  template <class RangeFor>
  PairwiseSend(Protocol<T>& protocol, const E* data, RangeFor range_for, bool may_change)
      : protocol_(protocol), data_(data), left_(protocol.size()), may_change_(may_change) {
    for (int member = 0; member < protocol.size(); ++member) {
      left_[member] = member == protocol.rank() ? Range{} : range_for(member);
      if (!left_[member].empty()) ++open_;
    }
  }
  PairwiseSend(const PairwiseSend&) = delete;
  PairwiseSend& operator=(const PairwiseSend&) = delete;
  ~PairwiseSend() {
    for (int member = 0; member < protocol_.size(); ++member) {
      if (member != protocol_.rank()) end_loans(channel_to(member));
    }
  }
  bool finished() noexcept { return open_ == 0 && undrained() < 0; }
  /// What has not yet been handed to a member's channel.
  Range left_for(int member) noexcept { return left_[member]; }
  std::uint64_t sent() const noexcept { return sent_; }
  /// A member that still has to make room, for blame; -1 when none.
  int waiting_for() noexcept {
    for (int member = 0; member < protocol_.size(); ++member) {
      if (!left_[member].empty()) return member;
    }
    return undrained();
  }
  /// Every element below this has been handed to the channels of all that are to get it.
  std::size_t sent_below() noexcept {
    std::size_t below = SIZE_MAX;
    for (int member = 0; member < protocol_.size(); ++member) {
      if (!left_[member].empty()) below = std::min(below, left_[member].begin);
    }
    return below;
  }
  /// One slot to each member that has room. True when anything moved.
  bool advance() noexcept {
    bool moved = false;
    for (int step = 1; step < protocol_.size(); ++step) {
      const int member = (protocol_.rank() + step) % protocol_.size();  // not all to the same one first
      Range& left = left_[member];
      if (left.empty()) continue;
      auto& out = channel_to(member);
      const auto slot = out.reserve();
      if (slot.empty()) continue;
      const std::size_t count = std::min(std::max<std::size_t>(slot.size() / sizeof(E), 1), left.size());
      const auto bytes = std::as_bytes(std::span(data_ + left.begin, count));
      may_change_ ? copy_over(out, slot, bytes) : hand_over(out, slot, bytes);
      sent_ += bytes.size();
      left.begin += count;
      if (left.empty()) --open_;
      moved = true;
    }
    return moved;
  }
  bool could_advance() noexcept {
    for (int member = 0; member < protocol_.size(); ++member) {
      if (!left_[member].empty() && !channel_to(member).reserve().empty()) return true;
    }
    return false;
  }

 private:
  int undrained() noexcept {
    for (int member = 0; member < protocol_.size(); ++member) {
      if (member != protocol_.rank() && !drained(channel_to(member))) return member;
    }
    return -1;
  }
  auto& channel_to(int member) noexcept {
    return protocol_.endpoint().outgoing(protocol_.endpoint_of(member), Channel::collective);
  }

  Protocol<T>& protocol_;
  const E* data_;
  PerRank<Range> left_;
  bool may_change_;
  int open_ = 0;
  std::uint64_t sent_ = 0;
};

/// What has arrived from a member, in whole elements; at most `most` of them.
template <class T, class E>
std::span<const E> arrived_from(Protocol<T>& protocol, Operation& operation, int member, std::size_t most) {
  const auto seen = protocol.endpoint().incoming(protocol.endpoint_of(member), Channel::collective).peek();
  if (!seen.empty()) protocol.require_agreement(operation);
  if (seen.size() % sizeof(E) != 0) {
    protocol.fail(operation, ErrorKind::mismatch, member,
                  std::to_string(seen.size()) + " bytes arrived from rank " + std::to_string(member) +
                      ", which are no whole elements of " + std::to_string(sizeof(E)) + " bytes");
  }
  return {reinterpret_cast<const E*>(seen.data()), std::min(seen.size() / sizeof(E), most)};
}

/// Everybody sends, to each owner, what that one owns; this rank folds `owned` of all inputs in contract order straight
/// out of the slots into `output` (pointing to element owned.begin). `range_for(member)` is what a member owns.
/// When `in_place`, results are only stored below what has been sent of the own input.
template <class T, class E, class Op, class Table, class RangeFor>
std::uint64_t exchange_and_fold(Protocol<T>& protocol, Operation& operation, const Op& op, const Table& table,
                                const E* input, E* output, Range owned, RangeFor range_for, bool in_place) {
  PairwiseSend<T, E> sending(protocol, input, range_for, in_place);
  PerRank<const E*> sources(protocol.size());
  std::size_t at = owned.begin;
  int missing = -1;

  const auto arrived = [&]() -> std::size_t {
    missing = -1;
    std::size_t count = owned.end - at;
    if (in_place) count = std::min(count, std::max(sending.sent_below(), at) - at);
    for (int member = 0; member < protocol.size() && count > 0; ++member) {
      if (member == protocol.rank()) {
        sources[member] = input + at;
        continue;
      }
      const auto part = arrived_from<T, E>(protocol, operation, member, count);
      sources[member] = part.data();
      if (part.size() < count) missing = member;
      count = part.size();
    }
    return count;
  };
  const auto fold_some = [&]() -> bool {
    const std::size_t count = arrived();
    if (count == 0) return false;
    E* const destination = output + (at - owned.begin);
    fold_range(op, table, {at, at + count}, sources.data(), &destination, 1, at, at);
    for (int member = 0; member < protocol.size(); ++member) {
      if (member == protocol.rank()) continue;
      protocol.endpoint().incoming(protocol.endpoint_of(member), Channel::collective).consume(count * sizeof(E));
    }
    at += count;
    return true;
  };

  Backoff backoff(protocol.pauses());
  while (!sending.finished() || at < owned.end) {
    const bool moved = static_cast<int>(sending.advance()) + static_cast<int>(fold_some()) != 0;
    if (moved) {
      backoff = Backoff(protocol.pauses());
      continue;
    }
    const int blamed = at < owned.end && missing >= 0 ? missing : sending.waiting_for();
    protocol.await_channel(operation, blamed, backoff, [&] {
      if (at == owned.end && sending.finished()) return true;
      return sending.could_advance() || (at < owned.end && arrived() > 0);
    });
  }
  protocol.require_agreement(operation);
  return sending.sent();
}

/// Everybody sends ranges of its own buffer and receives ranges into `output` (pointing to element 0 of the whole).
/// `sends(member)` and `receives(member)` are ranges of the whole buffer. When `in_place`, `data` is `output` and the
/// two are the same range for each member, of which only what has been sent is overwritten. (That cannot block: the end
/// of a pair that has sent less can take all it was sent as far as that, which makes room for it.)
template <class T, class E, class Sends, class Receives>
std::uint64_t exchange_and_copy(Protocol<T>& protocol, Operation& operation, const E* data, E* output, Sends sends,
                                Receives receives, bool in_place = false) {
  PairwiseSend<T, E> sending(protocol, data, sends, in_place);
  PerRank<Range> left(protocol.size());
  int open = 0;
  for (int member = 0; member < protocol.size(); ++member) {
    left[member] = member == protocol.rank() ? Range{} : receives(member);
    if (!left[member].empty()) ++open;
  }
  // At most how many elements may be taken from a member now.
  const auto most = [&](int member) -> std::size_t {
    if (left[member].empty() || !in_place) return left[member].size();
    const Range unsent = sending.left_for(member);
    return unsent.empty() ? left[member].size() : unsent.begin - left[member].begin;
  };
  const auto receive_some = [&]() -> bool {
    bool moved = false;
    for (int member = 0; member < protocol.size(); ++member) {
      const std::size_t limit = most(member);
      if (limit == 0) continue;
      const auto part = arrived_from<T, E>(protocol, operation, member, limit);
      if (part.empty()) continue;
      copy_bytes(output + left[member].begin, part.data(), part.size_bytes());
      protocol.endpoint().incoming(protocol.endpoint_of(member), Channel::collective).consume(part.size_bytes());
      left[member].begin += part.size();
      if (left[member].empty()) --open;
      moved = true;
    }
    return moved;
  };
  const auto blamed = [&] {
    for (int member = 0; member < protocol.size(); ++member) {
      if (!left[member].empty()) return member;
    }
    return sending.waiting_for();
  };

  Backoff backoff(protocol.pauses());
  while (!sending.finished() || open > 0) {
    const bool moved = static_cast<int>(sending.advance()) + static_cast<int>(receive_some()) != 0;
    if (moved) {
      backoff = Backoff(protocol.pauses());
      continue;
    }
    protocol.await_channel(operation, blamed(), backoff, [&] {
      if (sending.could_advance() || (open == 0 && sending.finished())) return true;
      for (int member = 0; member < protocol.size(); ++member) {
        if (most(member) != 0 && !arrived_from<T, E>(protocol, operation, member, 1).empty()) return true;
      }
      return false;
    });
  }
  protocol.require_agreement(operation);
  return sending.sent();
}

}  // namespace tandem::detail
