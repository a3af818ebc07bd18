// SPDX-License-Identifier: Apache-2.0
// All-reduce of integers obeys the laws: sums and products wrap.
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

TEST_CASE("all_reduce of int8, Min") { obeys_the_laws<std::int8_t>(Min{}); }
TEST_CASE("all_reduce of uint8, Sum") { obeys_the_laws<std::uint8_t>(Sum{}); }
TEST_CASE("all_reduce of int32, Prod") { obeys_the_laws<std::int32_t>(Prod{}); }
TEST_CASE("all_reduce of int64, Sum") { obeys_the_laws<std::int64_t>(Sum{}); }

// The widest and narrowest integers at the edge (C019): a path through double would lose the last bit.
TEST_CASE("integer sums are exact to the last bit and wrap") {
  on_threads(2, [](World& world) {
    std::int64_t wide = (std::int64_t{1} << 53) + 1;
    std::int32_t middle = world.rank() == 0 ? 2147483647 : 1;
    std::uint8_t narrow = world.rank() == 0 ? 200 : 100;
    all_reduce(world, std::span(&wide, 1), Sum{});
    all_reduce(world, std::span(&middle, 1), Sum{});
    all_reduce(world, std::span(&narrow, 1), Sum{});
    CHECK(wide == 18014398509481986);
    CHECK(middle == -2147483647 - 1);
    CHECK(narrow == 44);
  });
}
