// SPDX-License-Identifier: Apache-2.0
// The bucket rule on sizes alone; that it is PyTorch's is shown against c10d::Reducer in tests/torch.
#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "tandem/tensor/bucket_layout.hpp"

using tandem::BucketCaps;
using tandem::BucketItem;
using tandem::BucketLayout;
using tandem::Dtype;
using Indices = std::vector<std::size_t>;

namespace {

std::vector<BucketItem> floats(const std::vector<std::size_t>& counts) {
  std::vector<BucketItem> items;
  for (const std::size_t count : counts) items.push_back({count, Dtype::float32});
  return items;
}

std::vector<Indices> members(const std::vector<BucketLayout>& buckets) {
  std::vector<Indices> result;
  for (const auto& bucket : buckets) result.push_back(bucket.items);
  return result;
}

}  // namespace

TEST_CASE("step 1 puts all parameters of a dtype into one bucket, in registration order") {
  const auto items = floats({1 << 20, 3, 10 << 20, 7});
  const auto buckets = tandem::first_buckets(items, BucketCaps{});
  REQUIRE(buckets.size() == 1);
  CHECK(buckets[0].items == Indices{0, 1, 2, 3});
  CHECK(buckets[0].offsets == Indices{0, 1 << 20, (1 << 20) + 3, (11 << 20) + 3});
  CHECK(buckets[0].count == (11U << 20) + 10);
  // An explicit size does not apply yet: PyTorch uses it from the rebuilt buckets on.
  CHECK(members(tandem::first_buckets(items, BucketCaps::every(4))) == std::vector<Indices>{{0, 1, 2, 3}});
}

TEST_CASE("a list of caps holds from step 1, and the last bucket goes first") {
  const auto items = floats({1, 1, 1, 1, 1, 1});
  CHECK(members(tandem::first_buckets(items, BucketCaps::list({4, 8}))) ==
        std::vector<Indices>{{5}, {3, 4}, {1, 2}, {0}});
}

TEST_CASE("a bucket is closed after the tensor that makes it at least its cap") {
  // 262,144 floats are exactly 1 MiB.
  const Indices arrival{0, 1, 2, 3};
  CHECK(members(tandem::rebuilt_buckets(floats({262144, 1, 1, 1}), arrival, {})) ==
        std::vector<Indices>{{0}, {1, 2, 3}});
  CHECK(members(tandem::rebuilt_buckets(floats({262143, 1, 1, 1}), arrival, {})) ==
        std::vector<Indices>{{0, 1}, {2, 3}});
  CHECK(members(tandem::rebuilt_buckets(floats({262142, 1, 9, 1}), arrival, {})) ==
        std::vector<Indices>{{0, 1, 2}, {3}});
}

TEST_CASE("caps: 1 MiB first and 25 MiB then; an explicit size for all; the last of a list repeats") {
  const std::vector<std::size_t> counts(60, 262144);  // 1 MiB each
  Indices arrival(counts.size());
  std::iota(arrival.begin(), arrival.end(), 0);
  const auto sizes = [&](const BucketCaps& caps) {
    std::vector<std::size_t> result;
    for (const auto& bucket : tandem::rebuilt_buckets(floats(counts), arrival, caps))
      result.push_back(bucket.items.size());
    return result;
  };
  CHECK(sizes({}) == Indices{1, 25, 25, 9});
  CHECK(sizes(BucketCaps::every(25 << 20)) == Indices{25, 25, 10});
  CHECK(sizes(BucketCaps::list({2 << 20, 3 << 20, 20 << 20})) == Indices{2, 3, 20, 20, 15});
}

TEST_CASE("rebuilt buckets follow arrival, each dtype on its own and with its own count of caps") {
  const std::vector<BucketItem> items{{3, Dtype::float32}, {5, Dtype::bfloat16}, {7, Dtype::float64},
                                      {1, Dtype::float16}, {2, Dtype::float32},  {4, Dtype::bfloat16}};
  const Indices arrival{5, 4, 3, 2, 1, 0};
  const auto buckets = tandem::rebuilt_buckets(items, arrival, BucketCaps::every(16));
  CHECK(members(buckets) == std::vector<Indices>{{3}, {2}, {5, 1}, {4, 0}});
  CHECK(buckets[2].dtype == Dtype::bfloat16);
  CHECK(buckets[2].offsets == Indices{0, 4});
  CHECK(buckets[2].count == 9);
  CHECK(members(tandem::first_buckets(items, {})) == std::vector<Indices>{{3}, {2}, {1, 5}, {0, 4}});
}

TEST_CASE("every parameter is in exactly one bucket, whatever the sizes; empty ones too") {
  const auto items = floats({0, 5, 0, 100, 1, 0});
  const Indices arrival{3, 0, 5, 1, 4, 2};
  for (const std::size_t cap : {std::size_t{0}, std::size_t{1}, std::size_t{21}, std::size_t{1000}}) {
    std::vector<int> seen(items.size(), 0);
    for (const auto& bucket : tandem::rebuilt_buckets(items, arrival, BucketCaps::every(cap))) {
      std::size_t count = 0;
      for (std::size_t i = 0; i < bucket.items.size(); ++i) {
        ++seen[bucket.items[i]];
        CHECK(bucket.offsets[i] == count);
        count += items[bucket.items[i]].count;
      }
      CHECK(bucket.count == count);
    }
    CHECK(seen == std::vector<int>(items.size(), 1));
  }
  CHECK(tandem::first_buckets({}, {}).empty());
  CHECK(tandem::rebuilt_buckets({}, {}, {}).empty());
}

TEST_CASE("a bucket's pieces: as large as asked for, as gradients come") {
  const auto runs = [](const std::vector<std::size_t>& sizes, const Indices& turns, std::size_t bytes) {
    const auto buckets = tandem::first_buckets(floats(sizes), {});
    return tandem::detail::runs_of_places(buckets.at(0), turns, bytes);
  };
  const Indices as_listed{0, 1, 2, 3, 4};
  const Indices backwards = tandem::backwards(5);
  using Runs = std::vector<Indices>;
  const std::vector<std::size_t> sizes{1, 2, 0, 8, 1};  // 4 bytes each
  CHECK(runs(sizes, as_listed, 12) == Runs{{0, 1}, {2, 3}, {4}});
  CHECK(runs(sizes, backwards, 12) == Runs{{4, 3}, {2, 1, 0}});
  CHECK(runs(sizes, as_listed, 13) == Runs{{0, 1, 2, 3}, {4}});
  CHECK(runs(sizes, backwards, 1) == Runs{{4}, {3}, {2, 1}, {0}});
  CHECK(runs(sizes, backwards, 1000) == Runs{{4, 3, 2, 1, 0}});
  CHECK(runs(sizes, as_listed, 0) == Runs{{0}, {1}, {2}, {3}, {4}});
  CHECK(runs(sizes, {2, 0, 4, 1, 3}, 12) == Runs{{1, 3}, {0, 4, 2}});
}

TEST_CASE("what cannot be is said") {
  CHECK_THROWS_WITH_AS(tandem::first_buckets(floats({1}), BucketCaps::list({})),
                       "tandem: BucketCaps has no cap; give at least one size in bytes", tandem::Error);
  CHECK_THROWS_WITH_AS(tandem::rebuilt_buckets(floats({1, 2}), Indices{1}, {}),
                       "tandem: 1 gradients arrived for 2 parameters", tandem::Error);
}
