// SPDX-License-Identifier: Apache-2.0
// The flag block that every rank of a communicator owns in its window: a ring of lines on which it announces its
// operations, and room for small messages. Knows the layout and who writes what; decides nothing.
//
// One writer each: a block is written by its owner alone and read by all (but for staging and pieces that a lone reader
// is through with: see Staging::release). A line is filled, then published by storing
// its operation's sequence number with release; a reader that sees that number with acquire sees the whole line.
// A line is used again `line_count` operations later. That is safe without any further flag because at most
// max_pending operations of a rank are unfinished at a time and each operation waits for the posts of all ranks:
// when a rank posts s it has finished s - max_pending, so every rank has posted that one and has thus finished
// s - 2 * max_pending and everything before it. Hence line_count >= 2 * max_pending.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "tandem/comm/fingerprint.hpp"
#include "tandem/core/bytes.hpp"
#include "tandem/core/error.hpp"

namespace tandem::detail {

/// Two cache lines: what is announced, and what the owner has done of it. Peers spin on either.
struct alignas(line_pair_bytes) Line {
  std::atomic<std::uint64_t> sequence;  // the operation this line speaks of; written last
  std::uint64_t input;                  // see Place
  std::uint64_t output;
  Fingerprint fingerprint;
  std::byte payload[8];  // a message of up to 8 bytes rides in the flag's own cache line
  alignas(
      cache_line_bytes) std::atomic<std::uint64_t> done;  // sequence of the operation the owner has done its part of
  std::atomic<std::uint64_t> half;                        // and of one that it has done half of its part of
};
static_assert(sizeof(Line) == line_pair_bytes && alignof(Line) == line_pair_bytes);

/// Words in a block, cut to their place.
template <std::size_t Size>
void write_text(char (&to)[Size], const std::string& text) noexcept {
  const std::size_t length = std::min(text.size(), Size - 1);
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}
template <std::size_t Size>
std::string read_text(const char (&from)[Size]) {
  return std::string(from, ::strnlen(from, Size));
}

struct Block {
  static constexpr std::size_t line_count = 64;
  static constexpr std::uint64_t max_pending = line_count / 2;
  /// Messages up to this size are copied into the block and read from there by every rank: one synchronisation
  /// instead of two, and it does not matter where the buffers lie.
  static constexpr std::size_t eager_bytes = 8U << 10;
  /// Longer ones that several ranks read pass in pieces, so many of them under way at a time; together they stay in a
  /// processor's own cache.
  static constexpr std::size_t piece_bytes = 16U << 10;
  static constexpr std::size_t piece_count = 8;
  static constexpr std::size_t site_bytes = 256;
  /// Room for both call sites with long paths; a peer that adopts a failure repeats these words.
  static constexpr std::size_t cause_bytes = 1280;
  /// Of culprit, kind and cause, which follow `failed`.
  static constexpr std::size_t failure_bytes = sizeof(std::int32_t) + sizeof(std::uint32_t) + cause_bytes;

  Line lines[line_count];

  // Counted up when the owner is through with this block for good; survives the block's next use. A block is used
  // again only when the owners of all blocks of that communicator are through: a slow peer may still be reading it.
  alignas(line_pair_bytes) std::atomic<std::uint64_t> generation;

  // Written before the owner's first post: may it read the memory of the others that is in no window? (bool)
  std::uint64_t reads_others;

  // For whom the owner waits (member + 1), below a count that goes up as long as it does: see blame.hpp.
  alignas(line_pair_bytes) std::atomic<std::uint64_t> waits_for;

  // In a rank's first block alone: what it waits in, whichever communicator that is of; see whereabouts.hpp.
  static constexpr std::size_t word_count = 48;
  alignas(line_pair_bytes) std::atomic<std::uint64_t> waits_beats;
  std::array<std::atomic<std::uint64_t>, word_count> waits_in;

  // Written once, when the owner gives the communicator up.
  alignas(line_pair_bytes) std::atomic<std::uint64_t> failed;
  std::int32_t culprit;
  std::uint32_t kind;
  char cause[cause_bytes];

  // The owner's call site in words, only written when fingerprints differ.
  alignas(line_pair_bytes) std::atomic<std::uint64_t> explained;  // sequence it belongs to
  char site[site_bytes];

  // Two, used in turn: a rank that fills one has seen all ranks post their use of the other, so all are through with
  // this one's previous content.
  alignas(line_pair_bytes) std::byte staging[2][eager_bytes];

  // How many pieces of long messages the owner has put in, and taken out of all others' buffers; see bounce.hpp.
  alignas(line_pair_bytes) std::atomic<std::uint64_t> filled;
  alignas(line_pair_bytes) std::atomic<std::uint64_t> taken;
  alignas(line_pair_bytes) std::byte pieces[piece_count][piece_bytes];

  Line& line(std::uint64_t sequence) noexcept { return lines[sequence % line_count]; }

  /// Tells the peers that the owner gives the communicator up. The first cause stays.
  void publish_failure(const Error& error) noexcept {
    if (failed.load(std::memory_order_relaxed) != 0) return;
    culprit = error.peer();
    kind = static_cast<std::uint32_t>(error.kind());
    write_text(cause, error.what());
    failed.store(1, std::memory_order_release);
  }

  /// As new for another communicator; all but the generation.
  void clear() noexcept {
    for (Line& it : lines) {
      it.sequence.store(0, std::memory_order_relaxed);
      it.done.store(0, std::memory_order_relaxed);
      it.half.store(0, std::memory_order_relaxed);
    }
    waits_for.store(0, std::memory_order_relaxed);
    filled.store(0, std::memory_order_relaxed);
    taken.store(0, std::memory_order_relaxed);
    failed.store(0, std::memory_order_relaxed);
    explained.store(0, std::memory_order_relaxed);
  }
};

/// Where a member's block lies.
struct BlockPlace {
  std::uint64_t offset = 0;
  std::uint64_t generation = 0;
};

}  // namespace tandem::detail
