// SPDX-License-Identifier: Apache-2.0
// The operations of a communicator that stay unfinished while others are begun, oldest first. Knows who looks after
// each, not what it is.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem::detail {

/// advance(owner) must bring an operation as far as it can go without the others' results, through the channels if that
/// is its way, and then mark or remove it here.
class HeldOperations {
 public:
  using Advance = void (*)(void* owner);

  /// In ascending order of sequence numbers.
  void add(std::uint64_t sequence, void* owner, Advance advance) { held_.push_back({sequence, owner, advance, false}); }
  void remove(std::uint64_t sequence) noexcept {
    std::erase_if(held_, [&](const Held& it) { return it.sequence == sequence; });
  }
  void owner_moved(std::uint64_t sequence, void* owner) noexcept {
    for (Held& it : held_) {
      if (it.sequence == sequence) it.owner = owner;
    }
  }
  void mark_advanced(std::uint64_t sequence) noexcept {
    for (Held& it : held_) {
      if (it.sequence == sequence) it.advanced = true;
    }
  }

  bool empty() const noexcept { return held_.empty(); }
  std::uint64_t oldest() const noexcept { return held_.front().sequence; }
  /// Brings everything older than `sequence` forward, in order.
  void advance_before(std::uint64_t sequence) {
    // An owner changes this list, so each look begins anew.
    while (const Held* const it = first_before(sequence)) it->advance(it->owner);
  }

 private:
  struct Held {
    std::uint64_t sequence;
    void* owner;
    Advance advance;
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
