// SPDX-License-Identifier: Apache-2.0
// One rank gives, all ranks get.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tandem/collective/algorithm.hpp"
#include "tandem/collective/detail/bounce_flow.hpp"
#include "tandem/collective/detail/carry_out.hpp"
#include "tandem/collective/detail/checks.hpp"
#include "tandem/collective/detail/pairwise_flow.hpp"
#include "tandem/collective/detail/ring_flow.hpp"
#include "tandem/collective/detail/staged.hpp"
#include "tandem/collective/path.hpp"
#include "tandem/collective/prediction.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/copy.hpp"

namespace tandem {

namespace detail {

template <class E>
struct BroadcastSteps {
  std::span<E> data;
  int root;
  /// Where all ranks' buffers are registered, root stores a part to all others while they load the rest, instead of
  /// only waiting for them. Not where somebody waits for root the longer for it.
  bool shares = false;

  std::uint64_t staged_bytes() const noexcept { return data.size_bytes(); }
  template <class T>
  std::uint64_t input_place(const Protocol<T>& protocol) const noexcept {
    return protocol.rank() == root ? protocol.buffers().place_of(data.data(), data.size_bytes()) : 0;
  }
  template <class T>
  std::uint64_t output_place(const Protocol<T>& protocol) const noexcept {
    if (!shares || protocol.rank() == root) return Place::nothing;
    return protocol.buffers().window_place_of(data.data(), data.size_bytes());
  }
  /// The elements that root stores to all others.
  template <class T>
  Range stored_by_root(const Protocol<T>& protocol, const Operation& operation) const noexcept {
    if (!Place::in_window(protocol.line_of(operation, root).input)) return {};
    for (int member = 0; member < protocol.size(); ++member) {
      if (member != root && protocol.line_of(operation, member).output == Place::nothing) return {};
    }
    return owned_range(data.size(), sizeof(E), protocol.size(), 0);
  }
  /// Root's buffer may change again when all have read it.
  template <class T>
  bool waits(const Protocol<T>& protocol, const Operation& operation) const noexcept {
    return protocol.rank() == root || !stored_by_root(protocol, operation).empty();
  }
  /// Out of staging.
  std::uint64_t load(int rank, const std::byte* from) const {
    if (rank == root || data.empty()) return 0;
    copy_result(data.data(), from, data.size_bytes());
    return data.size_bytes();
  }
  template <class T>
  std::uint64_t read_in_place(Protocol<T>& protocol, Operation& operation, Path) const {
    const Range stored = stored_by_root(protocol, operation);
    if (protocol.rank() != root) {
      const auto part = data.subspan(stored.end);
      protocol.load(operation, root, protocol.line_of(operation, root).input, stored.end * sizeof(E), part.data(),
                    part.size_bytes());
      return part.size_bytes();
    }
    const std::size_t bytes = stored.size() * sizeof(E);
    for (int step = 1; step < protocol.size() && bytes != 0; ++step) {
      copy_result(protocol.buffers().output_of(operation, (root + step) % protocol.size()), data.data(), bytes);
    }
    return bytes * static_cast<std::uint64_t>(protocol.size() - 1);
  }
  template <class T>
  std::uint64_t in_pieces(Protocol<T>& protocol, Operation& operation) const {
    const auto bytes = std::as_writable_bytes(data);
    return pass_in_pieces(protocol, operation, bytes.data(), bytes.data(), [&](int member) {
      return member == root ? Range{0, bytes.size()} : Range{};
    });
  }
  template <class Algorithm, class T>
  std::uint64_t by_channels(Protocol<T>& protocol, Operation& operation) const {
    const Range all{0, data.size()};
    const bool is_root = protocol.rank() == root;
    if constexpr (std::same_as<Algorithm, Naive>) {
      return exchange_and_copy(
          protocol, operation, static_cast<const E*>(data.data()), data.data(),
          [&](int) { return is_root ? all : Range{}; }, [&](int member) { return member == root ? all : Range{}; });
    } else {
      // A chain from root downwards; the rank above root is its end.
      const bool ends = protocol.rank() == (root + 1) % protocol.size();
      std::vector<RingStep> steps;
      if (!is_root) steps.push_back({all, false, false, true, !ends});
      const Copy copy;
      return RingFlow<T, E, Copy>(protocol, operation, copy, data.data(), data.data(), is_root ? all : Range{}, steps)
          .run();
    }
  }
  template <class T>
  std::uint64_t predicted(const Protocol<T>& protocol, const Operation& operation, Path path) const noexcept {
    const std::uint64_t stored = reads_in_place(path) ? stored_by_root(protocol, operation).size() * sizeof(E) : 0;
    return predict::broadcast(path, data.size_bytes(), stored, root, protocol.rank(), protocol.size());
  }
};

}  // namespace detail

/// Every rank's `data` becomes root's. The same count and root on all ranks. All ranks wait for one another.
/// Bytes this rank moves, for D bytes: up to 8 KiB, Direct and Bounce D loaded by each but root; Ring D sent by each
/// but the last of the chain; Naive (N-1) D sent by root. Only root's buffer needs to be registered for Direct; where
/// all are, and each rank has a processor, the first N-th is not loaded but stored by root to all. Throws Error:
/// argument (nothing was announced), mismatch (on all ranks, no data touched), dead_peer, timeout, poisoned.
template <OneOf<Auto, Direct, Ring, Naive> Algorithm = Auto, ControlTransport T, Element E>
void broadcast(Communicator<T>& comm, std::span<E> data, int root, const CallOptions& options = {},
               CallSite site = CallSite::here()) {
  detail::check_algorithm<Algorithm, T>();
  auto& protocol = comm.protocol();
  protocol.require_usable(Verb::broadcast, site);
  const int rank = comm.rank();
  detail::require_rank(Verb::broadcast, rank, "root", root, comm.size(), site);
  const Call call = detail::describe<E>(Verb::broadcast, data.size(), Algorithm::number, 0, root, site);
  const detail::BroadcastSteps<E> steps{data, root, !protocol.crowded() && data.size_bytes() >= direct_bytes};

  if (comm.size() == 1) {
    auto operation = protocol.post(call, options, 0, 0);
    return protocol.finish(operation, 0, 0);
  }
  const bool gives = rank == root;
  auto [operation, staged] = detail::announce<Algorithm>(protocol, call, options, steps.staged_bytes(),
                                                         gives ? std::as_bytes(data) : std::span<const std::byte>(),
                                                         steps.input_place(protocol), steps.output_place(protocol));
  if (staged) {
    const auto moved = steps.load(rank, protocol.staging().of(root));
    protocol.staging().release(root, moved);
    return protocol.finish(operation, steps.predicted(protocol, operation, Path::staged), moved);
  }
  detail::carry_out<Algorithm>(protocol, operation, steps);
}

}  // namespace tandem
