// SPDX-License-Identifier: Apache-2.0
// Poison keeps the first cause and reaches what was split off, or of that only what contains the guilty rank.
#include "tandem/comm/poison.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace tandem;

namespace {
std::shared_ptr<Poison> make(std::vector<int> members, int* told = nullptr) {
  return std::make_shared<Poison>(std::move(members), [told](const Error&) {
    if (told != nullptr) ++*told;
  });
}
}  // namespace

TEST_CASE("the first cause stays") {
  int told = 0;
  const auto poison = make({0, 1}, &told);
  CHECK_FALSE(poison->is_set());
  CHECK(poison->set(Error(ErrorKind::timeout, "first", 0, 1)));
  CHECK_FALSE(poison->set(Error(ErrorKind::mismatch, "second", 0, 1)));
  CHECK(poison->is_set());
  CHECK(std::string(poison->cause().what()) == "first");
  CHECK(told == 1);
}

TEST_CASE("a dead rank poisons what contains it, anything else all that was split off") {
  for (const bool one_to_blame : {true, false}) {
    const auto world = make({0, 1, 2, 3});
    const auto left = make({0, 1});
    const auto right = make({2, 3});
    world->adopt(left);
    world->adopt(right);
    const auto grandchild = make({3});
    right->adopt(grandchild);
    world->set(Error(ErrorKind::dead_peer, "gone", 0, 3), one_to_blame ? std::optional(3) : std::nullopt);
    CHECK(world->is_set());
    CHECK(right->is_set());
    CHECK(grandchild->is_set());
    CHECK(left->is_set() == !one_to_blame);
    // Whose numbers of ranks the words use is said once.
    for (const auto& below : {right, grandchild}) {
      CHECK(std::string(below->cause().what()) == "tandem: the communicator it was split from failed before: gone");
    }
  }
}

TEST_CASE("what is gone is not told any more") {
  int told = 0;
  const auto world = make({0, 1});
  {
    const auto child = make({0}, &told);
    world->adopt(child);
  }
  const auto muted = make({1}, &told);
  world->adopt(muted);
  muted->mute();
  world->set(Error(ErrorKind::timeout, "late"));
  CHECK(muted->is_set());
  CHECK(told == 0);
}
