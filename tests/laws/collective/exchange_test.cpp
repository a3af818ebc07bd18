// SPDX-License-Identifier: Apache-2.0
// The verbs with a root, with counts by rank, and those that exchange parts between all ranks obey the laws.
#include "support/exchange_laws.hpp"
#include "tandem/comm/detail/thread_count.hpp"

using namespace tandem;
using namespace tandem::test;

namespace {

/// Many elements on many ranks take minutes under ThreadSanitizer; processes have them (tests/ranks/collective).
template <class E>
std::vector<std::size_t> counts_for(int ranks) {
  auto counts = exchange_counts<E>();
  if (ranks > 3 || detail::thread_sanitized) counts.pop_back();
  return counts;
}

template <class E>
void moves_by_the_laws() {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    CAPTURE(ranks);
    on_threads(ranks, [&](World& world) {
      for (const std::size_t count : counts_for<E>(ranks)) moving_laws<E>(world, count);
    });
  }
}
template <class E, class Op>
void reduces_by_the_laws(const Op& op) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    CAPTURE(ranks);
    for (const std::size_t count : counts_for<E>(ranks)) {
      const auto counts = uneven_counts(ranks, count / static_cast<std::size_t>(ranks));
      const Case<E, Op> c(ranks, consecutive(counts).back().end, op, count);
      on_threads(ranks, [&](World& world) { reducing_laws(world, counts, c); });
    }
  }
}

}  // namespace

TEST_CASE("float32 moves as it is") { moves_by_the_laws<float>(); }
TEST_CASE("a user's struct moves as it is") { moves_by_the_laws<Affine>(); }
TEST_CASE("reductions of float32") { reduces_by_the_laws<float>(Sum{}); }
TEST_CASE("reductions of a user's struct") { reduces_by_the_laws<Affine>(Compose{}); }

TEST_CASE("rings of the smallest slots") {
  for (const int ranks : {2, 3, 5}) {
    const auto counts = uneven_counts(ranks, 9973);
    const Case<Affine, Compose> c(ranks, consecutive(counts).back().end, Compose{}, 1);
    on_threads_with_small_rings(ranks, [&](World& world) {
      moving_laws<Affine>(world, 12289);
      reducing_laws(world, counts, c);
    });
  }
}

TEST_CASE("ranks that disagree are all told in what") {
  for (const int ranks : {2, 3, 5}) {
    for (int which = 0; which < disagreements; ++which) {
      on_threads(ranks, [&](World& world) { disagreement_law(world, which); });
    }
  }
}

TEST_CASE("wrong arguments are refused before anything is announced") {
  for (int ranks = 1; ranks <= 5; ++ranks) on_threads(ranks, refusal_law);
}

TEST_CASE("send_recv goes with send and recv, and around a circle in place") {
  for (int ranks = 2; ranks <= 5; ++ranks) {
    on_threads(ranks, [&](World& world) {
      const int next = (world.rank() + 1) % ranks;
      const int before = (world.rank() + ranks - 1) % ranks;
      std::vector<double> mine(300007, world.rank());
      std::vector<double> theirs(mine.size());
      if (world.rank() == 0) {
        send_recv(world, mine, next, std::span(theirs), before);
      } else {
        send(world, std::span<const double>(mine), next);
        recv(world, std::span(theirs), before);
      }
      CHECK(theirs == std::vector<double>(mine.size(), before));
      for (int turn = 0; turn < ranks; ++turn) send_recv(world, mine, next, std::span(mine), before);
      CHECK(mine == std::vector<double>(mine.size(), world.rank()));
      CHECK(world.ledger().balanced());
    });
  }
}
