// SPDX-License-Identifier: Apache-2.0
// Signals that a program gets while it communicates: calls that they interrupt go on, and none comes from the library.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <vector>

#include "support/full.hpp"
#include "support/ranks.hpp"
#include "support/samples.hpp"
#include "support/shared_page.hpp"
#include "support/worlds.hpp"
#include "tandem/collective/all_reduce.hpp"
#include "tandem/collective/barrier.hpp"
#include "tandem/collective/send_recv.hpp"

using namespace tandem;
using namespace tandem::test;

namespace {
std::atomic<int> alarms{0};
}

TEST_CASE("C036: a signal every 200 us, without SA_RESTART, changes no result") {
  on_ranks(
      2,
      [](int rank) {
        struct sigaction action {};
        action.sa_handler = [](int) { ++alarms; };
        REQUIRE(::sigaction(SIGALRM, &action, nullptr) == 0);
        const itimerval often{{0, 200}, {0, 200}};
        REQUIRE(::setitimer(ITIMER_REAL, &often, nullptr) == 0);
        World world = join<TestTransport>();
        const std::size_t count = 2 << 20;
        ArenaArray<float> registered(world.arena(), count);
        std::vector<float> data(count);
        for (int turn = 0; turn < in_full(10, 100); ++turn) {
          for (std::size_t i = 0; i < count; ++i) {
            registered[i] = data[i] = static_cast<float>((i * 31 + static_cast<std::size_t>(rank + turn)) % 251);
          }
          all_reduce(world, std::span(data), Sum{});
          all_reduce(world, std::span(registered.data(), count), Sum{});
          send(world, std::span<const float>(data).first(300000), 1 - rank);
          std::vector<float> theirs(300000);
          recv(world, std::span(theirs), 1 - rank);
          std::size_t wrong = 0;
          for (std::size_t i = 0; i < count; ++i) {
            const auto at = [&](int of) { return (i * 31 + static_cast<std::size_t>(of + turn)) % 251; };
            const auto sum = static_cast<float>(at(0) + at(1));
            wrong += data[i] != sum || registered[i] != sum || (i < theirs.size() && theirs[i] != sum) ? 1 : 0;
          }
          CHECK(wrong == 0);
        }
        barrier(world);
        CHECK(alarms > 100);
        const itimerval never{};
        ::setitimer(ITIMER_REAL, &never, nullptr);
      },
      std::chrono::seconds(in_full(60, 300)));
}

TEST_CASE("C037: a rank that ends while another sends to it costs an error, no SIGPIPE") {
  SharedPage notes;
  const auto endings = run_ranks(2, [&](int rank) {
    struct sigaction before {};
    ::sigaction(SIGPIPE, nullptr, &before);
    World world = join<TestTransport>();
    std::vector<float> data(1 << 18, 1.0F);
    if (rank == 1) {
      for (int turn = 0; turn < 3; ++turn) recv(world, std::span(data), 0);
      notes->died_at = now_ns();
      ::_exit(0);
    }
    try {
      while (true) send(world, std::span<const float>(data), 1);
    } catch (const Error& error) {
      CAPTURE(std::string(error.what()));
      CHECK(error.kind() == ErrorKind::dead_peer);
      CHECK(error.peer() == 1);
      CHECK(now_ns() - notes->died_at < 5'000'000'000);
    }
    struct sigaction after {};
    ::sigaction(SIGPIPE, nullptr, &after);
    CHECK((before.sa_handler == SIG_DFL));
    CHECK((after.sa_handler == SIG_DFL));
  });
  for (const auto& ending : endings) CHECK(ending.clean());
}
