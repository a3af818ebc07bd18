// SPDX-License-Identifier: Apache-2.0
// Remembers that a communicator failed, and why: after one failure every later call on it, and on what was split from
// it, throws at once with the first cause.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "tandem/core/error.hpp"

namespace tandem {

class Poison {
 public:
  /// `members` are the endpoint numbers of the communicator's ranks; `tell` publishes a failure to the peers.
  Poison(std::vector<int> members, std::function<void(const Error&)> tell)
      : members_(std::move(members)), tell_(std::move(tell)) {}

  /// The first cause stays; later ones are ignored. Reaches what was split from here: all of it, or, when one endpoint
  /// is to blame, only the communicators that contain it. True for the first.
  bool set(const Error& cause, std::optional<int> endpoint = std::nullopt) {
    std::vector<std::shared_ptr<Poison>> below;
    {
      const std::lock_guard lock(mutex_);
      if (set_.load(std::memory_order_relaxed)) return false;
      cause_.emplace(cause);
      set_.store(true, std::memory_order_release);
      if (tell_) tell_(cause);
      for (const auto& child : children_) {
        if (auto alive = child.lock()) below.push_back(std::move(alive));
      }
    }
    for (const auto& child : below) {
      if (!endpoint || std::ranges::find(child->members_, *endpoint) != child->members_.end()) child->set(cause, endpoint);
    }
    return true;
  }
  /// Before the communicator goes: nothing is left to publish to.
  void mute() {
    const std::lock_guard lock(mutex_);
    tell_ = nullptr;
  }
  bool is_set() const noexcept { return set_.load(std::memory_order_acquire); }
  /// Only when is_set().
  const Error& cause() const noexcept { return *cause_; }

  void adopt(const std::shared_ptr<Poison>& child) {
    const std::lock_guard lock(mutex_);
    std::erase_if(children_, [](const auto& it) { return it.expired(); });
    children_.push_back(child);
  }

 private:
  std::vector<int> members_;
  std::function<void(const Error&)> tell_;
  std::atomic<bool> set_{false};
  std::mutex mutex_;
  std::optional<Error> cause_;
  std::vector<std::weak_ptr<Poison>> children_;
};

}  // namespace tandem
