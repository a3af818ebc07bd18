// SPDX-License-Identifier: Apache-2.0
// All-gather and broadcast obey the laws, from every root; barriers hold everybody.
#include "support/collective_laws.hpp"

using namespace tandem;
using namespace tandem::test;

#include <atomic>

namespace {

template <class E>
void gathers_by_the_laws() {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    CAPTURE(ranks);
    const auto wholes = usual_wholes<E>();
    on_threads(ranks, [&](World& world) { all_gather_laws(world, wholes); });
  }
}
template <class E>
void broadcasts_by_the_laws() {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    CAPTURE(ranks);
    const auto wholes = usual_wholes<E>();
    on_threads(ranks, [&](World& world) { broadcast_laws(world, wholes); });
  }
}

}  // namespace

TEST_CASE("all_gather of float32") { gathers_by_the_laws<float>(); }
TEST_CASE("all_gather of uint8") { gathers_by_the_laws<std::uint8_t>(); }
TEST_CASE("all_gather of a user's struct") { gathers_by_the_laws<Affine>(); }
TEST_CASE("broadcast of float32") { broadcasts_by_the_laws<float>(); }
TEST_CASE("broadcast of int8") { broadcasts_by_the_laws<std::int8_t>(); }
TEST_CASE("broadcast of a user's struct") { broadcasts_by_the_laws<Affine>(); }

TEST_CASE("nobody leaves a barrier before everybody has come") {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    std::atomic<int> come{0};
    on_threads(ranks, [&](World& world) {
      for (int turn = 1; turn <= 300; ++turn) {
        come.fetch_add(1, std::memory_order_relaxed);
        barrier(world);
        if (come.load(std::memory_order_relaxed) < turn * ranks) FAIL_CHECK("left barrier " << turn << " early");
        barrier(world);  // nobody counts for the next turn before all have looked
      }
    });
    CHECK(come == 300 * ranks);
  }
}
