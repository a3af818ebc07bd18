// SPDX-License-Identifier: Apache-2.0
// Ddp against PyTorch's own C++, with its options.
#include "support/reducer_comparison.hpp"

namespace {

using tandem::test::Scenario;

void compare(const Scenario& scenario) { tandem::test::compare_with_reducer<tandem::Ddp<>>(scenario); }

}  // namespace

TEST_CASE("20 steps with PyTorch's default buckets: no element differs") { compare({.steps = 20}); }

TEST_CASE("an explicit bucket size applies to every bucket from step 2 on") {
  compare({.options = {.buckets = tandem::BucketCaps::every(300'000)}, .peer = {.bucket_bytes = 300'000}});
}

TEST_CASE("a list of bucket sizes applies from step 1 on") {
  compare({.options = {.buckets = tandem::BucketCaps::list({100'000, 1'500'000, 2'000'000})},
           .peer = {.bucket_bytes_list = {100'000, 1'500'000, 2'000'000}}});
}

TEST_CASE("clipping to 0.7, where Python's formula and C++'s differ") {
  compare({.steps = 10, .options = {.clip_norm = 0.7}});
}

TEST_CASE("three micro-batches added up locally, then one reduction") {
  compare({.steps = 6, .micro_batches = 3, .options = {.clip_norm = 0.7}});
}

TEST_CASE("gradients zeroed in place instead of released") {
  compare({.steps = 6, .options = {.after_update = tandem::AfterUpdate::zero}});
}

TEST_CASE("gradients kept from step to step: the next value is (old average + local) / N") {
  compare({.steps = 5, .options = {.after_update = tandem::AfterUpdate::keep}});
}

TEST_CASE("kept gradients and micro-batches together") {
  compare({.steps = 4, .micro_batches = 2, .options = {.after_update = tandem::AfterUpdate::keep}});
}
