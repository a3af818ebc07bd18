// SPDX-License-Identifier: Apache-2.0
// A byte stream from one writer to one reader through a ring of slots in shared memory. Lock-free; the reader may look
// into a slot in place, so a reduction reads straight out of it. Knows neither processes nor messages.
//
// Who writes what:
//   head, lengths  only the writer; `head` is published with release after the slot and its length are written, and
//                  read with acquire by the reader: what it sees below head is complete.
//   tail           only the reader; published with release after it has read the slot, read with acquire by the
//                  writer: a slot below tail + slots is free to be written again.
//   slots          the writer, up to the release of head; then the reader, which stores to each line once it has read
//                  it (see give_lines_back), up to the release of tail: the two never write at the same time.
// Each end keeps its own copy of its own counter and the last value seen of the other's, so that an end touches the
// other's line only when its copy says full or empty. Counters are 64-bit and monotone: they never wrap in practice,
// and slot numbers are taken modulo a power of two, so wrapping would still be right.
// The reader checks every length against the slot size: a peer that scribbles over it cannot make it read outside.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "tandem/core/bytes.hpp"
#include "tandem/core/copy.hpp"

namespace tandem::detail {

inline constexpr std::size_t ring_slots = 8;

struct RingControl {
  alignas(line_pair_bytes) std::atomic<std::uint64_t> head;
  std::uint32_t lengths[ring_slots];  // in head's own cache line: one transfer tells both
  alignas(line_pair_bytes) std::atomic<std::uint64_t> tail;
};
static_assert(sizeof(RingControl) == 2 * line_pair_bytes);
static_assert((ring_slots & (ring_slots - 1)) == 0, "slot numbers are counters modulo a power of two");
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// Bytes of shared memory that a ring with slots of `slot_bytes` takes.
constexpr std::size_t ring_footprint(std::size_t slot_bytes) noexcept {
  return sizeof(RingControl) + ring_slots * slot_bytes;
}

/// The writing end. One thread at a time.
class RingWriter {
 public:
  RingWriter() = default;
  RingWriter(std::byte* memory, std::size_t slot_bytes, std::uint64_t start = 0) noexcept
      : control_(reinterpret_cast<RingControl*>(memory)),
        slots_(memory + sizeof(RingControl)),
        slot_bytes_(slot_bytes),
        head_(start),
        tail_seen_(start) {}

  std::size_t slot_bytes() const noexcept { return slot_bytes_; }

  /// The next free slot to write into, or an empty span when the ring is full.
  std::span<std::byte> reserve() noexcept {
    if (head_ - tail_seen_ == ring_slots) {
      tail_seen_ = control_->tail.load(std::memory_order_acquire);
      if (head_ - tail_seen_ == ring_slots) return {};
    }
    return {slots_ + (head_ % ring_slots) * slot_bytes_, slot_bytes_};
  }
  /// Publishes the first `bytes` of the slot that reserve() gave; 0 < bytes <= slot_bytes().
  void commit(std::size_t bytes) noexcept {
    control_->lengths[head_ % ring_slots] = static_cast<std::uint32_t>(bytes);
    control_->head.store(++head_, std::memory_order_release);
  }

 private:
  RingControl* control_ = nullptr;
  std::byte* slots_ = nullptr;
  std::size_t slot_bytes_ = 0;
  std::uint64_t head_ = 0;
  std::uint64_t tail_seen_ = 0;
};

/// The reading end. One thread at a time.
class RingReader {
 public:
  RingReader() = default;
  RingReader(std::byte* memory, std::size_t slot_bytes, std::uint64_t start = 0) noexcept
      : control_(reinterpret_cast<RingControl*>(memory)),
        slots_(memory + sizeof(RingControl)),
        slot_bytes_(slot_bytes),
        tail_(start),
        head_seen_(start) {}

  /// What is unread of the oldest slot, in place; empty when nothing has arrived. Stays valid until consumed.
  std::span<const std::byte> peek() noexcept {
    if (tail_ == head_seen_) {
      head_seen_ = control_->head.load(std::memory_order_acquire);
      if (tail_ == head_seen_) return {};
    }
    const std::size_t length = std::min<std::size_t>(control_->lengths[tail_ % ring_slots], slot_bytes_);
    return {slots_ + (tail_ % ring_slots) * slot_bytes_ + used_, length - std::min(length, used_)};
  }
  /// Frees the first `bytes` of what peek() showed, and gives its cache lines back: see give_lines_back.
  void consume(std::size_t bytes) noexcept {
    give_lines_back(slots_ + (tail_ % ring_slots) * slot_bytes_ + used_, bytes);
    used_ += bytes;
    if (used_ >= std::min<std::size_t>(control_->lengths[tail_ % ring_slots], slot_bytes_)) {
      used_ = 0;
      control_->tail.store(++tail_, std::memory_order_release);
    }
  }

 private:
  RingControl* control_ = nullptr;
  std::byte* slots_ = nullptr;
  std::size_t slot_bytes_ = 0;
  std::uint64_t tail_ = 0;
  std::uint64_t head_seen_ = 0;
  std::size_t used_ = 0;  // bytes of the oldest slot already consumed
};

}  // namespace tandem::detail
