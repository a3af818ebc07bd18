// SPDX-License-Identifier: Apache-2.0
// One rank gives a whole buffer, every rank gets its run of it.
#pragma once

#include <span>
#include <type_traits>

#include "tandem/collective/detail/checks.hpp"
#include "tandem/collective/detail/redistribution.hpp"
#include "tandem/collective/detail/runs.hpp"
#include "tandem/collective/prediction.hpp"
#include "tandem/comm/communicator.hpp"

namespace tandem {

namespace detail {

template <class T, class E>
void scatter_runs(Verb verb, Communicator<T>& comm, std::span<const E> input, std::span<E> output, const Runs& runs,
                  int root, const CallOptions& options, CallSite site) {
  const int rank = comm.rank();
  const Range own = runs[rank];
  require_count(verb, rank, "output", output.size(), own.size(), site);
  if (rank == root) {
    require_count(verb, rank, "input", input.size(), runs.total(), site);
    require_in_place_or_disjoint<E>(verb, rank, output, input, own.begin, site);
  }
  Call call = describe<E>(verb, runs.total(), 0, 0, root, site);
  call.layout = runs.layout();
  redistribute(
      comm.protocol(), call, options, input, output.data(), runs.total(), false,
      predict::scatter(own.size() * sizeof(E), runs.total() * sizeof(E), rank == root),
      [&](int member) { return rank == root ? runs[member] : Range{}; },
      [&](int member) {
        return member == root ? Range{0, output.size()} : Range{};
      },
      [&](int) { return own.begin; });
}

}  // namespace detail

/// output = this rank's part of root's input: equal parts, by rank. `output` has the same count on all ranks; `input`
/// is looked at on root only, where it has size() times as many elements and `output` may be the own part of it (in
/// place). Bytes this rank moves, for D bytes in all and a part of S: up to 8 KiB in all, and out of a readable input,
/// S loaded by each rank but root; else D - S sent by root. Only root's input needs to be registered. Throws
/// Error: argument (nothing was announced), mismatch (on all ranks, no data touched), dead_peer, timeout, poisoned.
template <ControlTransport T, Element E>
void scatter(Communicator<T>& comm, std::type_identity_t<std::span<const E>> input, std::span<E> output, int root,
             const CallOptions& options = {}, CallSite site = CallSite::here()) {
  comm.protocol().require_usable(Verb::scatter, site);
  detail::require_rank(Verb::scatter, comm.rank(), "root", root, comm.size(), site);
  const detail::Runs runs(comm.size(), output.size());
  detail::scatter_runs<T, E>(Verb::scatter, comm, input, output, runs, root, options, site);
}

/// The same with counts[r] elements for rank r. `counts` is the same on all ranks (a difference is a mismatch, found by
/// a hash of 32 bits).
template <ControlTransport T, Element E>
void scatter_v(Communicator<T>& comm, std::type_identity_t<std::span<const E>> input, std::span<E> output,
               std::span<const std::size_t> counts, int root, const CallOptions& options = {},
               CallSite site = CallSite::here()) {
  comm.protocol().require_usable(Verb::scatter_v, site);
  detail::require_rank(Verb::scatter_v, comm.rank(), "root", root, comm.size(), site);
  const detail::Runs runs(Verb::scatter_v, comm.rank(), comm.size(), counts, site);
  detail::scatter_runs<T, E>(Verb::scatter_v, comm, input, output, runs, root, options, site);
}

}  // namespace tandem
