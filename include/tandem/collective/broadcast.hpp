// SPDX-License-Identifier: Apache-2.0
// One rank gives, all ranks get.
#pragma once

#include <concepts>
#include <cstring>
#include <span>
#include <vector>

#include "tandem/collective/algorithm.hpp"
#include "tandem/collective/all_reduce.hpp"
#include "tandem/collective/detail/checks.hpp"
#include "tandem/collective/detail/pairwise_flow.hpp"
#include "tandem/collective/detail/ring_flow.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/copy.hpp"

namespace tandem {

/// Every rank's `data` becomes root's. The same count and root on all ranks. All ranks wait for one another.
/// Bytes this rank moves, for D bytes: up to 8 KiB and Direct D loaded by each but root; Ring D sent by each but the
/// last of the chain; Naive (N-1) D sent by root. Only root's buffer needs to be registered for Direct. Throws Error:
/// argument (nothing was announced), mismatch (on all ranks, no data touched), dead_peer, timeout, poisoned.
template <OneOf<Auto, Direct, Ring, Naive> Algorithm = Auto, ControlTransport T, Element E>
void broadcast(Communicator<T>& comm, std::span<E> data, int root, const CallOptions& options = {},
               CallSite site = CallSite::here()) {
  detail::check_algorithm<Algorithm, T>();
  auto& protocol = comm.protocol();
  protocol.require_usable();
  const int ranks = comm.size();
  const int rank = comm.rank();
  detail::require_rank(Verb::broadcast, rank, "root", root, ranks, site);
  const Call call = detail::describe<E>(Verb::broadcast, data.size(), Algorithm::number, 0, root, site);
  const std::uint64_t loaded = rank == root ? 0 : data.size_bytes();
  const auto load = [&](const std::byte* from) -> std::uint64_t {
    if (rank == root || data.empty()) return 0;
    copy_result(data.data(), from, data.size_bytes());
    return data.size_bytes();
  };

  if (ranks == 1) {
    auto operation = protocol.post(call, options, 0, 0);
    return protocol.finish(operation, 0, 0);
  }
  if constexpr (std::same_as<Algorithm, Auto>) {
    if (data.size_bytes() <= detail::Block::eager_bytes) {
      std::byte* const stage = protocol.stage(Verb::broadcast);
      if (rank == root && !data.empty()) {
        copy_bytes(stage, data.data(), data.size_bytes());
        protocol.staging().show(data.size_bytes());
      }
      auto operation = protocol.post(call, options, 0, 0);
      protocol.await_posts(operation);
      const auto moved = load(protocol.staging().of(root));
      protocol.staging().release(root, moved);
      return protocol.finish(operation, loaded, moved);
    }
  }

  const std::uint64_t place = rank == root ? protocol.place_of(data.data(), data.size_bytes()) : 0;
  auto operation = protocol.post(call, options, place, 0);
  protocol.begin(operation);
  if constexpr (OneOf<Algorithm, Auto, Direct>) {
    if (protocol.all_registered(operation)) {
      const auto moved = load(protocol.input_of(operation, root));
      // Only root has to wait: its buffer may change again when all have read it.
      protocol.post_done(operation);
      if (rank == root) protocol.await_done(operation);
      return protocol.finish(operation, loaded, moved);
    }
  }
  if constexpr (std::same_as<Algorithm, Direct>) {
    detail::refuse_unregistered(protocol, operation);
  } else if constexpr (std::same_as<Algorithm, Naive>) {
    const Range all{0, data.size()};
    const auto moved = detail::exchange_and_copy(
        protocol, operation, static_cast<const E*>(data.data()), data.data(),
        [&](int) { return rank == root ? all : Range{}; }, [&](int member) { return member == root ? all : Range{}; });
    const std::uint64_t sent = rank == root ? data.size_bytes() * static_cast<std::uint64_t>(ranks - 1) : 0;
    protocol.finish(operation, sent, moved);
  } else {
    // A chain from root downwards; the rank above root is its end.
    const Range all{0, data.size()};
    const bool ends = rank == (root + 1) % ranks;
    std::vector<detail::RingStep> steps;
    if (rank != root) steps.push_back({all, false, false, true, !ends});
    const detail::Copy copy;
    const auto moved = detail::RingFlow<T, E, detail::Copy>(protocol, operation, copy, data.data(), data.data(),
                                                            rank == root ? all : Range{}, steps)
                           .run();
    protocol.finish(operation, ends ? 0 : data.size_bytes(), moved);
  }
}

}  // namespace tandem
