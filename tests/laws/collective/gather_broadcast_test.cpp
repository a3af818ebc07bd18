// SPDX-License-Identifier: Apache-2.0
// All-gather and broadcast obey the laws, from every root; barriers hold everybody.
#include "support/collective_laws.hpp"

using namespace tandem;
using namespace tandem::test;

#include <atomic>
#include <numeric>

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

// Nothing holds the ranks together between these: who gives fills buffers again that others, late, still read out of.
TEST_CASE("long messages of changing givers and lengths, by ranks out of step") {
  for (int ranks = 2; ranks <= 4; ++ranks) {
    CAPTURE(ranks);
    on_threads(ranks, [&](World& world) {
      const auto members = static_cast<std::size_t>(ranks);
      const auto byte_of = [](std::uint64_t turn, std::size_t at) {
        return static_cast<std::uint8_t>(mix(turn << 32 | at));
      };
      std::size_t wrong = 0;
      for (std::uint64_t turn = 0; turn < 40; ++turn) {
        std::vector<std::size_t> counts(members);
        for (std::size_t member = 0; member < members; ++member) {
          const std::uint64_t drawn = mix(turn * 8 + member);
          counts[member] = drawn % 3 == 0 ? 0 : drawn / 3 % (drawn % 3 == 1 ? 300000 : 20000);
        }
        const std::size_t own_begin = std::accumulate(counts.begin(), counts.begin() + world.rank(), std::size_t{0});
        const std::size_t count = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
        std::vector<std::uint8_t> whole(count);
        const auto own = std::span(whole).subspan(own_begin, counts[static_cast<std::size_t>(world.rank())]);
        const int root = static_cast<int>(mix(turn) % members);
        const bool gathers = turn % 2 == 0;
        const bool gives_all = !gathers && world.rank() == root;
        for (std::size_t at = 0; at < count; ++at) {
          const bool given = gives_all || (gathers && at >= own_begin && at < own_begin + own.size());
          if (given) whole[at] = byte_of(turn, at);
        }
        gathers ? all_gather_v(world, own, std::span(whole), counts) : broadcast(world, std::span(whole), root);
        for (std::size_t at = 0; at < count; ++at) wrong += whole[at] != byte_of(turn, at) ? 1 : 0;
      }
      CHECK(wrong == 0);
      CHECK(world.ledger().balanced());
    });
  }
}

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
