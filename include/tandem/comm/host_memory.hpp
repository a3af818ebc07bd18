// SPDX-License-Identifier: Apache-2.0
// What all communicators of one process over one endpoint share: the endpoint itself, the arena for users, and the
// allocator of flag blocks. Closes the endpoint when the last communicator goes.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "tandem/comm/arena.hpp"
#include "tandem/comm/board.hpp"
#include "tandem/comm/detail/extents.hpp"
#include "tandem/comm/inbox.hpp"
#include "tandem/transport/concepts.hpp"

namespace tandem {

template <ControlTransport T>
class HostMemory {
 public:
  explicit HostMemory(T endpoint)
      : endpoint_(std::make_shared<T>(std::move(endpoint))),
        arena_(std::make_shared<Arena>(
            endpoint_->window(endpoint_->rank()), endpoint_->heap(),
            // The arena outlives communicators while tensors lie in it, so it keeps the endpoint's mapping alive.
            [keep = endpoint_](Range range) { keep->reserve(range); },
            [keep = endpoint_](Range span, const std::vector<Range>& kept) { return keep->detach_heap(span, kept); },
            [keep = endpoint_](Range range) { keep->give_back(range); })),
        blocks_(endpoint_->control(), line_pair_bytes) {}
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  ~HostMemory() { endpoint_->close(); }

  T& endpoint() noexcept { return *endpoint_; }
  const T& endpoint() const noexcept { return *endpoint_; }
  const std::shared_ptr<Arena>& arena() const noexcept { return arena_; }

  /// How many flag blocks there is room for.
  std::size_t most_blocks() const noexcept { return endpoint_->control().size() / sizeof(detail::Block); }
  /// A cleared flag block in the own window; Error(system) when there is no room for another. The first one of every
  /// rank lies at the same offset.
  detail::BlockPlace new_block() {
    const std::lock_guard lock(mutex_);
    reclaim();
    const auto range = blocks_.take(sizeof(detail::Block), line_pair_bytes);
    if (!range) {
      throw Error(ErrorKind::system, "tandem: there is room for " + std::to_string(most_blocks()) +
                                         " communicators at a time in this process; let go of some of them, on all of "
                                         "their ranks, before another is made");
    }
    if (range->end > reserved_) {
      endpoint_->reserve({reserved_, range->end});
      reserved_ = range->end;
    }
    if (!has_first_)
      first_ = range->begin;
    else
      several_blocks_.store(true, std::memory_order_relaxed);
    has_first_ = true;
    detail::Block& fresh = block(endpoint_->rank(), range->begin);
    fresh.clear();
    if (fresh.generation.load(std::memory_order_relaxed) != 0) show_to_all(fresh);  // copies of it hold its last use
    return {range->begin, fresh.generation.load(std::memory_order_relaxed)};
  }
  /// Communicator `id` is gone and its own block not needed any more; `others` are those of its other members.
  void retire(std::uint32_t id, detail::BlockPlace own,
              std::vector<std::pair<int, detail::BlockPlace>> others) noexcept {
    const std::lock_guard lock(mutex_);
    auto& generation = block(endpoint_->rank(), own.offset).generation;
    generation.store(own.generation + 1, std::memory_order_release);
    std::vector<int> peers;
    for (const auto& [peer, place] : others) {
      peers.push_back(peer);
      inbox(peer).forget(id);
    }
    endpoint_->publish(peers, std::as_bytes(std::span(&generation, 1)));
    endpoint_->wake(generation);
    retired_.push_back({own, std::move(others)});
  }
  /// Messages of a peer, sorted by communicator.
  Inbox& inbox(int peer) noexcept { return inboxes_[static_cast<std::size_t>(peer)]; }
  /// Bytes of a message to a peer that failed in the middle, still to be sent before the next one.
  std::uint64_t& owed_to(int peer) noexcept { return owed_[static_cast<std::size_t>(peer)]; }

  /// The block of a rank's first communicator, which all ranks of the job have.
  detail::Block& first_block(int peer) const noexcept { return block(peer, first_); }
  bool has_several_blocks() const noexcept { return several_blocks_.load(std::memory_order_relaxed); }
  detail::Block& block(int peer, std::size_t offset) const noexcept {
    return *std::launder(reinterpret_cast<detail::Block*>(endpoint_->window(peer) + offset));
  }

 private:
  struct Retired {
    detail::BlockPlace own;
    std::vector<std::pair<int, detail::BlockPlace>> others;
  };

  void show_to_all(const detail::Block& block) {
    std::vector<int> peers;
    for (int peer = 0; peer < endpoint_->size(); ++peer) {
      if (peer != endpoint_->rank()) peers.push_back(peer);
    }
    endpoint_->publish(peers, std::as_bytes(std::span(&block, 1)).first(offsetof(detail::Block, staging)));
  }
  void reclaim() {
    std::erase_if(retired_, [this](const Retired& it) {
      for (const auto& [peer, place] : it.others) {
        if (block(peer, place.offset).generation.load(std::memory_order_acquire) == place.generation) return false;
      }
      blocks_.give(it.own.offset);
      return true;
    });
  }

  std::shared_ptr<T> endpoint_;
  std::shared_ptr<Arena> arena_;
  std::mutex mutex_;
  detail::Extents blocks_;
  std::size_t first_ = 0;
  bool has_first_ = false;
  std::atomic<bool> several_blocks_{false};  // has there ever been more than one?
  std::size_t reserved_ = endpoint_->control().begin;
  std::vector<Retired> retired_;
  std::vector<std::uint64_t> owed_ = std::vector<std::uint64_t>(static_cast<std::size_t>(endpoint_->size()));
  std::vector<Inbox> inboxes_ = std::vector<Inbox>(static_cast<std::size_t>(endpoint_->size()));
};

}  // namespace tandem
