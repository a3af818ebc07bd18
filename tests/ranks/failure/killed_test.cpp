// SPDX-License-Identifier: Apache-2.0
// A rank is killed in the middle of traffic of every kind: the others are told at once who it was, and go on together.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "support/ranks.hpp"
#include "support/shared_page.hpp"
#include "support/traffic.hpp"

using namespace tandem;
using namespace tandem::test;

namespace {

/// The promise is a second; usually it takes 20 ms. More here, because the host may be busy; far less than the
/// deadline.
constexpr std::int64_t limit_ns = 5'000'000'000;

void kill_in(Traffic traffic, int victim) {
  const int count = ranks();
  SharedPage notes;
  const std::string again = fresh_rendezvous();
  const auto endings = run_ranks(count, [&](int rank) {
    std::optional<World> world;
    world.emplace(join<TestTransport>());
    barrier(*world);
    if (rank == victim) {
      std::thread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30 + 7 * victim));
        notes->died_at = now_ns();
        ::kill(::getpid(), SIGKILL);
      }).detach();
    }
    const Error error = run_until_error(*world, traffic);
    const std::int64_t took = now_ns() - notes->died_at;
    CAPTURE(std::string(error.what()));
    CAPTURE(took);
    CHECK(error.kind() == ErrorKind::dead_peer);
    CHECK(error.peer() == victim);
    CHECK(error.rank() == rank);
    CHECK(std::string(error.what()).find("rank " + std::to_string(victim)) != std::string::npos);
    CHECK(took < limit_ns);

    CHECK(world->poisoned());
    const auto asked = now_ns();
    const Error next = run_until_error(*world, traffic);
    CHECK(next.kind() == ErrorKind::poisoned);
    CHECK(next.peer() == victim);
    CHECK(now_ns() - asked < limit_ns);
    world.reset();

    // The survivors join anew and work.
    World fresh = join_again(again, rank < victim ? rank : rank - 1, count - 1);
    std::vector<std::int64_t> value(50000, rank);
    all_reduce(fresh, std::span(value), Sum{});
    CHECK(value[49999] == count * (count - 1) / 2 - victim);
  });
  for (int rank = 0; rank < count; ++rank) {
    CAPTURE(rank);
    const auto& ending = endings[static_cast<std::size_t>(rank)];
    CHECK(ending.signal == (rank == victim ? SIGKILL : 0));
    CHECK(ending.code == 0);
  }
}

}  // namespace

TEST_CASE("a rank is killed in the middle of traffic") {
  for (const Traffic traffic : all_traffic) {
    CAPTURE(tandem::test::name_of(traffic));
    for (const int victim : {ranks() - 1, 0}) {
      CAPTURE(victim);
      kill_in(traffic, victim);
    }
  }
}

TEST_CASE("a rank that ends without closing is named like one that was killed") {
  SharedPage notes;
  const auto endings = run_ranks(ranks(), [&](int rank) {
    World world = join<TestTransport>();
    barrier(world);
    if (rank == 1) {
      notes->died_at = now_ns();
      ::_exit(0);
    }
    const Error error = run_until_error(world, Traffic::ring);
    CAPTURE(std::string(error.what()));
    CHECK(error.kind() == ErrorKind::dead_peer);
    CHECK(error.peer() == 1);
    CHECK(now_ns() - notes->died_at < limit_ns);
  });
  for (const auto& ending : endings) CHECK(ending.clean());
}

TEST_CASE("messages that a rank sent before it died are still received") {
  const auto endings = run_ranks(2, [&](int rank) {
    World world = join<TestTransport>();
    if (rank == 0) {
      for (std::int32_t i = 0; i < 5; ++i) send(world, std::span<const std::int32_t>(&i, 1), 1);
      ::_exit(0);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    for (std::int32_t i = 0; i < 5; ++i) {
      std::int32_t value = -1;
      recv(world, std::span(&value, 1), 0);
      CHECK(value == i);
    }
    std::int32_t value = -1;
    CHECK_THROWS_AS(recv(world, std::span(&value, 1), 0), Error);
    CHECK(value == -1);
  });
  for (const auto& ending : endings) CHECK(ending.clean());
}
