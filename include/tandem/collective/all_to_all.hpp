// SPDX-License-Identifier: Apache-2.0
// Every rank gives each other rank a part of its buffer and gets a part from each.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "tandem/collective/detail/carry_out.hpp"
#include "tandem/collective/detail/checks.hpp"
#include "tandem/collective/detail/redistribution.hpp"
#include "tandem/collective/detail/runs.hpp"
#include "tandem/collective/path.hpp"
#include "tandem/collective/prediction.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/copy.hpp"

namespace tandem {

/// Part r of `output` = part rank() of rank r's `input`, where both are cut into size() parts of equal count: a
/// transposition. Both have the same count on all ranks, and are the same buffer (in place) or disjoint.
/// Bytes this rank moves, for D bytes of input: D / size() * (size() - 1), loaded up to 8 KiB and from readable
/// inputs, sent otherwise (always so in place). Throws Error: argument (nothing was announced), mismatch (on all ranks,
/// no data touched), dead_peer, timeout, poisoned.
template <ControlTransport T, Element E>
void all_to_all(Communicator<T>& comm, std::type_identity_t<std::span<const E>> input, std::span<E> output,
                const CallOptions& options = {}, CallSite site = CallSite::here()) {
  comm.protocol().require_usable(Verb::all_to_all, site);
  const int rank = comm.rank();
  const auto ranks = static_cast<std::size_t>(comm.size());
  if (input.size() % ranks != 0) {
    detail::refuse(Verb::all_to_all, rank,
                   "input has " + std::to_string(input.size()) + " elements, which " + std::to_string(ranks) +
                       " ranks do not divide; use all_to_all_v",
                   site);
  }
  detail::require_count(Verb::all_to_all, rank, "output", output.size(), input.size(), site);
  detail::require_in_place_or_disjoint<E>(Verb::all_to_all, rank, output, input, 0, site);
  const detail::Runs runs(comm.size(), input.size() / ranks);
  const auto part = [&](int member) { return runs[member]; };
  const Call call = detail::describe<E>(Verb::all_to_all, input.size(), 0, 0, -1, site);
  const std::uint64_t own = runs[rank].size() * sizeof(E);
  detail::redistribute(comm.protocol(), call, options, input, output.data(), input.size(),
                       input.data() == output.data(), predict::all_to_all(input.size_bytes(), output.size_bytes(), own),
                       part, part, [&](int) { return runs[rank].begin; });
}

namespace detail {

/// What a rank says of an all_to_all_v: beside its flags lie its counts, to and from each rank, and behind them its
/// input where that fits.
template <class T>
class PairCounts {
 public:
  PairCounts(Protocol<T>& protocol, const Runs& sent, const Runs& received)
      : protocol_(protocol), sent_(sent), received_(received) {}

  static constexpr std::size_t bytes(int ranks) noexcept {
    return 2 * sizeof(std::uint64_t) * static_cast<std::size_t>(ranks);
  }
  /// The own ones, into the own buffer.
  void write(std::byte* stage) const noexcept {
    for (int member = 0; member < protocol_.size(); ++member) {
      const std::uint64_t pair[2] = {sent_[member].size(), received_[member].size()};
      std::memcpy(stage + bytes(member), pair, sizeof pair);
    }
  }
  /// Elements that `from` says it sends to `to`, and that `to` says it receives from `from`.
  std::uint64_t sent(int from, int to) const noexcept {
    return from == protocol_.rank() ? sent_[to].size() : read(from, 2 * to);
  }
  std::uint64_t received(int from, int to) const noexcept {
    return to == protocol_.rank() ? received_[from].size() : read(to, 2 * from + 1);
  }
  /// Throws on every rank alike, naming the first pair that disagrees.
  void compare(Operation& operation) const {
    for (int from = 0; from < protocol_.size(); ++from) {
      for (int to = 0; to < protocol_.size(); ++to) {
        if (sent(from, to) == received(from, to)) continue;
        protocol_.fail_apart(operation, protocol_.rank() == to ? from : to,
                             "rank " + std::to_string(from) + " sends " + std::to_string(sent(from, to)) +
                                 " elements to rank " + std::to_string(to) + ", which expects " +
                                 std::to_string(received(from, to)));
      }
    }
  }

 private:
  std::uint64_t read(int member, int index) const noexcept {
    std::uint64_t count = 0;
    std::memcpy(&count, protocol_.staging().of(member) + sizeof count * static_cast<std::size_t>(index), sizeof count);
    return count;
  }

  Protocol<T>& protocol_;
  const Runs& sent_;
  const Runs& received_;
};

}  // namespace detail

/// Run r of `output` = run rank() of rank r's `input`: send_counts[r] elements for rank r, receive_counts[r] from it,
/// both laid out consecutively by rank. What a rank sends and what the other expects is compared for every pair.
/// `input` and `output` are disjoint, or the same buffer (in place) with the same counts to and from each rank. At most
/// 512 ranks. Bytes this rank moves: 16 size() (size() - 1) of counts loaded; and all of the output but the own run
/// loaded, when every rank's counts and input fit into 8 KiB and when all inputs are readable, else all of the input
/// but the own run sent (always so where a rank works in place). Throws Error: argument (nothing was announced),
/// mismatch (on all ranks, no data touched), dead_peer, timeout, poisoned.
template <ControlTransport T, Element E>
void all_to_all_v(Communicator<T>& comm, std::type_identity_t<std::span<const E>> input,
                  std::span<const std::size_t> send_counts, std::span<E> output,
                  std::span<const std::size_t> receive_counts, const CallOptions& options = {},
                  CallSite site = CallSite::here()) {
  constexpr Verb verb = Verb::all_to_all_v;
  auto& protocol = comm.protocol();
  protocol.require_usable(Verb::all_to_all_v, site);
  const int rank = comm.rank();
  const int ranks = comm.size();
  const detail::Runs sent(verb, rank, ranks, send_counts, site);
  const detail::Runs received(verb, rank, ranks, receive_counts, site);
  detail::require_count(verb, rank, "what this rank receives from itself", received[rank].size(), sent[rank].size(),
                        site);
  detail::require_count(verb, rank, "input", input.size(), sent.total(), site);
  detail::require_count(verb, rank, "output", output.size(), received.total(), site);
  detail::require_in_place_or_disjoint<E>(verb, rank, input.size() < output.size() ? input : output,
                                          input.size() < output.size() ? output : input, 0, site);
  const bool in_place = !input.empty() && input.data() == output.data();
  if (in_place && !std::ranges::equal(send_counts, receive_counts)) {
    detail::refuse(verb, rank, "in place, as many elements are sent to each rank as come from it", site);
  }
  const std::size_t header = detail::PairCounts<T>::bytes(ranks);
  if (header > detail::Block::eager_bytes) detail::refuse(verb, rank, "there are more than 512 ranks", site);

  // The fingerprint holds what is equal on all ranks; the counts are not.
  const Call call = detail::describe<E>(verb, 0, 0, 0, -1, site);
  const auto sends = [&](int member) { return sent[member]; };
  const auto receives = [&](int member) { return received[member]; };
  const detail::PairCounts<T> counts(protocol, sent, received);
  // With `most` elements as the longest input of all ranks, which may be said to be as long as it likes.
  const auto staged_bytes = [&](std::uint64_t most) {
    return most > (SIZE_MAX - header) / sizeof(E) ? SIZE_MAX : header + most * sizeof(E);
  };
  std::byte* const stage = protocol.stage(verb);
  counts.write(stage);
  const bool shows_input = !input.empty() && detail::path_for<Auto>(protocol, verb, staged_bytes(input.size()),
                                                                    Registration::none) == Path::staged;
  if (shows_input) copy_bytes(stage + header, input.data(), input.size_bytes());
  protocol.staging().show(header + (shows_input ? input.size_bytes() : 0));
  const bool is_read = detail::gives(protocol, sends);
  std::uint64_t place = 0;
  if (is_read) place = in_place ? detail::Place::hidden : protocol.buffers().place_of(input.data(), input.size_bytes());
  auto operation = protocol.post(call, options, place, 0);
  protocol.await_posts(operation);
  counts.compare(operation);

  // From here on all ranks know the same of each other.
  std::uint64_t longest = 0;
  detail::PerRank<std::size_t> origins(ranks);  // where in a member's input this rank's run begins
  for (int member = 0; member < ranks; ++member) {
    std::uint64_t total = 0;
    for (int to = 0; to < ranks; ++to) {
      if (to == rank) origins[member] = total;
      total += counts.sent(member, to);
    }
    longest = std::max(longest, total);
  }
  const Path taken = detail::path_for<Auto>(protocol, operation, staged_bytes(longest));
  const bool small = taken == Path::staged;
  const auto origin = [&](int member) { return origins[member]; };
  detail::keep_own(input.data(), output.data(), sent[rank], received[rank]);
  const std::uint64_t told = predict::pair_counts(ranks);
  const auto volume = predict::all_to_all(input.size_bytes(), output.size_bytes(), sent[rank].size() * sizeof(E));
  std::uint64_t loaded = told;
  if (small) {
    loaded += detail::load_from_others(protocol, output.data(), receives, origin, detail::load_from<E>([&](int member) {
                                         return protocol.staging().of(member) + header;
                                       }));
  }
  for (int member = 0; member < ranks; ++member) {
    protocol.staging().release(member, small ? detail::Block::eager_bytes : header);
  }
  if (small) return protocol.finish(operation, told + volume.of(taken), loaded);
  if (reads_in_place(taken)) {
    loaded += detail::load_from_buffers(protocol, operation, output.data(), is_read, receives, origin);
    return protocol.finish(operation, told + volume.of(taken), loaded);
  }
  loaded += detail::exchange_and_copy(protocol, operation, input.data(), output.data(), sends, receives, in_place);
  protocol.finish(operation, told + volume.of(taken), loaded);
}

}  // namespace tandem
