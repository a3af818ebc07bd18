// SPDX-License-Identifier: Apache-2.0
// The order of addition: which rank's element comes first at each index of a buffer. Knows counts and ranks, never
// data; the same table serves every algorithm and transport, which is why all of them give the same bits.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tandem/core/bytes.hpp"
#include "tandem/core/type_name.hpp"

namespace tandem {

/// A run of elements that are folded alike: x[first], then x[first-1] + acc, x[first-2] + acc, ... (ranks modulo N).
struct Piece {
  Range range;
  int first = 0;
  friend constexpr bool operator==(const Piece&, const Piece&) = default;
};

/// A buffer of `count` elements cut into one chunk per rank, equal but for the last non-empty one; late chunks may be
/// empty. Chunk c starts its fold at rank c - 1, so that on a ring it ends with its owner, rank c.
class ChunkTable {
 public:
  /// ranks >= 1, and ranks * chunk_elements >= count.
  constexpr ChunkTable(std::size_t count, std::size_t chunk_elements, int ranks) noexcept
      : count_(count), chunk_elements_(chunk_elements), ranks_(ranks) {}

  constexpr std::size_t count() const noexcept { return count_; }
  constexpr int ranks() const noexcept { return ranks_; }

  constexpr Range chunk(int c) const noexcept {
    const std::size_t begin = std::min(count_, static_cast<std::size_t>(c) * chunk_elements_);
    return {begin, std::min(count_, begin + chunk_elements_)};
  }
  /// The chunk in which an element lies; index < count().
  constexpr int chunk_of(std::size_t index) const noexcept { return static_cast<int>(index / chunk_elements_); }
  /// The rank whose element starts chunk c's fold.
  constexpr int first_of(int c) const noexcept { return c == 0 ? ranks_ - 1 : c - 1; }

  friend constexpr bool operator==(const ChunkTable&, const ChunkTable&) = default;

 private:
  std::size_t count_;
  std::size_t chunk_elements_;
  int ranks_;
};

/// An order policy: from a buffer's size and the number of ranks alone, the table that every rank then agrees on.
template <class O>
concept Order = requires(std::size_t count, std::size_t element_bytes, int ranks) {
  { O::table(count, element_bytes, ranks) }
  noexcept->std::same_as<ChunkTable>;
};

/// The order in which PyTorch's gloo adds over a ring, element for element, so results equal DDP's at any N: segments
/// of at most 1 MiB, their number a multiple of N and at least 2N, N equal runs of them.
struct GlooRing {
  static constexpr std::size_t segment_limit_bytes = std::size_t{1} << 20;

  static constexpr ChunkTable table(std::size_t count, std::size_t element_bytes, int ranks) noexcept {
    const auto n = static_cast<std::size_t>(ranks);
    const std::size_t bytes = count * element_bytes;
    const std::size_t segments = round_up(std::max(divide_up(bytes, segment_limit_bytes), 2 * n), n);
    const std::size_t segment_bytes = round_up(divide_up(bytes, segments), element_bytes);
    return {count, segments / n * segment_bytes / element_bytes, ranks};
  }
};
static_assert(Order<GlooRing>);

/// Identifies the order in a fingerprint: 0 is GlooRing, all else a hash of the type's name.
template <Order O>
consteval std::uint8_t order_id() {
  if constexpr (std::same_as<O, GlooRing>)
    return 0;
  else
    return static_cast<std::uint8_t>(1 + detail::type_hash<O>() % 255);
}

/// Calls f(Piece) for every piece of `range`, ascending, empty ones skipped. A range that reaches past the buffer is
/// clipped to it.
template <class F>
constexpr void for_each_piece(const ChunkTable& table, Range range, F&& f) {
  const std::size_t end = std::min(range.end, table.count());
  for (std::size_t begin = range.begin; begin < end;) {
    const int c = table.chunk_of(begin);
    const std::size_t stop = std::min(end, table.chunk(c).end);
    f(Piece{{begin, stop}, table.first_of(c)});
    begin = stop;
  }
}

/// The order of a buffer that lies in memory in other places than where the order was made for it, or of which only
/// some parts are there: they are folded as the same elements are in the original buffer. So a bucket of gradients can
/// lie as its owners' shards do, and go piece by piece, and give the bits of PyTorch's bucket, which lies as the
/// gradients arrived.
class RearrangedTable {
 public:
  /// `count` elements at element `original` of the original buffer.
  struct Part {
    std::size_t original = 0;
    std::size_t count = 0;
  };

  RearrangedTable() = default;
  /// `parts` in the order in which they lie in memory, back to back; each of the original's elements at most once.
  RearrangedTable(const ChunkTable& original, const std::vector<Part>& parts) : original_(original) {
    std::size_t begin = 0;
    for (const Part& part : parts) {
      if (part.count == 0) continue;
      const bool goes_on = !parts_.empty() && parts_.back().original + parts_.back().range.size() == part.original;
      if (goes_on)
        parts_.back().range.end += part.count;
      else
        parts_.push_back({{begin, begin + part.count}, part.original});
      begin += part.count;
    }
  }

  /// Elements in memory.
  std::size_t count() const noexcept { return parts_.empty() ? 0 : parts_.back().range.end; }
  int ranks() const noexcept { return original_.ranks(); }
  const ChunkTable& original() const noexcept { return original_; }

  struct Placed {
    Range range;  // in memory
    std::size_t original;
  };
  std::span<const Placed> parts() const noexcept { return parts_; }

 private:
  ChunkTable original_{0, 1, 1};
  std::vector<Placed> parts_;
};

constexpr const ChunkTable& original_of(const ChunkTable& table) noexcept { return table; }
inline const ChunkTable& original_of(const RearrangedTable& table) noexcept { return table.original(); }

template <class F>
void for_each_piece(const RearrangedTable& table, Range range, F&& f) {
  const auto parts = table.parts();
  auto part = std::upper_bound(parts.begin(), parts.end(), range.begin,
                               [](std::size_t at, const RearrangedTable::Placed& it) { return at < it.range.end; });
  for (; part != parts.end() && part->range.begin < range.end; ++part) {
    const Range here = intersect(range, part->range);
    const std::size_t from = part->original + (here.begin - part->range.begin);
    for_each_piece(table.original(), {from, from + here.size()}, [&](const Piece& piece) {
      const std::size_t begin = here.begin + (piece.range.begin - from);
      f(Piece{{begin, begin + piece.range.size()}, piece.first});
    });
  }
}

// A worked example, as gloo cuts it: 1003 float32 over 3 ranks are 6 segments of 672 bytes.
static_assert(GlooRing::table(1003, 4, 3).chunk(0) == Range{0, 336});
static_assert(GlooRing::table(1003, 4, 3).chunk(1) == Range{336, 672});
static_assert(GlooRing::table(1003, 4, 3).chunk(2) == Range{672, 1003});
static_assert(GlooRing::table(1003, 4, 3).first_of(0) == 2 && GlooRing::table(1003, 4, 3).first_of(2) == 1);

}  // namespace tandem
