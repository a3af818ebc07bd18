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
#include "tandem/collective/all_reduce.hpp"
#include "tandem/collective/detail/checks.hpp"
#include "tandem/collective/detail/pairwise_flow.hpp"
#include "tandem/collective/detail/redistribution.hpp"
#include "tandem/collective/detail/ring_flow.hpp"
#include "tandem/collective/detail/runs.hpp"
#include "tandem/collective/detail/scratch.hpp"
#include "tandem/collective/prediction.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/bytes.hpp"
#include "tandem/core/copy.hpp"

namespace tandem {

namespace detail {

/// Any partition into consecutive slices, one per rank, the same on all.
template <class Algorithm, class T, class E, class SliceOf>
void all_gather_slices(Communicator<T>& comm, const Call& call, const CallOptions& options, std::span<const E> input,
                       std::span<E> output, SliceOf slice) {
  auto& protocol = comm.protocol();
  const int ranks = comm.size();
  const Range own = slice(comm.rank());
  require_count(call.verb, comm.rank(), "input", input.size(), own.size(), call.site);
  require_in_place_or_disjoint<E>(call.verb, comm.rank(), input, output, own.begin, call.site);
  const auto keep = [&] { keep_own(input.data(), output.data(), {0, input.size()}, own); };
  // The others' slices; `input_of(member)` is where a member's lies.
  const auto load = [&](auto input_of) {
    return load_from_others(
        protocol, output.data(), slice, [](int) { return std::size_t{0}; }, input_of);
  };
  // As if the own slice lay in a whole input.
  const E* const whole = Scratch<const E>::element_zero(input.data(), own.begin);
  const std::uint64_t others = (output.size() - own.size()) * sizeof(E);

  if (ranks == 1) {
    auto operation = protocol.post(call, options, 0, 0);
    keep();
    return protocol.finish(operation, 0, 0);
  }
  if constexpr (std::same_as<Algorithm, Auto>) {
    std::size_t longest = 0;  // decides, on all ranks alike
    for (int member = 0; member < ranks; ++member) longest = std::max(longest, slice(member).size());
    if (longest <= Block::eager_bytes / sizeof(E)) {
      std::byte* const stage = protocol.stage(call.verb);
      if (!input.empty()) copy_bytes(stage, input.data(), input.size_bytes());
      protocol.staging().show(input.size_bytes());
      auto operation = protocol.post(call, options, 0, 0);
      protocol.await_posts(operation);
      keep();
      const auto moved = load([&](int member) { return protocol.staging().of(member); });
      for (int member = 0; member < ranks; ++member)
        protocol.staging().release(member, slice(member).size() * sizeof(E));
      return protocol.finish(operation, others, moved);
    }
  }

  // Only inputs are read across ranks, so only they have to be registered; an empty one is not read, wherever it is.
  const bool is_read = !std::same_as<Algorithm, Auto> || !input.empty();
  auto operation = protocol.post(call, options, is_read ? protocol.place_of(input.data(), input.size_bytes()) : 0, 0);
  protocol.begin(operation);
  if constexpr (OneOf<Algorithm, Auto, Direct>) {
    if (protocol.all_registered(operation)) {
      keep();
      const auto moved = load([&](int member) { return protocol.input_of(operation, member); });
      protocol.post_done(operation);
      protocol.await_done(operation);
      return protocol.finish(operation, others, moved);
    }
  }
  if constexpr (std::same_as<Algorithm, Direct>) {
    refuse_unregistered(protocol, operation);
  } else if constexpr (std::same_as<Algorithm, Pairwise>) {
    const auto moved = exchange_and_copy(
        protocol, operation, whole, output.data(), [&](int) { return own; }, slice);
    keep();
    protocol.finish(operation, predict::pairwise_all_gather(input.size_bytes(), ranks), moved);
  } else {
    std::vector<RingStep> steps;
    for (int k = 0; k < ranks - 1; ++k) {
      steps.push_back({slice((comm.rank() + 1 + k) % ranks), false, false, true, k != ranks - 2});
    }
    const Copy copy;
    const auto moved = RingFlow<T, E, Copy>(protocol, operation, copy, whole, output.data(), own, steps).run();
    keep();
    protocol.finish(
        operation,
        predict::ring_all_gather(output.size_bytes(), slice((comm.rank() + ranks - 1) % ranks).size() * sizeof(E)),
        moved);
  }
}

}  // namespace detail

/// output = all ranks' inputs one after the other. `output` is the whole, of the same count on all ranks; `input` is
/// this rank's slice_of(count, size, rank) of it (the last slices are short or empty where the number of ranks does not
/// divide), and may be that very part of `output` (in place).
/// Bytes this rank moves, for D bytes in all and a slice of S: slices up to 8 KiB and Direct D - S loaded; Ring D less
/// the slice before its own; Pairwise (N-1) S. Throws Error: argument (nothing was announced), mismatch (on all ranks,
/// no data touched), dead_peer, timeout, poisoned.
template <OneOf<Auto, Direct, Ring, Pairwise> Algorithm = Auto, ControlTransport T, Element E>
void all_gather(Communicator<T>& comm, std::type_identity_t<std::span<const E>> input, std::span<E> output,
                const CallOptions& options = {}, CallSite site = CallSite::here()) {
  detail::check_algorithm<Algorithm, T>();
  comm.protocol().require_usable();
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
  comm.protocol().require_usable();
  const detail::Runs runs(Verb::all_gather_v, comm.rank(), comm.size(), counts, site);
  detail::require_count(Verb::all_gather_v, comm.rank(), "output", output.size(), runs.total(), site);
  Call call = detail::describe<E>(Verb::all_gather_v, output.size(), 0, 0, -1, site);
  call.layout = runs.layout();
  detail::all_gather_slices<Auto, T, E>(comm, call, options, input, output, [&](int member) { return runs[member]; });
}

}  // namespace tandem
