// SPDX-License-Identifier: Apache-2.0
// Shards: every element has one owner, the cut is even, and parameters may be smaller or larger than a shard.
#include "tandem/tensor/flat_layout.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace tandem;

TEST_CASE("every element of every parameter has exactly one owner") {
  const std::vector<std::vector<BucketItem>> models{
      {{10, Dtype::float32}, {1, Dtype::float32}, {0, Dtype::float32}, {1000, Dtype::float32}, {7, Dtype::float32}},
      {{3, Dtype::bfloat16}, {5, Dtype::float32}, {4, Dtype::bfloat16}},
      {{1, Dtype::float32}},
      {{0, Dtype::float32}, {0, Dtype::float32}},
  };
  for (const auto& items : models) {
    for (const int ranks : {1, 2, 3, 5, 8}) {
      CAPTURE(ranks);
      const FlatLayout layout(items, ranks);
      for (std::size_t item = 0; item < items.size(); ++item) {
        CAPTURE(item);
        std::size_t next = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const Range owned = layout.owned(item, rank);
          if (owned.empty()) continue;
          CHECK(owned.begin == next);  // ascending with the rank, no gap
          next = owned.end;
          if (owned.begin == 0) CHECK(layout.home_of(item) == rank);
        }
        CHECK(next == items[item].count);
        CHECK(layout.groups()[layout.group_of(item)].dtype == items[item].dtype);
      }
    }
  }
}

TEST_CASE("shards are even, and lie as the parameters were registered") {
  const std::vector<BucketItem> items{{6, Dtype::float32}, {2, Dtype::float64}, {5, Dtype::float32}};
  const FlatLayout layout(items, 3);
  REQUIRE(layout.groups().size() == 2);
  CHECK(layout.groups()[0].count == 11);
  CHECK(layout.place_of(2) == Range{6, 11});
  CHECK(layout.shard(0, 0) == Range{0, 4});
  CHECK(layout.shard(0, 2) == Range{8, 11});
  CHECK(layout.owned(0, 1) == Range{4, 6});
  CHECK(layout.owned(2, 1) == Range{0, 2});
  CHECK(layout.owned(2, 0).empty());
  CHECK(layout.shard(1, 2).empty());  // two elements, three ranks
}
