// SPDX-License-Identifier: Apache-2.0
// Ranks that leave in the middle of something: an exception with operations in flight, a one-sided destroy, a fork, a
// communicator in a static object, a thread. Nobody hangs, nobody is ended by a signal. See also matrix_test.cpp.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

#include "support/errors.hpp"
#include "support/full.hpp"
#include "support/ranks.hpp"
#include "support/samples.hpp"
#include "support/shared_page.hpp"
#include "support/traffic.hpp"

using namespace tandem;
using namespace tandem::test;
using namespace std::chrono_literals;

namespace {

int wait_for(::pid_t child, std::chrono::seconds limit) {
  const Deadline patience = Deadline::after(limit);
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) != child) {
    if (patience.expired()) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return -1;
    }
    std::this_thread::sleep_for(1ms);
  }
  return status;
}

}  // namespace

// The handles, and the memory that they are about, go by an exception while the others are in the operations.
TEST_CASE("C053: an exception drops pending operations and their buffers") {
  constexpr std::size_t count = 8 << 20;
  for (int turn = 0; turn < in_full(3, 100); ++turn) {
    on_ranks(ranks(), [&](int rank) {
      World world = join<TestTransport>();
      std::optional<Error> error;
      try {
        ArenaArray<float> registered(world.arena(), count);
        std::vector<float> data(count, 1.0F);
        for (float& it : registered) it = 1.0F;
        auto one = all_reduce_async(world, std::span(registered.data(), count), Sum{});
        auto two = all_reduce_async(world, std::span(data), Sum{});
        if (turn % 2 == 0) one.poll();
        if (rank == 1) throw std::logic_error("a bad batch");
        two.wait();
        one.wait();
        FAIL_CHECK("rank 1 has dropped its part");
      } catch (const std::logic_error&) {
        CHECK(rank == 1);
      } catch (const Error& caught) {
        error = caught;
      }
      const Error next = run_until_error(world, Traffic::barrier);
      CAPTURE(std::string(next.what()));
      CHECK(next.kind() == ErrorKind::poisoned);
      CHECK(next.peer() == 1);
      CHECK(says(next, "dropped without wait()"));
      CHECK(error.has_value() == (rank != 1));
      // What was registered is ordinary memory by now, and free again.
      CHECK_THROWS_AS(ArenaArray<float>(world.arena(), std::size_t{32} << 20), Error);
      std::vector<float> mine(count, 5.0F);
      World fresh = join_again("C053-" + std::to_string(::getppid()) + "-" + std::to_string(turn), rank, ranks());
      all_reduce(fresh, std::span(mine), Sum{});
      CHECK(mine[count - 1] == 5.0F * static_cast<float>(ranks()));
    });
  }
}

TEST_CASE("C045: a rank is killed with large operations in flight; every one of the others' fails, and soon") {
  constexpr std::size_t count = 4 << 20;
  for (int turn = 0; turn < in_full(3, 20); ++turn) {
    const auto when = std::chrono::microseconds(5000 + mix(static_cast<std::uint64_t>(turn)) % 60'000);
    CAPTURE(when.count());
    SharedPage notes;
    const auto endings = run_ranks(ranks(), [&](int rank) {
      std::optional<World> world(join<TestTransport>());
      std::vector<std::vector<float>> buffers(3, std::vector<float>(count, 1.0F));
      ArenaArray<float> registered(world->arena(), count);
      for (float& it : registered) it = 1.0F;
      barrier(*world);
      if (rank == 1) {
        std::thread([&] {
          std::this_thread::sleep_for(when);
          notes->died_at = now_ns();
          ::kill(::getpid(), SIGKILL);
        }).detach();
      }
      while (true) {
        std::vector<Work> pending;
        const auto began = error_of([&] {
          for (auto& it : buffers) pending.push_back(all_reduce_async(*world, std::span(it), Max{}));
          pending.push_back(all_reduce_async(*world, std::span(registered.data(), count), Max{}));
        });
        std::size_t failed = 0;
        for (auto& it : pending) {
          const auto error = error_of([&] { it.wait(); });
          if (!error) continue;
          ++failed;
          CHECK(error->peer() == 1);
        }
        if (failed == 0 && !began) continue;
        CHECK(now_ns() - notes->died_at < 5'000'000'000);
        // Nothing works for this communicator any more: what it costs from here on is a short sleep.
        timespec used{}, later{};
        ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
        std::this_thread::sleep_for(50ms);
        ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &later);
        CHECK((later.tv_sec - used.tv_sec) * 1000 + (later.tv_nsec - used.tv_nsec) / 1'000'000 < 20);
        return;
      }
    });
    for (int rank = 0; rank < ranks(); ++rank) {
      CHECK(endings[static_cast<std::size_t>(rank)].signal == (rank == 1 ? SIGKILL : 0));
      CHECK(endings[static_cast<std::size_t>(rank)].code == 0);
    }
  }
}

TEST_CASE("C044: a rank that skips one operation is named by the others") {
  SharedPage notes;
  on_ranks(ranks(), [&](int rank) {
    World world = join<TestTransport>();
    CallOptions options;
    options.timeout = 500ms;
    barrier(world);
    if (rank == 1) {
      const Deadline patience = Deadline::after(15s);
      while (notes->seen != ranks() - 1 && !patience.expired()) std::this_thread::sleep_for(1ms);
      // The others have announced that one: it is over here, and the next one fails.
      const Error error = run_until_error(world, Traffic::barrier, options);
      CAPTURE(std::string(error.what()));
      CHECK(error.peer() == 1);
      return;
    }
    const auto error = error_of([&] { barrier(world, options); });
    REQUIRE(error);
    CAPTURE(std::string(error->what()));
    CHECK(error->kind() == ErrorKind::timeout);
    CHECK(error->peer() == 1);
    CHECK(says(*error, "rank 1 ("));
    notes->seen.fetch_add(1);
  });
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

// Each thread joins by itself, as a process would: not over one mapping, as join_threads does.
TEST_CASE("ranks that are threads of one process, of which one leaves by an exception") {
  const std::string name = fresh_rendezvous();
  on_ranks(1, [&](int) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          std::optional<World> world(join_again(name, rank, ranks()));
          for (const Traffic traffic : all_traffic) {
            TrafficBuffers buffers(*world);
            for (int turn = 0; turn < 3; ++turn) run_once(*world, traffic, buffers, {}, [] {});
          }
          if (rank == 1) throw std::logic_error("a bad batch");
          const Error error = run_until_error(*world, Traffic::ring);
          CAPTURE(std::string(error.what()));
          CHECK(error.kind() == ErrorKind::dead_peer);
          CHECK(error.peer() == 1);
          CHECK(says(error, "rank 1 left"));
          world.reset();
          World fresh = join_again(name + "-again", rank == 0 ? 0 : rank - 1, ranks() - 1);
          std::int64_t value = 1;
          all_reduce(fresh, std::span(&value, 1), Sum{});
          CHECK(value == ranks() - 1);
        } catch (const std::logic_error&) {
          CHECK(rank == 1);
        }
      });
    }
    for (auto& thread : threads) thread.join();
  });
}

TEST_CASE("C052: one rank destroys its communicator and lives on") {
  SharedPage notes;
  on_ranks(ranks(), [&](int rank) {
    auto world = std::make_unique<World>(join<TestTransport>());
    std::vector<float> data(5000, 1.0F);
    for (int step = 0; step < 5; ++step) all_reduce(*world, std::span(data), Max{});
    if (rank == 0) {
      const auto began = now_ns();
      world.reset();
      CHECK(now_ns() - began < 5'000'000'000);
      const Deadline patience = Deadline::after(20s);
      while (notes->seen != ranks() - 1 && !patience.expired()) std::this_thread::sleep_for(1ms);
      return;
    }
    const Error error = run_until_error(*world, Traffic::ring);
    CHECK(error.kind() == ErrorKind::dead_peer);
    CHECK(error.peer() == 0);
    notes->seen.fetch_add(1);
  });
}

TEST_CASE("C050: a forked child cannot use the communicator, and its end is not noticed") {
  on_ranks(ranks(), [](int rank) {
    World world = join<TestTransport>();
    std::vector<float> data(50000, 1.0F);
    all_reduce(world, std::span(data), Max{});
    enum class Leaves { by_exit, by_quick_exit, after_its_communicator };
    for (const Leaves way : {Leaves::by_exit, Leaves::by_quick_exit, Leaves::after_its_communicator}) {
      if (rank == 0) {
        std::fflush(nullptr);
        const ::pid_t child = ::fork();
        if (child == 0) {
          int wrong = 0;
          try {
            barrier(world);
            wrong = 10;
          } catch (const Error& error) {
            if (error.kind() != ErrorKind::environment || !says(error, "fork")) wrong = 11;
          }
          if (way == Leaves::by_quick_exit) ::_exit(wrong);
          if (way == Leaves::after_its_communicator) {
            World gone(std::move(world));  // its destructor must leave the parent's ranks alone
          }
          std::exit(wrong);
        }
        const int status = wait_for(child, 10s);
        CHECK(WIFEXITED(status));
        CHECK(WEXITSTATUS(status) == 0);
      }
      for (int turn = 0; turn < 5; ++turn) all_reduce(world, std::span(data), Max{});
      ArenaArray<float> registered(world.arena(), 50000);
      std::copy(data.begin(), data.end(), registered.begin());
      all_reduce(world, std::span(registered.data(), registered.size()), Sum{});
      CHECK(registered[49999] == static_cast<float>(ranks()));
    }
  });
}

// The child holds the dead rank's descriptors open. It becomes this process's when its parent has gone.
TEST_CASE("C050: a rank is killed while its forked child lives on") {
  SharedPage notes;
  REQUIRE(::prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
  const auto endings = run_ranks(2, [&](int rank) {
    World world = join<TestTransport>();
    barrier(world);
    if (rank == 0) {
      std::fflush(nullptr);
      const ::pid_t child = ::fork();
      if (child == 0) {
        const Deadline patience = Deadline::after(20s);
        while (notes->seen == 0 && !patience.expired()) std::this_thread::sleep_for(1ms);
        ::_exit(notes->seen == 1 ? 0 : 1);
      }
      notes->process[0] = child;
      notes->died_at = now_ns();
      ::kill(::getpid(), SIGKILL);
    }
    const Error error = run_until_error(world, Traffic::barrier);
    CHECK(error.kind() == ErrorKind::dead_peer);
    CHECK(error.peer() == 0);
    CHECK(now_ns() - notes->died_at < 2'500'000'000);
    CHECK(::kill(notes->process[0], 0) == 0);  // the child is still there
    notes->seen = 1;
  });
  const int status = wait_for(notes->process[0], 5s);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  CHECK(endings[0].signal == SIGKILL);
  CHECK(endings[1].clean());
}

namespace {
std::unique_ptr<World> namespace_static;
World* volatile leaked;  // volatile: LeakSanitizer must find the pointer, which nobody reads
}  // namespace

// No explicit end, in a namespace static, a function static and a leaked pointer; std::exit in the middle, also of an
// operation.
TEST_CASE("C051: communicators in static objects are no trouble at exit") {
  for (int kind = 0; kind < 4; ++kind) {
    CAPTURE(kind);
    const auto endings = run_ranks(2, [&](int rank) {
      const auto pid = ::fork();  // a process whose exit() runs destructors and handlers
      if (pid == 0) {
        auto world = std::make_unique<World>(join<TestTransport>());
        std::vector<float> data(50000, 1.0F);
        all_reduce(*world, std::span(data), Max{});
        if (kind == 0 || kind == 3) {
          namespace_static = std::move(world);
          int left = 1000;
          const auto op = [&](float a, float b) {
            if (--left == 0) std::exit(7 + rank);
            return a + b;
          };
          try {
            if (kind == 3) all_reduce(*namespace_static, std::span(data), op);
          } catch (const Error& error) {  // the other rank was in its exit() before this one's thousandth element
            const auto left_it = "rank " + std::to_string(1 - rank) + " left";
            if (std::string(error.what()).find(left_it) == std::string::npos) throw;
          }
        } else if (kind == 1) {
          static std::unique_ptr<World> function_static;
          function_static = std::move(world);
        } else {
          leaked = world.release();
        }
        std::exit(7 + rank);
      }
      const int status = wait_for(pid, 15s);
      CHECK(WIFEXITED(status));
      CHECK(WEXITSTATUS(status) == 7 + rank);
    });
    for (const auto& ending : endings) CHECK(ending.clean());
  }
}
