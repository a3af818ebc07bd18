// SPDX-License-Identifier: Apache-2.0
// All-reduce with a user's functor over a user's struct obeys the laws; its result shows any order but the contract's.
#include "support/collective_laws.hpp"

using namespace tandem;
using namespace tandem::test;

namespace {

template <class E, class Op>
void obeys_the_laws(const Op& op) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    CAPTURE(ranks);
    const auto cases = usual_cases<E>(ranks, op);
    on_threads(ranks, [&](World& world) { all_reduce_laws(world, cases); });
  }
}

}  // namespace

TEST_CASE("all_reduce of a user's struct with a user's functor") { obeys_the_laws<Affine>(Compose{}); }

TEST_CASE("all_reduce with a lambda that has state") {
  const auto scaled_maximum = [scale = 3](std::int32_t a, std::int32_t b) { return std::max(a, b) + scale; };
  on_threads(3, [&](World& world) {
    std::int32_t value = world.rank();
    all_reduce(world, std::span(&value, 1), scaled_maximum);
    // Chunk 0 starts with rank 2: max(1, 2) + 3 = 5, max(0, 5) + 3.
    CHECK(value == 8);
  });
}
