// SPDX-License-Identifier: Apache-2.0
// Data travelling around the ring of ranks, from rank r to rank r - 1: each piece is folded or copied on its way and
// handed on in the same pass over it, straight from slot to slot. Knows what a step does, not which collective it is.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tandem/comm/communicator.hpp"
#include "tandem/core/bytes.hpp"
#include "tandem/core/copy.hpp"
#include "tandem/core/stream.hpp"
#include "tandem/reduce/fold.hpp"
#include "tandem/reduce/functor.hpp"

namespace tandem::detail {

/// In place of a reduction in flows that only copy.
struct Copy {};

/// What is done with one range of elements that arrives from the next higher rank.
struct RingStep {
  Range range;
  bool folds;     // add the own input to what arrives (else it is only copied)
  bool finishes;  // the fold is complete here
  bool stores;    // the result is wanted in this rank's output
  bool forwards;  // the result goes on to the next lower rank
};

/// How many bytes go into a slot at a time: enough pieces that neighbours work at the same time, few enough that the
/// hand-over does not count. At least `least`, which takes several times as long to move as to hand over.
constexpr std::size_t ring_fragment_bytes(std::size_t chunk_bytes, std::size_t slot_bytes, std::size_t element_bytes,
                                          std::size_t least) noexcept {
  const std::size_t wanted =
      std::clamp(round_up(chunk_bytes / 4, line_pair_bytes), std::min(least, slot_bytes), slot_bytes);
  return std::max<std::size_t>(wanted / element_bytes, 1) * element_bytes;
}

/// One rank's part in a flow around the ring. The ranges are cut into rounds of a few fragments each, and a round's raw
/// part goes out only after the previous round's forwards: so at most two rounds of fragments are on a channel, fewer
/// than it has slots, and a cycle of ranks that all wait for room cannot form, however large the buffer.
template <class T, class E, class Op>
class RingFlow {
 public:
  /// `start` is sent raw, then the steps are taken in turn (step k's input is what step k - 1 of the next higher rank
  /// forwards). `input` and `output` point to element 0 of the whole buffer; output only for ranges that are stored.
  /// In place is allowed: an element of the input is read before its result can arrive.
  RingFlow(Protocol<T>& protocol, Operation& operation, const Op& op, const E* input, E* output, Range start,
           const std::vector<RingStep>& steps)
      : protocol_(protocol),
        operation_(operation),
        op_(op),
        input_(input),
        output_(output),
        start_(start),
        steps_(steps),
        lower_((protocol.rank() + protocol.size() - 1) % protocol.size()),
        higher_((protocol.rank() + 1) % protocol.size()),
        out_(protocol.endpoint().outgoing(protocol.endpoint_of(lower_), Channel::collective)),
        in_(protocol.endpoint().incoming(protocol.endpoint_of(higher_), Channel::collective)) {
    std::size_t longest = start.size();
    for (const RingStep& step : steps) longest = std::max(longest, step.range.size());
    fragment_ = ring_fragment_bytes(longest * sizeof(E), out_.slot_bytes(), sizeof(E), least_fragment) / sizeof(E);
    round_ = fragments_per_round * fragment_;
    rounds_ = divide_up(longest, round_);
    for (std::size_t k = 0; k < steps.size(); ++k) {
      if (steps[k].forwards) last_forward_ = k;
    }
    raw_at_ = cut(start_, 0).begin;
    enter_step();
  }

  /// Returns the bytes sent.
  std::uint64_t run() {
    Backoff backoff(protocol_.pauses());
    while (!finished()) {
      // Not a short-circuit: both directions get their turn.
      if (static_cast<int>(send_raw()) + static_cast<int>(take_step()) != 0) {
        backoff = Backoff(protocol_.pauses());
        continue;
      }
      const bool needs_room = moved_all() || may_send_raw() || (step_round_ < rounds_ && !in_.peek().empty());
      protocol_.await_channel(operation_, needs_room ? lower_ : higher_, backoff, [this] { return could_move(); });
    }
    protocol_.require_agreement(operation_);
    return sent_;
  }

 private:
  using Out = std::remove_reference_t<decltype(std::declval<T&>().outgoing(0, Channel::collective))>;
  static constexpr bool scales_inputs = PreMulScalar<Op>::yes;
  // A hand-over is a store to shared memory, or a call to the kernel and another to be woken: 64 KiB over 4 ranks that
  // share 2 cores take 510 us in fragments of 4 KiB and 277 us in those of 32 KiB.
  static constexpr std::size_t least_fragment = T::has_windows ? 4096 : 32768;
  static constexpr std::size_t fragments_per_round = 3;
  static_assert(2 * fragments_per_round < T::channel_capacity);

  Range cut(Range range, std::size_t round) const noexcept {
    return intersect(range, {range.begin + round * round_, range.begin + (round + 1) * round_});
  }
  bool moved_all() const noexcept { return raw_round_ >= rounds_ && step_round_ >= rounds_; }
  bool finished() const noexcept { return moved_all() && drained(out_); }
  /// Skips steps that are empty in their round; `at_` is then where the current step goes on.
  void enter_step() {
    while (step_round_ < rounds_) {
      for (; step_ < steps_.size(); ++step_) {
        const Range range = cut(steps_[step_].range, step_round_);
        if (!range.empty()) {
          at_ = range.begin;
          return;
        }
      }
      step_ = 0;
      ++step_round_;
    }
  }
  /// Is the raw part of this round due: not sent yet, and everything of earlier rounds handed on?
  bool may_send_raw() const noexcept {
    return raw_round_ < rounds_ &&
           (raw_round_ == 0 || step_round_ >= raw_round_ || (step_round_ + 1 == raw_round_ && step_ > last_forward_));
  }
  /// Forwards of a round follow its raw part: both ends count on that order.
  bool may_forward() const noexcept { return raw_round_ > step_round_; }
  bool could_move() {
    if (moved_all()) return drained(out_);
    if (may_send_raw() && (cut(start_, raw_round_).empty() || !out_.reserve().empty())) return true;
    if (step_round_ >= rounds_ || in_.peek().empty()) return false;
    return !steps_[step_].forwards || (may_forward() && !out_.reserve().empty());
  }

  bool send_raw() {
    if (!may_send_raw()) return false;
    const Range range = cut(start_, raw_round_);
    if (!range.empty()) {
      const auto slot = out_.reserve();
      if (slot.empty()) return false;
      const std::size_t count = std::min(fragment_, range.end - raw_at_);
      const E* const source = input_ + raw_at_;
      if constexpr (scales_inputs) {
        E* const destination = reinterpret_cast<E*>(slot.data());
        fold(op_, protocol_.size(), &source, 1, &destination, 1, count, FoldStart::raw, FoldEnd::partial);
        out_.commit(count * sizeof(E));
      } else {
        // In place, too: what is lent here changes only when the result of it arrives.
        hand_over(out_, slot, std::as_bytes(std::span(source, count)));
      }
      sent_ += count * sizeof(E);
      raw_at_ += count;
      if (raw_at_ < range.end) return true;
    }
    ++raw_round_;
    raw_at_ = cut(start_, raw_round_).begin;
    return true;
  }
  bool take_step() {
    if (step_round_ >= rounds_) return false;
    const RingStep& step = steps_[step_];
    const auto seen = in_.peek();
    if (seen.empty()) return false;
    protocol_.require_agreement(operation_);
    std::span<std::byte> slot{};
    if (step.forwards) {
      if (!may_forward()) return false;
      slot = out_.reserve();
      if (slot.empty()) return false;
    }
    const std::size_t due = cut(step.range, step_round_).end - at_;
    const std::size_t count = seen.size() / sizeof(E);
    if (count * sizeof(E) != seen.size() || count > due) {
      protocol_.fail(operation_, ErrorKind::mismatch, higher_,
                     std::to_string(seen.size()) + " bytes arrived from rank " + std::to_string(higher_) +
                         " where at most " + std::to_string(due * sizeof(E)) + " were due");
    }
    const E* const arrived = reinterpret_cast<const E*>(seen.data());
    const bool lends = step.forwards && step.stores && Lending<Out>;
    E* destinations[2];
    int destination_count = 0;
    if (step.stores) destinations[destination_count++] = output_ + at_;
    if (step.forwards && !lends) destinations[destination_count++] = reinterpret_cast<E*>(slot.data());
    if constexpr (!std::same_as<Op, Copy>) {
      if (step.folds) {
        const E* const sources[2] = {arrived, input_ + at_};
        fold(op_, protocol_.size(), sources, 2, destinations, destination_count, count, FoldStart::partial,
             step.finishes ? FoldEnd::finished : FoldEnd::partial);
        destination_count = 0;
      }
    }
    for (int k = 0; k < destination_count; ++k) copy_bytes(destinations[k], arrived, count * sizeof(E));
    in_.consume(seen.size());
    if (lends) {
      hand_over(out_, slot, std::as_bytes(std::span<const E>(output_ + at_, count)));
    } else if (step.forwards) {
      out_.commit(count * sizeof(E));
    }
    if (step.forwards) sent_ += count * sizeof(E);
    at_ += count;
    if (count == due) {
      ++step_;
      enter_step();
    }
    return true;
  }
  Protocol<T>& protocol_;
  Operation& operation_;
  const Op& op_;
  const E* input_;
  E* output_;
  Range start_;
  const std::vector<RingStep>& steps_;
  int lower_;
  int higher_;
  Out& out_;
  LoanScope<Out> loans_{&out_};
  std::remove_reference_t<decltype(std::declval<T&>().incoming(0, Channel::collective))>& in_;
  std::size_t fragment_ = 1;  // elements handed over at a time
  std::size_t round_ = 1;     // elements of each range in a round
  std::size_t rounds_ = 0;
  std::size_t last_forward_ = 0;
  std::size_t raw_round_ = 0;  // next round whose raw part is (or is being) sent
  std::size_t raw_at_ = 0;
  std::size_t step_round_ = 0;  // round and step that are being taken
  std::size_t step_ = 0;
  std::size_t at_ = 0;
  std::uint64_t sent_ = 0;
};

}  // namespace tandem::detail
