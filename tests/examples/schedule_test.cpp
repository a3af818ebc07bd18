// SPDX-License-Identifier: Apache-2.0
#include "gpt/schedule.hpp"

#include <doctest/doctest.h>

#include <set>
#include <tuple>
#include <vector>

TEST_CASE("windows follow from seed, step, rank and row, and from each of them") {
  constexpr std::size_t places = 1000003;
  std::set<std::size_t> starts;
  std::size_t count = 0;
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    for (int step = 0; step < 3; ++step) {
      for (int rank = 0; rank < 3; ++rank) {
        for (int row = 0; row < 3; ++row, ++count) {
          const std::size_t start = gpt::window_start(seed, step, rank, row, places);
          CHECK(start < places);
          CHECK(start == gpt::window_start(seed, step, rank, row, places));
          starts.insert(start);
        }
      }
    }
  }
  CHECK(starts.size() == count);
  CHECK(gpt::window_start(1, 2, 3, 4, 1) == 0);
}

TEST_CASE("batches are numbered through, also beyond what an int holds") {
  CHECK(gpt::batch_number(7, 1, 0) == 7);
  CHECK(gpt::batch_number(7, 4, 3) == 31);
  CHECK(gpt::batch_number(999'999'999, 1'000'000, 999'999) == 999'999'999'999'999);
}

TEST_CASE("windows cover a text evenly") {
  std::vector<int> hits(10);
  for (int step = 0; step < 10000; ++step) ++hits[gpt::window_start(1, step, 0, 0, 1000) / 100];
  for (const int hit : hits) {  // 1000 each, with a standard deviation of 30
    CHECK(hit > 850);
    CHECK(hit < 1150);
  }
}

TEST_CASE("held-out windows reach from the first place to the last") {
  CHECK(gpt::spread_start(0, 5, 101) == 0);
  CHECK(gpt::spread_start(1, 5, 101) == 25);
  CHECK(gpt::spread_start(4, 5, 101) == 100);
  CHECK(gpt::spread_start(0, 1, 101) == 0);
  CHECK(gpt::spread_start(3, 4, 1) == 0);
}
