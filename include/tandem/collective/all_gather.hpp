// SPDX-License-Identifier: Apache-2.0
// Every rank gives its slice and gets the whole.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "tandem/collective/algorithm.hpp"
#include "tandem/collective/detail/bounce_flow.hpp"
#include "tandem/collective/detail/carry_out.hpp"
#include "tandem/collective/detail/checks.hpp"
#include "tandem/collective/detail/pairwise_flow.hpp"
#include "tandem/collective/detail/redistribution.hpp"
#include "tandem/collective/detail/ring_flow.hpp"
#include "tandem/collective/detail/runs.hpp"
#include "tandem/collective/detail/scratch.hpp"
#include "tandem/collective/detail/staged.hpp"
#include "tandem/collective/path.hpp"
#include "tandem/collective/prediction.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/bytes.hpp"
#include "tandem/core/copy.hpp"

namespace tandem {

namespace detail {

/// Any partition into consecutive slices, one per rank, the same on all.
template <class E, class SliceOf>
struct AllGatherSteps {
  std::span<const E> input;
  std::span<E> output;
  SliceOf slice;
  int ranks;
  bool announces_empty;  // an empty input is not read, wherever it is, unless Direct is forced on it

  void check(const Call& call, int rank) const {
    const Range own = slice(rank);
    require_count(call.verb, rank, "input", input.size(), own.size(), call.site);
    require_in_place_or_disjoint<E>(call.verb, rank, input, output, own.begin, call.site);
  }
  /// The longest slice decides, on all ranks alike.
  std::uint64_t staged_bytes() const noexcept {
    std::size_t longest = 0;
    for (int member = 0; member < ranks; ++member) longest = std::max(longest, slice(member).size());
    return longest * sizeof(E);
  }
  // Only inputs are read across ranks, so only they have to be registered.
  template <class T>
  std::uint64_t input_place(const Protocol<T>& protocol) const noexcept {
    return announces_empty || !input.empty() ? protocol.buffers().place_of(input.data(), input.size_bytes()) : 0;
  }
  template <class T>
  std::uint64_t output_place(const Protocol<T>&) const noexcept {
    return 0;
  }
  template <class T>
  bool waits(const Protocol<T>&, const Operation&) const noexcept {
    return true;
  }
  /// What this rank gives itself; done when all ranks agree.
  void keep(int rank) const { keep_own(input.data(), output.data(), {0, input.size()}, slice(rank)); }
  /// The others' slices.
  template <class T, class Load>
  std::uint64_t load(const Protocol<T>& protocol, Load load) const {
    return load_from_others(
        protocol, output.data(), slice, [](int) { return std::size_t{0}; }, load);
  }
  template <class T>
  std::uint64_t read_in_place(Protocol<T>& protocol, Operation& operation, Path) const {
    keep(protocol.rank());
    return load(protocol, load_posted<E>(protocol, operation));
  }
  template <class T>
  std::uint64_t in_pieces(Protocol<T>& protocol, Operation& operation) const {
    keep(protocol.rank());
    return pass_in_pieces(protocol, operation, std::as_writable_bytes(output).data(), std::as_bytes(input).data(),
                          [&](int member) {
                            const Range elements = slice(member);
                            return Range{elements.begin * sizeof(E), elements.end * sizeof(E)};
                          });
  }
  template <class Algorithm, class T>
  std::uint64_t by_channels(Protocol<T>& protocol, Operation& operation) const {
    const Range own = slice(protocol.rank());
    // As if the own slice lay in a whole input.
    const E* const whole = Scratch<const E>::element_zero(input.data(), own.begin);
    std::uint64_t sent = 0;
    if constexpr (std::same_as<Algorithm, Pairwise>) {
      sent = exchange_and_copy(
          protocol, operation, whole, output.data(), [&](int) { return own; }, slice);
    } else {
      std::vector<RingStep> steps;
      for (int k = 0; k < ranks - 1; ++k) {
        steps.push_back({slice((protocol.rank() + 1 + k) % ranks), false, false, true, k != ranks - 2});
      }
      const Copy copy;
      sent = RingFlow<T, E, Copy>(protocol, operation, copy, whole, output.data(), own, steps).run();
    }
    keep(protocol.rank());
    return sent;
  }
  template <class T>
  std::uint64_t predicted(const Protocol<T>& protocol, const Operation&, Path path) const noexcept {
    const std::uint64_t before = slice((protocol.rank() + ranks - 1) % ranks).size() * sizeof(E);
    return predict::all_gather(path, output.size_bytes(), input.size_bytes(), before, ranks);
  }
};

template <class Algorithm, class T, class E, class SliceOf>
void all_gather_slices(Communicator<T>& comm, const Call& call, const CallOptions& options, std::span<const E> input,
                       std::span<E> output, SliceOf slice) {
  auto& protocol = comm.protocol();
  const int rank = comm.rank();
  const AllGatherSteps<E, SliceOf> steps{input, output, slice, comm.size(), !std::same_as<Algorithm, Auto>};
  steps.check(call, rank);
  if (comm.size() == 1) {
    auto operation = protocol.post(call, options, 0, 0);
    steps.keep(rank);
    return protocol.finish(operation, 0, 0);
  }
  auto [operation, staged] = announce<Algorithm>(protocol, call, options, steps.staged_bytes(), std::as_bytes(input),
                                                 steps.input_place(protocol), steps.output_place(protocol));
  if (staged) {
    steps.keep(rank);
    const auto moved = steps.load(protocol, load_from<E>([&](int member) { return protocol.staging().of(member); }));
    for (int member = 0; member < comm.size(); ++member)
      protocol.staging().release(member, slice(member).size() * sizeof(E));
    return protocol.finish(operation, steps.predicted(protocol, operation, Path::staged), moved);
  }
  carry_out<Algorithm>(protocol, operation, steps);
}

}  // namespace detail

/// output = all ranks' inputs one after the other. `output` is the whole, of the same count on all ranks; `input` is
/// this rank's slice_of(count, size, rank) of it (the last slices are short or empty where the number of ranks does not
/// divide), and may be that very part of `output` (in place).
/// Bytes this rank moves, for D bytes in all and a slice of S: slices up to 8 KiB, Direct, Bounce and Fetch D - S
/// loaded; Ring D less the slice before its own; Pairwise (N-1) S. Throws Error: argument (nothing was announced),
/// mismatch (on all ranks, no data touched), dead_peer, timeout, poisoned.
template <OneOf<Auto, Direct, Ring, Pairwise> Algorithm = Auto, ControlTransport T, Element E>
void all_gather(Communicator<T>& comm, std::type_identity_t<std::span<const E>> input, std::span<E> output,
                const CallOptions& options = {}, CallSite site = CallSite::here()) {
  detail::check_algorithm<Algorithm, T>();
  comm.protocol().require_usable(Verb::all_gather, site);
  const Call call = detail::describe<E>(Verb::all_gather, output.size(), Algorithm::number, 0, -1, site);
  detail::all_gather_slices<Algorithm, T, E>(comm, call, options, input, output,
                                             [&](int member) { return slice_of(output.size(), comm.size(), member); });
}

/// The same with counts[r] elements from rank r, in any partition into consecutive runs: they add up to the output's
/// count, and are the same on all ranks (a difference is a mismatch, found by a hash of 32 bits). Takes the paths that
/// all_gather takes by itself, with their bytes; the longest run decides whether all go beside the flags.
template <ControlTransport T, Element E>
void all_gather_v(Communicator<T>& comm, std::type_identity_t<std::span<const E>> input, std::span<E> output,
                  std::span<const std::size_t> counts, const CallOptions& options = {},
                  CallSite site = CallSite::here()) {
  comm.protocol().require_usable(Verb::all_gather_v, site);
  const detail::Runs runs(Verb::all_gather_v, comm.rank(), comm.size(), counts, site);
  detail::require_count(Verb::all_gather_v, comm.rank(), "output", output.size(), runs.total(), site);
  Call call = detail::describe<E>(Verb::all_gather_v, output.size(), 0, 0, -1, site);
  call.layout = runs.layout();
  detail::all_gather_slices<Auto, T, E>(comm, call, options, input, output, [&](int member) { return runs[member]; });
}

}  // namespace tandem
