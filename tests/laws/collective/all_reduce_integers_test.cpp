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
