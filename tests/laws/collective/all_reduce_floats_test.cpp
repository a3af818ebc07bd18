// SPDX-License-Identifier: Apache-2.0
// All-reduce of float32 and float64 obeys the laws with every built-in reduction.
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

TEST_CASE("all_reduce of float32, Sum") { obeys_the_laws<float>(Sum{}); }
TEST_CASE("all_reduce of float32, Avg") { obeys_the_laws<float>(Avg{}); }
TEST_CASE("all_reduce of float32, PreMulSum") { obeys_the_laws<float>(PreMulSum<float>{1.0F / 3.0F}); }
TEST_CASE("all_reduce of float64, Sum") { obeys_the_laws<double>(Sum{}); }
TEST_CASE("all_reduce of float64, Max") { obeys_the_laws<double>(Max{}); }
