// SPDX-License-Identifier: Apache-2.0
// Who is named when a deadline passes: the end of the chain of ranks that wait for one another.
#include "tandem/comm/detail/blame.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "tandem/core/clock.hpp"

using namespace tandem;
using namespace tandem::detail;
using namespace std::chrono_literals;

namespace {

/// Rank r waits for r + 1; the last one waits for nobody. Each says so again once `silent_for[r]` has passed.
struct Chain {
  explicit Chain(std::vector<std::chrono::milliseconds> silent_for) : silence(std::move(silent_for)) {
    for (std::size_t rank = 0; rank < silence.size(); ++rank) {
      own.push_back(std::make_unique<Block>());
      blocks.push_back(own.back().get());
      if (rank + 1 < silence.size()) declare_waiting(*blocks[rank], static_cast<int>(rank) + 1);
    }
  }
  int blamed_by_first() {
    return end_of_chain(blocks, 0, 1, [this](auto span) {
      std::this_thread::sleep_for(span);
      for (std::size_t rank = 1; rank + 1 < silence.size(); ++rank) {
        if (Clock::now() - began >= silence[rank]) declare_waiting(*blocks[rank], static_cast<int>(rank) + 1);
      }
    });
  }
  std::vector<std::chrono::milliseconds> silence;
  std::vector<std::unique_ptr<Block>> own;
  std::vector<Block*> blocks;
  Clock::time_point began = Clock::now();
};

}  // namespace

TEST_CASE("the rank at the end of the chain is named") {
  CHECK(Chain({0ms, 0ms}).blamed_by_first() == 1);
  CHECK(Chain({0ms, 0ms, 0ms, 0ms}).blamed_by_first() == 3);
}

// A host may be so busy that a rank which only waits does not run for longer than the 60 ms after which the chain used
// to be judged: it was named in place of the one that it waits for.
TEST_CASE("a rank that is kept from its processor for a while is not taken for the one that is stopped") {
  CHECK(Chain({0ms, 0ms, 150ms, 0ms}).blamed_by_first() == 3);
  CHECK(Chain({0ms, 150ms, 0ms, 0ms}).blamed_by_first() == 3);
}

TEST_CASE("two ranks that stand still for good: the nearer one is named") {
  CHECK(Chain({0ms, 1h, 0ms, 0ms}).blamed_by_first() == 1);
}
