// SPDX-License-Identifier: Apache-2.0
// The order of addition as a policy: gloo's chunk table, pieces of ranges, and that any cut of a buffer folds alike.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "tandem/reduce/apply.hpp"

namespace {

using namespace tandem;

/// Another policy: one piece, ranks descending from the last. (Nothing in the library favours gloo's.)
struct Descending {
  static constexpr ChunkTable table(std::size_t count, std::size_t, int ranks) noexcept {
    return {count, count, ranks};
  }
};
static_assert(Order<Descending> && Order<GlooRing> && !Order<Sum>);
static_assert(Descending::table(10, 4, 3).first_of(0) == 2);
static_assert(order_id<GlooRing>() == 0 && order_id<Descending>() != 0);

// numerics.md's rule once more, with signed arithmetic and no shared code.
std::vector<long> gloo_chunk_ends(long count, long element_bytes, long ranks) {
  const long bytes = count * element_bytes;
  long segments = (bytes + (1L << 20) - 1) >> 20;
  if (segments < 2 * ranks) segments = 2 * ranks;
  while (segments % ranks != 0) ++segments;
  long segment_bytes = bytes / segments + (bytes % segments != 0 ? 1 : 0);
  while (segment_bytes % element_bytes != 0) ++segment_bytes;
  std::vector<long> ends;
  for (long c = 1; c <= ranks; ++c) {
    const long end = c * (segments / ranks) * segment_bytes / element_bytes;
    ends.push_back(end < count ? end : count);
  }
  return ends;
}

TEST_CASE("a rearranged buffer folds every element as the original does") {
  std::mt19937 random(5);
  for (const int ranks : {1, 2, 3, 5}) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{1003}, std::size_t{700001}}) {
      const ChunkTable original = GlooRing::table(count, 4, ranks);
      // Cut into parts, which then lie in another order; one of them empty.
      std::vector<std::size_t> cuts{0, count};
      for (int i = 0; i < 9; ++i) cuts.push_back(random() % (count + 1));
      std::sort(cuts.begin(), cuts.end());
      std::vector<RearrangedTable::Part> parts;
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) parts.push_back({cuts[i], cuts[i + 1] - cuts[i]});
      std::shuffle(parts.begin(), parts.end(), random);
      const RearrangedTable table(original, parts);
      CHECK(table.count() == count);
      CHECK(table.ranks() == ranks);

      std::vector<int> first(count, -1);  // by place in memory
      const std::size_t middle = count / 3;
      for (const Range range : {Range{0, middle}, Range{middle, middle}, Range{middle, count + 5}}) {
        std::size_t next = range.begin;
        for_each_piece(table, range, [&](const Piece& piece) {
          CHECK(piece.range.begin == next);
          CHECK_FALSE(piece.range.empty());
          next = piece.range.end;
          for (std::size_t i = piece.range.begin; i < piece.range.end; ++i) first[i] = piece.first;
        });
        CHECK(next == std::min(range.end, count));
      }
      std::size_t wrong = 0, at = 0;
      for (const auto& part : parts) {
        for (std::size_t i = 0; i < part.count; ++i, ++at) {
          wrong += first[at] == original.first_of(original.chunk_of(part.original + i)) ? 0 : 1;
        }
      }
      CHECK(wrong == 0);

      // Some of the parts alone.
      const std::vector<RearrangedTable::Part> some(parts.begin() + 2, parts.begin() + 6);
      const RearrangedTable piece(original, some);
      std::vector<int> expected, found;
      for (const auto& part : some) {
        for (std::size_t i = 0; i < part.count; ++i)
          expected.push_back(original.first_of(original.chunk_of(part.original + i)));
      }
      for_each_piece(piece, {0, count}, [&](const Piece& it) { found.insert(found.end(), it.range.size(), it.first); });
      CHECK(piece.count() == expected.size());
      CHECK(found == expected);
    }
  }
}

TEST_CASE("gloo's chunks, for counts that do and do not divide") {
  for (const int ranks : {1, 2, 3, 4, 5, 7, 8, 16}) {
    for (const std::size_t element : {1U, 2U, 4U, 8U, 12U}) {
      for (const std::size_t count :
           {0UL, 1UL, 2UL, 3UL, 17UL, 1003UL, 4097UL, 262144UL, 262145UL, 3000017UL, 600000011UL}) {
        const ChunkTable table = GlooRing::table(count, element, ranks);
        const auto ends = gloo_chunk_ends(static_cast<long>(count), static_cast<long>(element), ranks);
        std::size_t begin = 0;
        bool equal = true;
        for (int c = 0; c < ranks; ++c) {
          equal = equal && table.chunk(c) == Range{begin, static_cast<std::size_t>(ends[static_cast<std::size_t>(c)])};
          begin = table.chunk(c).end;
          equal = equal && table.first_of(c) == (c - 1 + ranks) % ranks;
        }
        CAPTURE(ranks);
        CAPTURE(element);
        CAPTURE(count);
        CHECK(equal);
        CHECK(begin == count);
      }
    }
  }
}

TEST_CASE("a count beyond 2^32 bytes keeps its width") {
  const std::size_t count = (std::size_t{1} << 33) + 5;
  const ChunkTable table = GlooRing::table(count, 4, 3);
  CHECK(table.chunk(2).end == count);
  CHECK(table.chunk_of(count - 1) == 2);
}

TEST_CASE("pieces of a range: ascending, gapless, each within one chunk, none empty") {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    const std::size_t count = random() % 3000;
    const int ranks = 1 + static_cast<int>(random() % 9);
    const ChunkTable table = GlooRing::table(count, 4, ranks);
    const std::size_t begin = random() % (count + 2);
    const std::size_t end = begin + random() % (count + 2);  // may reach past the buffer, or be empty
    std::size_t next = begin;
    for_each_piece(table, {begin, end}, [&](const Piece& piece) {
      const int c = (piece.first + 1) % ranks;
      CHECK(piece.range.begin == next);
      CHECK_FALSE(piece.range.empty());
      CHECK(intersect(piece.range, table.chunk(c)) == piece.range);
      next = piece.range.end;
    });
    CHECK(next == (begin < count ? std::min(end, count) : begin));
  }
}

constexpr std::size_t pieces_in(const ChunkTable& table, Range range) {
  std::size_t pieces = 0;
  for_each_piece(table, range, [&](const Piece&) { ++pieces; });
  return pieces;
}
static_assert(pieces_in(GlooRing::table(1003, 4, 3), {0, 1003}) == 3);
static_assert(pieces_in(GlooRing::table(1003, 4, 3), {336, 672}) == 1);
static_assert(pieces_in(GlooRing::table(1003, 4, 3), {335, 673}) == 3);
static_assert(pieces_in(GlooRing::table(0, 4, 3), {0, 10}) == 0);
static_assert(pieces_in(Descending::table(1003, 4, 3), {0, 1003}) == 1);
static_assert(pieces_in(Descending::table(0, 4, 3), {0, 0}) == 0);

struct Buffers {
  std::vector<std::vector<float>> data;
  std::vector<const float*> inputs;
  Buffers(int ranks, std::size_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> value(-1.0F, 1.0F);
    data.assign(static_cast<std::size_t>(ranks), std::vector<float>(count));
    for (auto& buffer : data) {
      for (float& x : buffer) x = value(random);
      inputs.push_back(buffer.data());
    }
  }
};

template <class O>
std::vector<float> whole(const Buffers& buffers, std::size_t count, int ranks) {
  std::vector<float> out(count);
  float* const outputs[] = {out.data()};
  fold_range(Sum{}, O::table(count, 4, ranks), {0, count}, buffers.inputs.data(), outputs, 1);
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

TEST_CASE_TEMPLATE("the whole by one rank equals any cut by many", O, GlooRing, Descending) {
  std::mt19937 random(11);
  for (const int ranks : {1, 2, 3, 5, 8, 17, 20}) {  // beyond 16 the addresses no longer fit the stack array
    const std::size_t count = 1003;
    const Buffers buffers(ranks, count, 3);
    const ChunkTable table = O::table(count, 4, ranks);
    std::vector<float> expected(count);
    for (int c = 0; c < ranks; ++c) {
      for (std::size_t i = table.chunk(c).begin; i < table.chunk(c).end; ++i) {
        volatile float acc = buffers.inputs[(c - 1 + ranks) % ranks][i];
        for (int k = 2; k <= ranks; ++k) acc = buffers.inputs[(c - k + 2 * ranks) % ranks][i] + acc;
        expected[i] = acc;
      }
    }
    CAPTURE(ranks);
    CHECK(same_bits(whole<O>(buffers, count, ranks), expected));
    for (int round = 0; round < 50; ++round) {
      std::vector<float> out(count);
      float* const outputs[] = {out.data()};
      for (std::size_t begin = 0; begin < count;) {
        const std::size_t end = std::min<std::size_t>(count, begin + 1 + random() % 200);
        fold_range(Sum{}, table, {begin, end}, buffers.inputs.data(), outputs, 1);
        begin = end;
      }
      REQUIRE(same_bits(out, expected));
    }
  }
}

TEST_CASE("the order matters: another policy gives other bits from three ranks on") {
  for (const int ranks : {2, 3, 4, 8}) {
    const Buffers buffers(ranks, 3001, 5);
    CHECK(same_bits(whole<GlooRing>(buffers, 3001, ranks), whole<Descending>(buffers, 3001, ranks)) == (ranks == 2));
  }
}

TEST_CASE("buffers given from an element on, and results to all inputs in place") {
  const int ranks = 3;
  const std::size_t count = 1003;
  Buffers buffers(ranks, count, 9);
  const ChunkTable table = GlooRing::table(count, 4, ranks);
  const std::vector<float> expected = whole<GlooRing>(buffers, count, ranks);
  const Range range{300, 700};
  std::vector<float> part(range.size());
  std::vector<const float*> from;
  for (const float* input : buffers.inputs) from.push_back(input + 300);
  float* const part_outputs[] = {part.data()};
  fold_range(Sum{}, table, range, from.data(), part_outputs, 1, 300, 300);
  CHECK(same_bits(part, {expected.begin() + 300, expected.begin() + 700}));

  std::vector<float*> outputs;
  for (auto& buffer : buffers.data) outputs.push_back(buffer.data());
  fold_range(Sum{}, table, {0, count}, buffers.inputs.data(), outputs.data(), ranks);
  for (const auto& buffer : buffers.data) CHECK(same_bits(buffer, expected));
}

}  // namespace
