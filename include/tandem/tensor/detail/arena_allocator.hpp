// SPDX-License-Identifier: Apache-2.0
// The CPU allocator that libtorch is given: asks the pool that was adopted last, and the allocator that was there
// before when there is none or it cannot serve. Knows no communicator.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "tandem/comm/arena.hpp"
#include "tandem/core/error.hpp"
#include "tandem/tensor/detail/arena_pool.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem::detail {

/// Once installed it stays, also when no pool is adopted any more. Libraries inside libtorch (oneDNN) take memory with
/// GetCPUAllocator()->raw_allocate and give it back, at any later time, with GetCPUAllocator()->raw_deallocate: whoever
/// is installed then must know every address of whoever was before. For the same reason blocks have no context but
/// their address.
class ArenaAllocator final : public c10::Allocator {
 public:
  static ArenaAllocator& instance() {
    static auto& only = *new ArenaAllocator();  // never destroyed: see ArenaPool
    return only;
  }

  ArenaPool& adopt(std::shared_ptr<Arena> arena, std::function<void(const std::string&)> notice) {
    const std::lock_guard lock(mutex_);
    install();
    auto link = std::make_unique<Link>(std::move(arena), std::move(notice), newest_.load(std::memory_order_relaxed));
    newest_.store(link.get(), std::memory_order_release);
    active_.store(&link->pool, std::memory_order_release);
    return link.release()->pool;
  }
  /// The one adopted last of those that are left serves from now on.
  void retire(ArenaPool& pool) noexcept {
    pool.retire();
    const std::lock_guard lock(mutex_);
    ArenaPool* left = nullptr;
    for (Link* it = newest_.load(std::memory_order_relaxed); it != nullptr; it = it->older) {
      if (&it->pool == &pool) it->retired = true;
      if (!it->retired && left == nullptr) left = &it->pool;
    }
    active_.store(left, std::memory_order_release);
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    ArenaPool* const pool = active_.load(std::memory_order_acquire);
    void* const memory = pool != nullptr && bytes != 0 ? pool->take(bytes) : nullptr;
    if (memory == nullptr) return previous_->allocate(bytes);
    c10::profiledCPUMemoryReporter().New(memory, bytes);
    return {memory, memory, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  // Above the allocators of libtorch itself (0), below what a program may want to install over everything.
  static constexpr std::uint8_t priority = 100;

  /// All pools that ever were, newest first; only ever grows, at its head, so it is read without a lock.
  struct Link {
    Link(std::shared_ptr<Arena> arena, std::function<void(const std::string&)> notice, Link* older_)
        : pool(std::move(arena), std::move(notice)), older(older_) {}
    ArenaPool pool;
    Link* older;
    bool retired = false;
  };

  void install() {
    c10::Allocator* const current = c10::GetAllocator(c10::kCPU);
    if (current == this) return;
    if (previous_ == nullptr) {
      previous_ = current;
      c10::SetAllocator(c10::kCPU, this, priority);
      if (c10::GetAllocator(c10::kCPU) == this) return;
      previous_ = nullptr;
    }
    throw Error(ErrorKind::environment,
                "tandem: adopt_allocator: another library has installed a CPU allocator, with a priority above " +
                    std::to_string(priority) + " or after this one");
  }
  /// The deleter of every block, and of what raw_deallocate gets.
  static void release(void* memory) {
    if (memory == nullptr) return;
    const ArenaAllocator& self = instance();
    for (Link* it = self.newest_.load(std::memory_order_acquire); it != nullptr; it = it->older) {
      if (!it->pool.owns(memory)) continue;
      c10::profiledCPUMemoryReporter().Delete(memory);
      return it->pool.put(memory);
    }
    if (const auto deleter = self.previous_->raw_deleter()) deleter(memory);
  }

  std::mutex mutex_;
  c10::Allocator* previous_ = nullptr;
  std::atomic<Link*> newest_{nullptr};
  std::atomic<ArenaPool*> active_{nullptr};
};

}  // namespace tandem::detail
