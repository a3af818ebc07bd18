// SPDX-License-Identifier: Apache-2.0
// The flight recorder: the last operations of one rank of one communicator, for errors and for a look from outside.
// Costs a few stores an operation; allocates once.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "tandem/comm/fingerprint.hpp"
#include "tandem/core/clock.hpp"

namespace tandem {

enum class Progress : std::uint8_t { begun, finished, failed };

struct Record {
  std::uint64_t sequence = 0;  // collectives count from 1 within the communicator; messages within the pair of ranks
  std::uint64_t begun_at = 0;  // ticks()
  Call call{};
  Progress progress = Progress::begun;
  int waits_for = -1;  // the rank for which it was waited last, if for long at all
};

/// Written by the thread that uses the communicator. Read by it with last(), and by at() from anywhere: another thread,
/// or a signal handler in the middle of begin().
///
/// A record is stored word by word with release, after `count_` has come to its ticket and before `count_` goes beyond
/// it. So who reads a word of a later record in the same slot and then `count_` sees that the slot was used again.
class Recorder {
 public:
  static constexpr std::size_t capacity = 1024;

  /// A ticket for what follows.
  std::uint64_t begin(std::uint64_t sequence, const Call& call) noexcept {
    const std::uint64_t ticket = count_.load(std::memory_order_relaxed);
    Slot& slot = slot_of(ticket);
    slot.state.store(0, std::memory_order_release);
    std::uint64_t words[Slot::words_used];
    const Entry entry{sequence, ticks(), call};
    std::memcpy(words, &entry, sizeof entry);
    for (std::size_t i = 0; i < Slot::words_used; ++i) slot.words[i].store(words[i], std::memory_order_release);
    count_.store(ticket + 1, std::memory_order_release);
    return ticket;
  }
  void waits(std::uint64_t ticket, int member) noexcept {
    mark(ticket, Progress::begun, static_cast<std::uint64_t>(member) + 1);
  }
  void finish(std::uint64_t ticket) noexcept { mark(ticket, Progress::finished, 0); }
  void fail(std::uint64_t ticket) noexcept {
    mark(ticket, Progress::failed, slot_of(ticket).state.load(std::memory_order_relaxed) >> 8);
  }

  /// Operations begun so far: tickets go from 0 up to this.
  std::uint64_t count() const noexcept { return count_.load(std::memory_order_acquire); }
  /// The record of a ticket that was given out, or nothing when its slot has been, or is being, used again.
  std::optional<Record> at(std::uint64_t ticket) const noexcept {
    const Record record = slot_of(ticket).read();
    if (count_.load(std::memory_order_relaxed) - ticket >= capacity) return std::nullopt;
    return record;
  }
  /// The last operations, oldest first, at most `capacity`.
  std::vector<Record> last() const {
    std::vector<Record> all;
    const std::uint64_t end = count();
    for (std::uint64_t i = end > capacity ? end - capacity : 0; i < end; ++i) all.push_back(slot_of(i).read());
    return all;
  }

 private:
  struct Entry {
    std::uint64_t sequence;
    std::uint64_t begun_at;
    Call call;
  };
  struct Slot {
    static_assert(std::is_trivially_copyable_v<Entry> && sizeof(Entry) % sizeof(std::uint64_t) == 0);
    static constexpr std::size_t words_used = sizeof(Entry) / sizeof(std::uint64_t);
    std::array<std::atomic<std::uint64_t>, words_used> words;
    std::atomic<std::uint64_t> state;  // (waits_for + 1) << 8 | progress

    Record read() const noexcept {
      std::uint64_t copy[words_used];
      for (std::size_t i = 0; i < words_used; ++i) copy[i] = words[i].load(std::memory_order_acquire);
      const std::uint64_t now = state.load(std::memory_order_acquire);
      Entry entry;
      std::memcpy(&entry, copy, sizeof entry);
      return {entry.sequence, entry.begun_at, entry.call, static_cast<Progress>(now & 0xff),
              static_cast<int>(now >> 8) - 1};
    }
  };

  Slot& slot_of(std::uint64_t ticket) const noexcept { return (*slots_)[ticket % capacity]; }
  void mark(std::uint64_t ticket, Progress progress, std::uint64_t waits_for) noexcept {
    if (count_.load(std::memory_order_relaxed) - ticket > capacity) return;
    slot_of(ticket).state.store(waits_for << 8 | static_cast<std::uint64_t>(progress), std::memory_order_release);
  }

  std::unique_ptr<std::array<Slot, capacity>> slots_ = std::make_unique<std::array<Slot, capacity>>();
  std::atomic<std::uint64_t> count_{0};
};

}  // namespace tandem
