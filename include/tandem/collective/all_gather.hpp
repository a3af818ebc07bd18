// SPDX-License-Identifier: Apache-2.0
// Every rank gives its slice and gets the whole.
#pragma once

#include <concepts>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "tandem/collective/algorithm.hpp"
#include "tandem/collective/all_reduce.hpp"
#include "tandem/collective/detail/checks.hpp"
#include "tandem/collective/detail/pairwise_flow.hpp"
#include "tandem/collective/detail/ring_flow.hpp"
#include "tandem/collective/prediction.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/copy.hpp"

namespace tandem {

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
  auto& protocol = comm.protocol();
  protocol.require_usable();
  const int ranks = comm.size();
  const auto slice = [&](int member) { return slice_of(output.size(), ranks, member); };
  const Range own = slice(comm.rank());
  detail::require_count(Verb::all_gather, comm.rank(), "input", input.size(), own.size(), site);
  detail::require_in_place_or_disjoint<E>(Verb::all_gather, comm.rank(), input, output, own.begin, site);
  const Call call = detail::describe<E>(Verb::all_gather, output.size(), Algorithm::number, 0, -1, site);

  const auto keep_own = [&] {
    if (!input.empty() && input.data() != output.data() + own.begin) {
      copy_bytes(output.data() + own.begin, input.data(), input.size_bytes());
    }
  };
  // Loads the others' slices; `from(member)` is where a member's lies. Returns bytes loaded.
  const auto load = [&](auto from) {
    std::uint64_t loaded = 0;
    for (int step = 1; step < ranks; ++step) {
      const int member = (comm.rank() + step) % ranks;
      const Range theirs = slice(member);
      if (theirs.empty()) continue;
      copy_bytes(output.data() + theirs.begin, from(member), theirs.size() * sizeof(E));
      loaded += theirs.size() * sizeof(E);
    }
    return loaded;
  };
  const std::uint64_t others = (output.size() - own.size()) * sizeof(E);

  if (ranks == 1) {
    auto operation = protocol.post(call, options, 0, 0);
    keep_own();
    return protocol.finish(operation, 0, 0);
  }
  if constexpr (std::same_as<Algorithm, Auto>) {
    // The longest slice decides, on all ranks alike.
    if (slice(0).size() * sizeof(E) <= detail::Block::eager_bytes) {
      std::byte* const stage = protocol.stage(Verb::all_gather);
      if (!input.empty()) copy_bytes(stage, input.data(), input.size_bytes());
      protocol.staging().show(input.size_bytes());
      auto operation = protocol.post(call, options, 0, 0);
      keep_own();
      protocol.await_posts(operation);
      const auto moved = load([&](int member) { return protocol.staging().of(member); });
      for (int member = 0; member < ranks; ++member)
        protocol.staging().release(member, slice(member).size() * sizeof(E));
      return protocol.finish(operation, others, moved);
    }
  }

  // Only inputs are read across ranks, so only they have to be registered.
  auto operation = protocol.post(call, options, protocol.place_of(input.data(), input.size_bytes()), 0);
  keep_own();
  protocol.begin(operation);
  if constexpr (OneOf<Algorithm, Auto, Direct>) {
    if (protocol.all_registered(operation)) {
      const auto moved = load([&](int member) { return protocol.input_of(operation, member); });
      protocol.post_done(operation);
      protocol.await_done(operation);
      return protocol.finish(operation, others, moved);
    }
  }
  if constexpr (std::same_as<Algorithm, Direct>) {
    detail::refuse_unregistered(protocol, operation);
  } else if constexpr (std::same_as<Algorithm, Pairwise>) {
    const auto moved = detail::exchange_and_copy(
        protocol, operation, static_cast<const E*>(output.data()), output.data(), [&](int) { return own; }, slice);
    protocol.finish(operation, predict::pairwise_all_gather(input.size_bytes(), ranks), moved);
  } else {
    std::vector<detail::RingStep> steps;
    for (int k = 0; k < ranks - 1; ++k) {
      steps.push_back({slice((comm.rank() + 1 + k) % ranks), false, false, true, k != ranks - 2});
    }
    const detail::Copy copy;
    const auto moved =
        detail::RingFlow<T, E, detail::Copy>(protocol, operation, copy, output.data(), output.data(), own, steps).run();
    protocol.finish(operation, predict::ring_all_gather(output.size(), sizeof(E), ranks, comm.rank()), moved);
  }
}

}  // namespace tandem
