// SPDX-License-Identifier: Apache-2.0
// Blocks of few sizes out of an arena, kept in free lists when they come back. Thread-safe. Knows no tensors, and
// nothing of who installs it.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tandem/comm/arena.hpp"
#include "tandem/core/bytes.hpp"
#include "tandem/core/error.hpp"
#include "tandem/transport/detail/fork_mark.hpp"
#include "tandem/transport/detail/private_memory.hpp"

namespace tandem::detail {

/// Four sizes between one power of two and the next, so that a block is at most a quarter larger than asked for.
struct BlockSizes {
  static constexpr std::size_t most_bytes = std::size_t{1} << 46;

  static constexpr std::size_t class_of(std::size_t bytes) noexcept {
    const std::size_t lines = divide_up(bytes, line_pair_bytes);
    if (lines <= 4) return lines - 1;
    const auto exponent = static_cast<std::size_t>(std::bit_width(lines - 1)) - 1;  // 2^exponent < lines
    const std::size_t step = std::size_t{1} << (exponent - 2);
    return 4 * (exponent - 1) + (lines - 1 - (std::size_t{1} << exponent)) / step;
  }
  static constexpr std::size_t bytes_of(std::size_t size_class) noexcept {
    if (size_class < 4) return (size_class + 1) * line_pair_bytes;
    const std::size_t exponent = size_class / 4 + 1;
    const std::size_t step = std::size_t{1} << (exponent - 2);
    return ((std::size_t{1} << exponent) + (size_class % 4 + 1) * step) * line_pair_bytes;
  }
  static constexpr std::size_t count = 160;
};
static_assert(BlockSizes::bytes_of(BlockSizes::class_of(1)) == 128);
static_assert(BlockSizes::bytes_of(BlockSizes::class_of(513)) == 640 && BlockSizes::class_of(513) == 4);
static_assert(BlockSizes::bytes_of(BlockSizes::class_of(1024)) == 1024 && BlockSizes::class_of(1024) == 7);
static_assert(BlockSizes::bytes_of(BlockSizes::class_of(1025)) == 1280 && BlockSizes::class_of(1025) == 8);
static_assert(BlockSizes::bytes_of(BlockSizes::class_of(BlockSizes::most_bytes)) == BlockSizes::most_bytes);
static_assert(BlockSizes::class_of(BlockSizes::most_bytes) < BlockSizes::count);

/// What a pool has done so far.
struct PoolCounts {
  std::uint64_t allocations = 0;   ///< served from the arena
  std::uint64_t fallbacks = 0;     ///< left to the previous allocator: the arena was full, or given up after a failure
  std::uint64_t blocks = 0;        ///< in use
  std::uint64_t bytes_in_use = 0;  ///< of the arena, for these; a block is up to a quarter larger than asked for
  std::uint64_t bytes_cached = 0;  ///< of the arena, kept for the next blocks of that size
};

/// Never destroyed: blocks may come back when the program's static objects go. It lets go of the arena when it is
/// retired and its last block has come back.
///
/// A block is known by its address alone. What is known of it lies in private memory, not before the block, where peers
/// can write: a byte for each place where a block can begin, real only where blocks are.
class ArenaPool {
 public:
  ArenaPool(std::shared_ptr<Arena> arena, std::function<void(const std::string&)> notice)
      : arena_(std::move(arena)),
        begin_(arena_->memory().data()),
        size_classes_(private_memory(divide_up(arena_->memory().size(), line_pair_bytes))),
        notice_(std::move(notice)) {
    end_.store(begin_ + arena_->memory().size(), std::memory_order_release);
  }

  bool owns(const void* pointer) const noexcept {
    return pointer >= begin_ && pointer < end_.load(std::memory_order_acquire);
  }
  /// Of at least `bytes` (not 0), 128-byte aligned; nullptr when somebody else has to serve it.
  void* take(std::size_t bytes) {
    if (mark_.forked()) return nullptr;  // the arena is not mapped here, and the lock may be the parent's
    std::function<void(const std::string&)> notice;
    void* const memory = take(bytes, notice);
    if (notice) {
      notice(
          "the arena is full, and further tensors lie in private memory, where collectives are slower; pass a larger "
          "JoinOptions::arena_bytes");
    }
    return memory;
  }
  void put(void* memory) noexcept {
    if (mark_.forked()) return;  // it is the parent's
    const std::lock_guard lock(mutex_);
    const std::size_t size_class = class_at(memory);
    --counts_.blocks;
    counts_.bytes_in_use -= BlockSizes::bytes_of(size_class);
    if (!retired_ && !arena_->detached() && keep(memory, size_class)) return;
    arena_->release(memory);
    let_go_when_empty();
  }
  void trim() noexcept {
    const std::lock_guard lock(mutex_);
    give_back_cached();
  }
  /// Serves nothing any more, and gives blocks back to the arena as they come.
  void retire() noexcept {
    if (mark_.forked()) return;
    const std::lock_guard lock(mutex_);
    retired_ = true;
    notice_ = nullptr;
    give_back_cached();
    let_go_when_empty();
  }
  PoolCounts counts() const {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  void* take(std::size_t bytes, std::function<void(const std::string&)>& notice) {
    const std::lock_guard lock(mutex_);
    if (retired_) return nullptr;
    if (arena_->detached()) {  // nobody reads from it any more
      give_back_cached();
      ++counts_.fallbacks;
      return nullptr;
    }
    const std::size_t size_class = bytes > BlockSizes::most_bytes ? BlockSizes::count : BlockSizes::class_of(bytes);
    void* const memory = size_class < BlockSizes::count ? block(size_class) : nullptr;
    if (memory == nullptr) {
      ++counts_.fallbacks;
      notice = std::exchange(notice_, nullptr);
      return nullptr;
    }
    ++counts_.allocations;
    ++counts_.blocks;
    counts_.bytes_in_use += BlockSizes::bytes_of(size_class);
    return memory;
  }
  void* block(std::size_t size_class) {
    auto& free = free_[size_class];
    if (!free.empty()) {
      void* const memory = free.back();
      free.pop_back();
      counts_.bytes_cached -= BlockSizes::bytes_of(size_class);
      return memory;
    }
    void* memory = fresh(size_class);
    if (memory == nullptr && counts_.bytes_cached != 0) {  // everything that is kept may make room
      give_back_cached();
      memory = fresh(size_class);
    }
    if (memory != nullptr) class_at(memory) = static_cast<std::uint8_t>(size_class);
    return memory;
  }
  void* fresh(std::size_t size_class) {
    try {
      return arena_->allocate(BlockSizes::bytes_of(size_class));
    } catch (const Error&) {
      return nullptr;
    }
  }
  bool keep(void* memory, std::size_t size_class) noexcept {
    try {
      free_[size_class].push_back(memory);
    } catch (...) {  // no memory for the list
      return false;
    }
    counts_.bytes_cached += BlockSizes::bytes_of(size_class);
    return true;
  }
  void give_back_cached() noexcept {
    for (auto& free : free_) {
      for (void* memory : free) arena_->release(memory);
      free.clear();
    }
    counts_.bytes_cached = 0;
  }
  void let_go_when_empty() noexcept {
    if (!retired_ || counts_.blocks != 0 || !arena_) return;
    end_.store(begin_, std::memory_order_release);  // the addresses may become somebody else's
    arena_.reset();
    size_classes_.reset();
  }
  std::uint8_t& class_at(const void* memory) const noexcept {
    const auto place = static_cast<std::size_t>(static_cast<const std::byte*>(memory) - begin_) / line_pair_bytes;
    return reinterpret_cast<std::uint8_t*>(size_classes_.get())[place];
  }

  ForkMark mark_;
  mutable std::mutex mutex_;
  std::shared_ptr<Arena> arena_;
  const std::byte* begin_;
  std::atomic<const std::byte*> end_{nullptr};
  PrivateMemory size_classes_;
  std::function<void(const std::string&)> notice_;
  std::array<std::vector<void*>, BlockSizes::count> free_{};
  bool retired_ = false;
  PoolCounts counts_;
};

}  // namespace tandem::detail
