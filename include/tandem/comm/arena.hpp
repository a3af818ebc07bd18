// SPDX-License-Identifier: Apache-2.0
// Allocates memory in this process's window, which all ranks of the host map: buffers here are "registered", and
// collectives on them move the least bytes possible. Belongs to the process's endpoint, not to one communicator.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tandem/comm/detail/extents.hpp"
#include "tandem/core/bytes.hpp"
#include "tandem/core/error.hpp"

namespace tandem {

/// Thread-safe. Whoever holds the arena keeps the memory mapped, also after the communicator is gone.
class Arena {
 public:
  /// Pages of a range are made real through `reserve`, and go to the system through `give_back`; `detach` makes a span
  /// private, keeping the given ranges.
  Arena(std::byte* base, Range heap, std::function<void(Range)> reserve,
        std::function<bool(Range, const std::vector<Range>&)> detach, std::function<void(Range)> give_back)
      : base_(base),
        heap_(heap),
        extents_(heap, line_pair_bytes),
        reserve_(std::move(reserve)),
        detach_(std::move(detach)),
        give_back_(std::move(give_back)) {
    reserved_.store(heap.begin, std::memory_order_relaxed);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// At least `bytes`, 128-byte aligned (page-aligned from one page up). The content is unspecified.
  /// Throws Error(system) when the host has no memory left for it, before anything is touched.
  void* allocate(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto range = extents_.take(bytes, bytes >= page_bytes ? page_bytes : line_pair_bytes);
    if (!range) {
      throw Error(ErrorKind::system, "tandem: the arena of " + format_bytes(heap_.size()) +
                                         " has no room for another " + format_bytes(bytes) +
                                         "; pass a larger JoinOptions::arena_bytes");
    }
    try {
      const std::size_t reserved = reserved_.load(std::memory_order_relaxed);
      if (range->end > reserved) {
        if (detached_.load(std::memory_order_relaxed)) {
          throw Error(ErrorKind::poisoned, "tandem: the arena was given up after a failure; join again for a new one");
        }
        reserved_.store(make_real(reserved, range->end, heap_.end), std::memory_order_relaxed);
      }
      fill_holes(*range);
    } catch (...) {
      extents_.give(range->begin);
      throw;
    }
    most_in_use_ = std::max(most_in_use_, extents_.in_use());
    return base_ + range->begin;
  }

  /// Gives back what allocate() returned; nullptr does nothing.
  void release(void* pointer) noexcept {
    if (pointer == nullptr) return;
    const std::lock_guard lock(mutex_);
    extents_.give(static_cast<std::size_t>(static_cast<std::byte*>(pointer) - base_));
  }

  /// Gives pages in which nothing lies back to the system: for once a large need is over that does not come back. What
  /// is allocated there later takes pages anew, with the costs of a first use.
  void trim() {
    const std::lock_guard lock(mutex_);
    if (detached_.load(std::memory_order_relaxed)) return;
    std::vector<Range> holes;
    for (const Range& free : extents_.free_before(reserved_.load(std::memory_order_relaxed))) {
      const Range pages{round_up(free.begin, page_bytes), free.end / page_bytes * page_bytes};
      if (pages.begin < pages.end) holes.push_back(pages);
    }
    holes_ = std::move(holes);  // the old ones are free, so they are in it
    for (const Range& hole : holes_) give_back_(hole);
  }

  /// In bytes.
  struct Use {
    std::size_t now = 0;   ///< what is allocated, each allocation rounded up to 128
    std::size_t most = 0;  ///< the most that this was since watch_use(), or ever
    std::size_t real = 0;  ///< the pages that the arena has, in use or kept for the next allocation
  };
  Use use() const {
    const std::lock_guard lock(mutex_);
    std::size_t real = reserved_.load(std::memory_order_relaxed) - heap_.begin;
    for (const Range& hole : holes_) real -= hole.size();
    return {extents_.in_use(), most_in_use_, real};
  }
  void watch_use() {
    const std::lock_guard lock(mutex_);
    most_in_use_ = extents_.in_use();
  }

  /// The addresses out of which allocate() serves; most of them are not real yet.
  std::span<std::byte> memory() const noexcept { return {base_ + heap_.begin, heap_.size()}; }

  static constexpr std::uint64_t private_memory = ~std::uint64_t{0};

  /// Where [pointer, pointer + bytes) lies in the window, for peers; private_memory when it does not lie in it.
  std::uint64_t offset_of(const void* pointer, std::size_t bytes) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    const auto begin = reinterpret_cast<std::uintptr_t>(base_) + heap_.begin;
    const auto end = reinterpret_cast<std::uintptr_t>(base_) + reserved_.load(std::memory_order_relaxed);
    if (address < begin || address > end || bytes > end - address || detached_.load(std::memory_order_relaxed)) {
      return private_memory;
    }
    return address - reinterpret_cast<std::uintptr_t>(base_);
  }
  bool contains(const void* pointer, std::size_t bytes) const noexcept {
    return offset_of(pointer, bytes) != private_memory;
  }

  /// After a failure: the memory becomes this process's own, same addresses, same content; nothing in it is
  /// registered any more. Idempotent. False when memory was too short for the copy: nothing is registered all the
  /// same, but a peer that still runs an old operation can reach the memory.
  bool detach() noexcept {
    const std::lock_guard lock(mutex_);
    if (detached_.exchange(true)) return true;
    const std::size_t reserved = reserved_.load(std::memory_order_relaxed);
    try {
      return detach_({heap_.begin, reserved}, extents_.used());
    } catch (const std::bad_alloc&) {
      return false;
    }
  }
  bool detached() const noexcept { return detached_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t growth = 2U << 20;

  /// From `from` at least to `least`; where it ended, at most `limit`. Few large steps: every step is a system call,
  /// and pages are zeroed by the kernel in it.
  std::size_t make_real(std::size_t from, std::size_t least, std::size_t limit) {
    std::size_t to = std::min(limit, round_up(std::max(least, from + growth), page_bytes));
    try {
      reserve_({from, to});
    } catch (const Error&) {
      if (to == least) throw;
      to = least;  // a large step failed; perhaps the exact need still fits
      reserve_({from, to});
    }
    return to;
  }
  /// Makes real what trim() gave away of `range`. After a failure the memory is private, and real as it is touched.
  void fill_holes(Range range) {
    if (detached_.load(std::memory_order_relaxed)) return;
    for (std::size_t i = 0; i < holes_.size();) {
      const Range hole = holes_[i];
      const Range part = intersect(hole, {range.begin / page_bytes * page_bytes, round_up(range.end, page_bytes)});
      if (part.empty()) {
        ++i;
        continue;
      }
      holes_.reserve(holes_.size() + 1);  // so that nothing below throws once pages are there
      const std::size_t end = make_real(part.begin, part.end, hole.end);
      holes_.erase(holes_.begin() + static_cast<std::ptrdiff_t>(i));
      if (hole.begin < part.begin)
        holes_.insert(holes_.begin() + static_cast<std::ptrdiff_t>(i++), {hole.begin, part.begin});
      if (end < hole.end) holes_.insert(holes_.begin() + static_cast<std::ptrdiff_t>(i++), {end, hole.end});
    }
  }

  std::byte* base_;
  Range heap_;
  mutable std::mutex mutex_;
  detail::Extents extents_;
  std::function<void(Range)> reserve_;
  std::function<bool(Range, const std::vector<Range>&)> detach_;
  std::function<void(Range)> give_back_;
  std::size_t most_in_use_ = 0;
  std::vector<Range> holes_;  // free, whole pages, and not real
  std::atomic<std::size_t> reserved_;
  std::atomic<bool> detached_{false};
};

/// A registered array of `count` elements; owns its memory in the arena. The content is unspecified at first.
template <class T>
class ArenaArray {
 public:
  ArenaArray(std::shared_ptr<Arena> arena, std::size_t count)
      : arena_(std::move(arena)),
        // A product that would wrap asks for more than any arena has.
        data_(static_cast<T*>(arena_->allocate(count > SIZE_MAX / sizeof(T) ? SIZE_MAX : count * sizeof(T)))),
        count_(count) {}
  ArenaArray(ArenaArray&& other) noexcept
      : arena_(std::move(other.arena_)),
        data_(std::exchange(other.data_, nullptr)),
        count_(std::exchange(other.count_, 0)) {}
  ArenaArray& operator=(ArenaArray&& other) noexcept {
    std::swap(arena_, other.arena_);
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~ArenaArray() {
    if (data_ != nullptr) arena_->release(data_);
  }
  T* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return count_; }
  T& operator[](std::size_t i) const noexcept { return data_[i]; }
  T* begin() const noexcept { return data_; }
  T* end() const noexcept { return data_ + count_; }

 private:
  std::shared_ptr<Arena> arena_;
  T* data_ = nullptr;
  std::size_t count_ = 0;
};

}  // namespace tandem
