// SPDX-License-Identifier: Apache-2.0
// split: who is in which communicator and in which order; communicators do not disturb each other and can be made and
// dropped without end.
#include <doctest/doctest.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "support/errors.hpp"
#include "support/samples.hpp"
#include "support/worlds.hpp"
#include "tandem/collective/all_reduce.hpp"
#include "tandem/collective/async.hpp"
#include "tandem/collective/barrier.hpp"
#include "tandem/collective/broadcast.hpp"

using namespace tandem;
using namespace tandem::test;

namespace {

/// The members' world ranks, in the order of their ranks here.
std::vector<int> members_of(World& part, int world_rank) {
  std::vector<int> ranks(static_cast<std::size_t>(part.size()), 0);
  ranks[static_cast<std::size_t>(part.rank())] = world_rank;
  all_reduce(part, std::span(ranks), Sum{});
  return ranks;
}

}  // namespace

TEST_CASE("colors make groups, keys make orders, equal keys keep the order of ranks") {
  on_threads(5, [](World& world) {
    World parity = world.split(world.rank() % 2, 0);
    CHECK(members_of(parity, world.rank()) ==
          (world.rank() % 2 == 0 ? std::vector<int>{0, 2, 4} : std::vector<int>{1, 3}));
    World reversed = world.split(7, -world.rank());
    CHECK(reversed.rank() == 4 - world.rank());
    CHECK(members_of(reversed, world.rank()) == std::vector<int>{4, 3, 2, 1, 0});
    World alone = world.split(-world.rank() - 1, 3);
    CHECK(alone.size() == 1);
    CHECK(members_of(alone, world.rank()) == std::vector<int>{world.rank()});
    // A part of a part, and all of them used in turn.
    World first = reversed.split(reversed.rank() < 2 ? 0 : 1, 0);
    for (int turn = 0; turn < 50; ++turn) {
      std::vector<float> data(3000, 1.0F);
      all_reduce(first, std::span(data), Sum{});
      all_reduce(parity, std::span(data), Sum{});
      all_reduce(world, std::span(data), Sum{});
      // first: 2 on ranks 3 and 4, else 3. parity: even ranks 3+3+2 = 8, odd ranks 3+2 = 5. world: 3*8 + 2*5.
      if (data[0] != 34.0F || data[2999] != 34.0F) FAIL_CHECK("turn " << turn << ": " << data[0]);
    }
  });
}

TEST_CASE("a mesh of rows and columns") {
  on_threads(4, [](World& world) {
    const int row = world.rank() / 2;
    const int column = world.rank() % 2;
    World along_row = world.split(row, column);
    World along_column = world.split(column, row);
    ArenaArray<float> registered(world.arena(), 40000);
    for (float& it : registered) it = static_cast<float>(world.rank() + 1);
    all_reduce(along_row, std::span(registered.data(), registered.size()), Sum{});
    CHECK(registered[39999] == (row == 0 ? 3.0F : 7.0F));
    all_reduce(along_column, std::span(registered.data(), registered.size()), Sum{});
    CHECK(registered[39999] == 10.0F);
    std::vector<float> data(40000, static_cast<float>(world.rank()));
    broadcast(along_row, std::span(data), 1);
    CHECK(data[39999] == static_cast<float>(row * 2 + 1));
  });
}

TEST_CASE("communicators of one parent have different numbers") {
  on_threads(3, [](World& world) {
    std::set<std::uint32_t> ids{world.protocol().id()};
    std::vector<World> kept;
    for (int turn = 0; turn < 100; ++turn) {
      kept.push_back(world.split(turn % 3, 0));
      ids.insert(kept.back().protocol().id());
    }
    CHECK(ids.size() == 101);
    World child = kept[5].split(0, 0);
    CHECK(ids.count(child.protocol().id()) == 0);
  });
}

// Flag blocks are used again: more splits than control memory has room for at a time.
TEST_CASE("communicators can be made and dropped without end") {
  on_threads(3, [](World& world) {
    std::optional<World> kept;
    for (int turn = 0; turn < 1500; ++turn) {
      World part = world.split(turn % 2 == 0 ? world.rank() % 2 : 0, turn % 3 == 0 ? -world.rank() : 0);
      std::int32_t sum = 1;
      all_reduce(part, std::span(&sum, 1), Sum{});
      if (sum != part.size()) FAIL_CHECK("turn " << turn << ": " << sum << " of " << part.size());
      std::vector<float> data(2100, 1.0F);  // through staging and, beyond, the rings
      all_reduce(part, std::span(data), Sum{});
      if (data[2099] != static_cast<float>(part.size())) FAIL_CHECK("turn " << turn);
      if (turn % 7 == 0) kept.emplace(std::move(part));  // outlives some of the later ones
    }
    barrier(world);
  });
}

TEST_CASE("one communicator too many is an error that says how many there may be, and room comes back") {
  on_threads(2, [](World& world) {
    const std::size_t most = world.protocol().host().most_blocks();
    CHECK(most > 400);
    for (int turn = 0; turn < 2; ++turn) {
      std::vector<World> kept;
      while (kept.size() + 1 < most) kept.push_back(world.split(0, 0));
      const auto error = error_of([&] { kept.push_back(world.split(0, 0)); });
      REQUIRE(error);
      CAPTURE(std::string(error->what()));
      CHECK(error->kind() == ErrorKind::system);
      CHECK(says(*error, "room for " + std::to_string(most) + " communicators at a time"));
      CHECK(says(*error, "let go of some"));
      barrier(kept.back());
      kept.clear();
      barrier(world);  // all ranks have let go
      CHECK_FALSE(world.poisoned());
    }
  });
}

// Each refusal took a flag block for good.
TEST_CASE("a split that is refused takes no room") {
  on_threads(2, [](World& world) {
    std::vector<float> data(32 * 64, 1.0F);
    std::vector<Work> pending;
    for (std::size_t i = 0; i < 32; ++i) {
      pending.push_back(all_reduce_async(world, std::span(data).subspan(64 * i, 64), Sum{}));
    }
    for (std::size_t turn = 0; turn < world.protocol().host().most_blocks() + 1; ++turn) {
      const auto error = error_of([&] { World part = world.split(0, 0); });
      REQUIRE(error);
      if (error->kind() != ErrorKind::argument) FAIL_CHECK("turn " << turn << ": " << std::string(error->what()));
    }
    for (auto& it : pending) it.wait();
    World part = world.split(0, 0);
    CHECK(part.size() == 2);
  });
}

TEST_CASE("a communicator outlives the one it was split from") {
  on_threads(3, [](World& world) {
    auto parent = std::make_unique<World>(world.split(0, 0));
    World child = parent->split(0, -parent->rank());
    parent.reset();
    for (int turn = 0; turn < 100; ++turn) {
      std::int64_t value = 1;
      all_reduce(child, std::span(&value, 1), Sum{});
      if (value != 3) FAIL_CHECK("turn " << turn);
    }
  });
}

TEST_CASE("split moves 24 bytes per pair of ranks, and its books balance") {
  on_threads(4, [](World& world) {
    const Ledger before = world.ledger();
    World part = world.split(0, 0);
    const Ledger used = world.ledger() - before;
    CHECK(used.balanced());
    CHECK(used.measured == 3 * 24);
    CHECK(part.ledger().operations == 0);
  });
}
