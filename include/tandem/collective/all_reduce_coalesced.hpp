// SPDX-License-Identifier: Apache-2.0
// Many small buffers, reduced as one operation: one announcement, one synchronisation of each kind for all of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tandem/collective/all_reduce.hpp"
#include "tandem/collective/detail/carry_out.hpp"
#include "tandem/collective/detail/checks.hpp"
#include "tandem/collective/detail/runs.hpp"
#include "tandem/collective/detail/scratch.hpp"
#include "tandem/collective/path.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/copy.hpp"
#include "tandem/reduce/order.hpp"

namespace tandem {

namespace detail {

/// Room for what several buffers hold together: in the arena where peers can read it there, so that a large group goes
/// Direct; otherwise, and when the arena is full, private.
template <class E>
class CommonBuffer {
 public:
  template <class T>
  CommonBuffer(Communicator<T>& comm, std::size_t count) : count_(count) {
    const Path path = path_for<Auto>(comm.protocol(), Verb::all_reduce_coalesced, count * sizeof(E), Registration::all);
    if (T::has_windows && path == Path::direct) {
      try {
        registered_ = std::make_unique<ArenaArray<E>>(comm.arena(), count);
        return;
      } catch (const Error&) {  // the others need not know: every rank says where its buffer lies
      }
    }
    private_ = std::make_unique<Scratch<E>>(count);
  }
  std::span<E> span() noexcept { return {registered_ ? registered_->data() : private_->data(), count_}; }

 private:
  std::size_t count_;
  std::unique_ptr<ArenaArray<E>> registered_;
  std::unique_ptr<Scratch<E>> private_;
};

/// No two of them may share memory: the second would get the first one's result.
template <class E>
void require_disjoint(Verb verb, int rank, std::span<const std::span<E>> buffers, CallSite site) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (!buffers[i].empty()) order.push_back(i);
  }
  std::ranges::sort(order, std::ranges::less{}, [&](std::size_t i) { return buffers[i].data(); });
  for (std::size_t k = 1; k < order.size(); ++k) {
    const auto& before = buffers[order[k - 1]];
    if (before.data() + before.size() <= buffers[order[k]].data()) continue;
    const auto [first, second] = std::minmax(order[k - 1], order[k]);
    refuse(verb, rank, "buffers " + std::to_string(first) + " and " + std::to_string(second) + " overlap", site);
  }
}

}  // namespace detail

/// Every buffer becomes the reduction over all ranks' buffers at that place of the list, in place. The bits are those
/// of one all_reduce over the concatenation of the buffers in their order: its table decides which rank's element comes
/// first, as in PyTorch's all_reduce_coalesced over gloo; they differ from the bits of one all_reduce a buffer at three
/// ranks or more.
///
/// The list has the same number of buffers, and each the same count, on all ranks (a difference is a mismatch, found by
/// a hash of 32 bits). Empty buffers and an empty list are allowed; buffers that overlap are refused. The elements are
/// copied into one buffer and back, within this rank; on the wire, for D bytes in all, what all_reduce moves: up to
/// 8 KiB (N-1) D in one synchronisation, Direct 2 (N-1) / N D in two (buffers need not be registered), over a transport
/// without windows as all_reduce. Throws Error: argument (nothing was announced), mismatch (on all ranks, no data
/// touched), dead_peer, timeout, poisoned.
template <Order Order = GlooRing, ControlTransport T, Element E, class Op>
void all_reduce_coalesced(Communicator<T>& comm, std::span<const std::span<E>> buffers, const Op& op,
                          const CallOptions& options = {}, CallSite site = CallSite::here()) {
  constexpr Verb verb = Verb::all_reduce_coalesced;
  auto& protocol = comm.protocol();
  protocol.require_usable(Verb::all_reduce_coalesced, site);
  protocol.require_room(verb);
  detail::require_disjoint<E>(verb, comm.rank(), buffers, site);
  std::vector<std::size_t> counts;
  std::size_t total = 0;
  for (const auto& buffer : buffers) {
    counts.push_back(buffer.size());
    total += buffer.size();
  }
  Call call = detail::describe_reduction<E, Order>(verb, total, 0, op, -1, site);
  call.layout = detail::layout_of(counts);

  detail::CommonBuffer<E> common(comm, total);
  const std::span<E> all = common.span();
  const auto each = [&](auto&& f) {
    std::size_t at = 0;
    for (const auto& buffer : buffers) {
      if (!buffer.empty()) f(buffer, all.subspan(at, buffer.size()));
      at += buffer.size();
    }
  };
  each([](std::span<E> buffer, std::span<E> part) { copy_bytes(part.data(), buffer.data(), buffer.size_bytes()); });
  detail::all_reduce_as<Auto, Order>(protocol, call, options, std::span<const E>(all), all, op);
  each([](std::span<E> buffer, std::span<E> part) { copy_bytes(buffer.data(), part.data(), buffer.size_bytes()); });
}

}  // namespace tandem
