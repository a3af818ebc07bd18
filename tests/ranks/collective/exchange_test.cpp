// SPDX-License-Identifier: Apache-2.0
// A sample of the laws of exchange_laws.hpp on ranks that are processes, each with mappings of its own.
#include <doctest/doctest.h>

#include "support/exchange_laws.hpp"
#include "support/ranks.hpp"

using namespace tandem;
using namespace tandem::test;

TEST_CASE("verbs with a root, with counts by rank and between all obey their laws between processes") {
  const int count = ranks();
  const auto counts = uneven_counts(count, 70001 / static_cast<std::size_t>(count));
  const auto few = uneven_counts(count, 127);
  const Case<float, Sum> sums(count, consecutive(counts).back().end, Sum{}, 1);
  const Case<Affine, Compose> maps(count, consecutive(few).back().end, Compose{}, 2);
  on_ranks(
      count,
      [&](int) {
        World world = join<TestTransport>();
        for (const std::size_t each : exchange_counts<float>()) moving_laws<float>(world, each);
        moving_laws<Affine>(world, 1021);
        reducing_laws(world, counts, sums);
        reducing_laws(world, few, maps);
        refusal_law(world);
      },
      std::chrono::seconds(120));
}

TEST_CASE("processes that disagree are all told in what") {
  const int count = ranks();
  if (count == 1) return;
  for (int which = 0; which < disagreements; ++which) {
    on_ranks(count, [&](int) {
      World world = join<TestTransport>();
      disagreement_law(world, which);
    });
  }
}
