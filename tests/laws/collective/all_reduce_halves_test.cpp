// SPDX-License-Identifier: Apache-2.0
// All-reduce of the 16-bit floats obeys the laws: rounded after every addition, in the contract's order.
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

TEST_CASE("all_reduce of bfloat16, Sum") { obeys_the_laws<BFloat16>(Sum{}); }
TEST_CASE("all_reduce of bfloat16, Avg") { obeys_the_laws<BFloat16>(Avg{}); }
TEST_CASE("all_reduce of float16, PreMulSum") { obeys_the_laws<Float16>(PreMulSum<float>{0.25F}); }
TEST_CASE("all_reduce of float16, Min") { obeys_the_laws<Float16>(Min{}); }
