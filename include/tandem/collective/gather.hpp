// SPDX-License-Identifier: Apache-2.0
// Every rank gives its run, one rank gets the whole.
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
void gather_runs(Verb verb, Communicator<T>& comm, std::span<const E> input, std::span<E> output, const Runs& runs,
                 int root, const CallOptions& options, CallSite site) {
  const int rank = comm.rank();
  const Range own = runs[rank];
  require_count(verb, rank, "input", input.size(), own.size(), site);
  if (rank == root) {
    require_count(verb, rank, "output", output.size(), runs.total(), site);
    require_in_place_or_disjoint<E>(verb, rank, input, output, own.begin, site);
  }
  Call call = describe<E>(verb, runs.total(), 0, 0, root, site);
  call.layout = runs.layout();
  redistribute(
      comm.protocol(), call, options, input, output.data(), runs.longest(), false,
      predict::gather(own.size() * sizeof(E), runs.total() * sizeof(E), rank == root),
      [&](int member) {
        return member == root ? Range{0, input.size()} : Range{};
      },
      [&](int member) { return rank == root ? runs[member] : Range{}; }, [](int) { return std::size_t{0}; });
}

}  // namespace detail

/// Root's output = all ranks' inputs one after the other. `input` has the same count on all ranks; `output` is looked
/// at on root only, where it has size() times as many elements and `input` may be the own part of it (in place).
/// Bytes this rank moves, for D bytes in all and an input of S: inputs up to 8 KiB, and readable ones, D - S loaded
/// by root; others S sent by each rank but root. Only inputs need to be registered, and root's not. Throws Error:
/// argument (nothing was announced), mismatch (on all ranks, no data touched), dead_peer, timeout, poisoned.
template <ControlTransport T, Element E>
void gather(Communicator<T>& comm, std::type_identity_t<std::span<const E>> input, std::span<E> output, int root,
            const CallOptions& options = {}, CallSite site = CallSite::here()) {
  comm.protocol().require_usable(Verb::gather, site);
  detail::require_rank(Verb::gather, comm.rank(), "root", root, comm.size(), site);
  const detail::Runs runs(comm.size(), input.size());
  detail::gather_runs<T, E>(Verb::gather, comm, input, output, runs, root, options, site);
}

/// The same with counts[r] elements from rank r. `counts` is the same on all ranks (a difference is a mismatch, found
/// by a hash of 32 bits). The longest input decides whether all go beside the flags.
template <ControlTransport T, Element E>
void gather_v(Communicator<T>& comm, std::type_identity_t<std::span<const E>> input, std::span<E> output,
              std::span<const std::size_t> counts, int root, const CallOptions& options = {},
              CallSite site = CallSite::here()) {
  comm.protocol().require_usable(Verb::gather_v, site);
  detail::require_rank(Verb::gather_v, comm.rank(), "root", root, comm.size(), site);
  const detail::Runs runs(Verb::gather_v, comm.rank(), comm.size(), counts, site);
  detail::gather_runs<T, E>(Verb::gather_v, comm, input, output, runs, root, options, site);
}

}  // namespace tandem
