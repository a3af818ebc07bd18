// SPDX-License-Identifier: Apache-2.0
// Extents: best fit, aligned, never overlapping; freed neighbours join again, so that all of the space comes back.
#include "tandem/comm/detail/extents.hpp"

#include <doctest/doctest.h>

#include <random>
#include <vector>

using tandem::Range;
using tandem::detail::Extents;

TEST_CASE("extents round to the grain and align") {
  Extents extents({1000, 100000}, 128);
  const auto first = extents.take(1, 128);
  REQUIRE(first);
  CHECK(*first == Range{1024, 1152});
  const auto empty = extents.take(0, 128);
  REQUIRE(empty);
  CHECK(empty->size() == 128);  // also nothing has an address of its own
  const auto page = extents.take(5000, 4096);
  REQUIRE(page);
  CHECK(page->begin % 4096 == 0);
  CHECK(page->size() == 5120);
}

TEST_CASE("extents take the smallest range that fits") {
  Extents extents({0, 1 << 20}, 128);
  const auto large = extents.take(4096, 128);
  const auto wall = extents.take(128, 128);
  const auto small = extents.take(1024, 128);
  const auto end = extents.take(128, 128);
  REQUIRE((large && wall && small && end));
  CHECK(extents.give(large->begin));
  CHECK(extents.give(small->begin));
  CHECK(*extents.take(1000, 128) == *small);
  CHECK(*extents.take(1000, 128) == Range{large->begin, large->begin + 1024});
}

TEST_CASE("extents refuse what does not fit, and give back only what was taken") {
  Extents extents({0, 4096}, 128);
  CHECK_FALSE(extents.take(4097, 128));
  const auto all = extents.take(4096, 4096);
  REQUIRE(all);
  CHECK_FALSE(extents.take(1, 128));
  CHECK_FALSE(extents.give(128));
  CHECK(extents.give(0));
  CHECK_FALSE(extents.give(0));
  CHECK(extents.take(4096, 128));
}

TEST_CASE("extents stay disjoint through random use and are whole again at the end") {
  std::mt19937_64 random(5);
  constexpr std::size_t space = 1 << 22;
  Extents extents({0, space}, 128);
  std::vector<Range> held;
  for (int turn = 0; turn < 20000; ++turn) {
    if (held.empty() || random() % 5 < 3) {
      const std::size_t bytes = random() % (random() % 16 == 0 ? 200000 : 3000);
      const std::size_t alignment = bytes >= 4096 ? 4096 : 128;
      if (const auto range = extents.take(bytes, alignment)) {
        if (range->size() < bytes || range->begin % alignment != 0 || range->end > space) FAIL("a bad range");
        held.push_back(*range);
      }
    } else {
      const std::size_t victim = random() % held.size();
      REQUIRE(extents.give(held[victim].begin));
      held[victim] = held.back();
      held.pop_back();
    }
  }
  const auto used = extents.used();
  REQUIRE(used.size() == held.size());
  for (std::size_t i = 1; i < used.size(); ++i) REQUIRE(used[i - 1].end <= used[i].begin);
  for (const Range& range : held) CHECK(extents.give(range.begin));
  CHECK(extents.used().empty());
  CHECK(*extents.take(space, 128) == Range{0, space});
}

TEST_CASE("extents tell what is free before a limit") {
  Extents extents({0, 4096}, 128);
  const auto low = extents.take(256, 128);
  const auto middle = extents.take(512, 128);
  const auto high = extents.take(128, 128);
  REQUIRE((low && middle && high));
  REQUIRE(extents.give(middle->begin));
  CHECK(extents.free_before(4096) == std::vector<Range>{*middle, {high->end, 4096}});
  CHECK(extents.free_before(high->end + 128) == std::vector<Range>{*middle, {high->end, high->end + 128}});
  CHECK(extents.free_before(middle->begin + 100) == std::vector<Range>{{middle->begin, middle->begin + 100}});
  CHECK(extents.free_before(middle->begin).empty());
}
