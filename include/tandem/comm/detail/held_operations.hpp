// SPDX-License-Identifier: Apache-2.0
// The operations of a communicator that stay unfinished while others are begun, oldest first. Knows how to ask each to
// go on, not what it is.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "tandem/comm/operation.hpp"
#include "tandem/core/deadline.hpp"

namespace tandem::detail {

/// An operation that was begun and is looked after by a Work.
class HeldOperation {
 public:
  HeldOperation() = default;
  HeldOperation(const HeldOperation&) = delete;
  HeldOperation& operator=(const HeldOperation&) = delete;
  virtual ~HeldOperation() = default;

  /// Does what can be done without waiting. True when nothing is left to do.
  virtual bool poll() = 0;
  /// Waits until nothing is left to do, at most `timeout` where that is given.
  virtual void wait(std::optional<std::chrono::nanoseconds> timeout) = 0;
  /// Goes as far as it can without the others' results, through the channels if that is its way, and then has itself
  /// marked or removed; within what `waiting`, which is newer, may still take.
  virtual void advance(const Operation& waiting) = 0;
  /// The communicator goes.
  virtual void orphan() noexcept = 0;
};

class HeldOperations {
 public:
  /// In ascending order of sequence numbers.
  void add(std::uint64_t sequence, HeldOperation& operation) { held_.push_back({sequence, &operation, false}); }
  void remove(std::uint64_t sequence) noexcept {
    std::erase_if(held_, [&](const Held& it) { return it.sequence == sequence; });
  }
  void mark_advanced(std::uint64_t sequence) noexcept {
    for (Held& it : held_) {
      if (it.sequence == sequence) it.advanced = true;
    }
  }

  bool empty() const noexcept { return held_.empty(); }
  std::uint64_t oldest() const noexcept { return held_.front().sequence; }
  /// Brings everything older than `waiting` forward, in order.
  void advance_before(Operation& waiting) {
    // An operation changes this list, so each look begins anew.
    while (const Held* const it = first_before(waiting.sequence)) {
      if (!waiting.deadline) waiting.deadline = Deadline::after(waiting.timeout);
      it->operation->advance(waiting);
    }
  }
  void orphan_all() noexcept {
    while (!held_.empty()) {
      HeldOperation* const last = held_.back().operation;
      held_.pop_back();
      last->orphan();
    }
  }

 private:
  struct Held {
    std::uint64_t sequence;
    HeldOperation* operation;
    bool advanced;
  };
  const Held* first_before(std::uint64_t sequence) const noexcept {
    for (const Held& it : held_) {
      if (it.sequence >= sequence) break;
      if (!it.advanced) return &it;
    }
    return nullptr;
  }
  std::vector<Held> held_;
};

}  // namespace tandem::detail
