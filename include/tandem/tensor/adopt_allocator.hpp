// SPDX-License-Identifier: Apache-2.0
// Lets all CPU tensors of a program lie in the arena, so that every collective on them goes Direct. Opt-in. Knows no
// collective.
#pragma once

#include <utility>

#include "tandem/comm/communicator.hpp"
#include "tandem/core/error.hpp"
#include "tandem/tensor/detail/arena_allocator.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem {

using AllocatorCounts = detail::PoolCounts;

/// Move-only. As long as it lives, new CPU tensors lie in the arena; afterwards they are allocated as before. Tensors
/// that were made in between stay valid, registered, and keep the arena mapped. Several may be nested, the last one
/// serves, and go in any order.
class [[nodiscard]] AdoptedAllocator {
 public:
  /// For adopt_allocator().
  explicit AdoptedAllocator(detail::ArenaPool& pool) noexcept : pool_(&pool) {}
  AdoptedAllocator(AdoptedAllocator&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)) {}
  AdoptedAllocator& operator=(AdoptedAllocator&& other) noexcept {
    std::swap(pool_, other.pool_);
    return *this;
  }
  ~AdoptedAllocator() {
    if (pool_ != nullptr) detail::ArenaAllocator::instance().retire(*pool_);
  }

  /// All zero once this was moved from.
  AllocatorCounts counts() const { return pool_ != nullptr ? pool_->counts() : AllocatorCounts{}; }
  /// Gives what is kept for later tensors back to the arena, for other sizes and other users of it. Happens by itself
  /// when the arena is full. Does nothing once this was moved from.
  void trim() {
    if (pool_ != nullptr) pool_->trim();
  }

 private:
  detail::ArenaPool* pool_;
};

/// From now on all CPU tensors of this process lie in the arena of `comm`, where they are 128-byte aligned: collectives
/// on plain tensors then take the direct path when the other ranks have adopted theirs too (a rank that has not only
/// costs speed). Tensors that were there before stay where they are: call it right after join, before the model is
/// made; the first time while no other thread allocates tensors (c10 sets an allocator without a lock). After that any
/// thread may.
///
/// When the arena is full (JoinOptions::arena_bytes; by default all memory of the host), the previous allocator serves
/// the request, and the notice callback hears of it once. After a failure of the communicator every tensor stays valid
/// with its content (see docs/decisions/0005_leaving_a_failed_communicator.md for what that costs, and for threads that
/// write meanwhile); new ones come from the previous allocator. A process that joins again adopts again. In a child
/// that fork() made, tensors of the parent are not mapped: exec there, or do without.
///
/// Throws Error(environment) when another library has installed a CPU allocator of higher priority, or after this one.
template <class T>
[[nodiscard]] AdoptedAllocator adopt_allocator(Communicator<T>& comm) {
  static_assert(T::has_windows,
                "tandem: adopt_allocator puts tensors where the other ranks can reach them, and this transport's ranks "
                "do not map each other's memory; leave the call out");
  return AdoptedAllocator(detail::ArenaAllocator::instance().adopt(comm.arena(), comm.protocol().notice()));
}

}  // namespace tandem
