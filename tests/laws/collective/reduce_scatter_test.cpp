// SPDX-License-Identifier: Apache-2.0
// Reduce-scatter obeys the laws: its result is the slice of what all-reduce gives, for any count.
#include "support/collective_laws.hpp"

using namespace tandem;
using namespace tandem::test;

namespace {

template <class E, class Op>
void obeys_the_laws(const Op& op) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    CAPTURE(ranks);
    const auto cases = usual_cases<E>(ranks, op);
    on_threads(ranks, [&](World& world) { reduce_scatter_laws(world, cases); });
  }
}

}  // namespace

TEST_CASE("reduce_scatter of float32, Sum") { obeys_the_laws<float>(Sum{}); }
TEST_CASE("reduce_scatter of bfloat16, PreMulSum") { obeys_the_laws<BFloat16>(PreMulSum<float>{0.3F}); }
TEST_CASE("reduce_scatter of float64, Avg") { obeys_the_laws<double>(Avg{}); }
TEST_CASE("reduce_scatter of a user's struct") { obeys_the_laws<Affine>(Compose{}); }

// 10 elements over 3 ranks are slices of 4, 4 and 2.
TEST_CASE("C017: slices that do not divide are cut by the ceiling") {
  on_threads(3, [](World& world) {
    std::vector<std::int32_t> in(10);
    for (int i = 0; i < 10; ++i) in[static_cast<std::size_t>(i)] = i * (world.rank() + 1);
    std::vector<std::int32_t> out(world.rank() == 2 ? 2 : 4);
    reduce_scatter(world, std::span<const std::int32_t>(in), std::span(out), Sum{});
    for (std::size_t i = 0; i < out.size(); ++i) CHECK(out[i] == 6 * (4 * world.rank() + static_cast<int>(i)));
  });
}

// With the same order both ways, bit for bit.
TEST_CASE("C014: all_gather of reduce_scatter is all_reduce") {
  for (const int ranks : {2, 3, 4, 5}) {
    const Case<float, Sum> c(ranks, 40009, Sum{}, 7);
    on_threads(ranks, [&](World& world) {
      const auto& mine = c.inputs[static_cast<std::size_t>(world.rank())];
      std::vector<float> slice(cut(c.count(), ranks, world.rank()).size());
      std::vector<float> whole(c.count());
      reduce_scatter(world, std::span<const float>(mine), std::span(slice), Sum{});
      all_gather(world, std::span<const float>(slice), std::span(whole));
      CHECK(std::memcmp(whole.data(), c.result.data(), whole.size() * sizeof(float)) == 0);
    });
  }
}
