// SPDX-License-Identifier: Apache-2.0
// Remembers that a communicator failed, and why: after one failure every later call on it, and on what was split from
// it, throws at once with the first cause.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tandem/core/error.hpp"

namespace tandem {

/// How a failure's words begin in what was split from the communicator that failed: those behind count ranks as that
/// one does, while Error::rank() and peer() count as the own one.
inline constexpr std::string_view handed_down = "the communicator it was split from failed before: ";

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
      if (endpoint && std::ranges::find(child->members_, *endpoint) == child->members_.end()) continue;
      child->set(Error(cause.kind(), words_below(cause), child->rank_of(cause.rank(), members_),
                       child->rank_of(cause.peer(), members_), cause.verb()),
                 endpoint);
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
  static std::string words_below(const Error& cause) {
    const std::string_view words = detail::words_of(cause);
    return std::string("tandem: ").append(words.starts_with(handed_down) ? "" : handed_down).append(words);
  }
  /// The rank here of the process that is `rank` in a communicator of these members; -1 when it is not in here.
  int rank_of(int rank, const std::vector<int>& members) const {
    if (rank < 0 || static_cast<std::size_t>(rank) >= members.size()) return -1;
    const auto found = std::ranges::find(members_, members[static_cast<std::size_t>(rank)]);
    return found == members_.end() ? -1 : static_cast<int>(found - members_.begin());
  }

  std::vector<int> members_;
  std::function<void(const Error&)> tell_;
  std::atomic<bool> set_{false};
  std::mutex mutex_;
  std::optional<Error> cause_;
  std::vector<std::weak_ptr<Poison>> children_;
};

}  // namespace tandem
