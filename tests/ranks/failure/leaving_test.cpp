// SPDX-License-Identifier: Apache-2.0
// Ranks that leave in other ways: an exception, a one-sided destroy, a fork, a communicator in a static object, calls
// that do not match. Nobody hangs, nobody is ended by a signal.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

#include "support/ranks.hpp"
#include "support/shared_page.hpp"
#include "support/traffic.hpp"

using namespace tandem;
using namespace tandem::test;
using namespace std::chrono_literals;

namespace {

template <class Call>
std::optional<Error> error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}
bool says(const Error& error, const std::string& text) {
  return std::string(error.what()).find(text) != std::string::npos;
}

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

TEST_CASE("an exception unwinds one rank's communicator in the middle of training") {
  on_ranks(ranks(), [](int rank) {
    try {
      World world = join<TestTransport>();
      std::vector<float> data(50000, 1.0F);
      for (int step = 0;; ++step) {
        if (rank == 1 && step == 3) throw std::logic_error("a bad batch");
        all_reduce(world, std::span(data), Max{});
      }
    } catch (const std::logic_error&) {
      CHECK(rank == 1);
    } catch (const Error& error) {
      CAPTURE(std::string(error.what()));
      CHECK(rank != 1);
      CHECK(error.kind() == ErrorKind::dead_peer);
      CHECK(error.peer() == 1);
      CHECK(says(error, "rank 1 left"));
    }
  });
}

TEST_CASE("one rank destroys its communicator and lives on") {
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

TEST_CASE("calls that do not match are told on every rank, naming both values and both places") {
  on_ranks(ranks(), [](int rank) {
    for (int kind = 0; kind < 6; ++kind) {
      World world = join_again("mismatch-" + std::to_string(::getppid()) + "-" + std::to_string(kind), rank, ranks());
      std::vector<float> data(4, static_cast<float>(rank + 1));
      const std::vector<float> before = data;
      std::vector<std::int32_t> integers(4, 3);
      const std::span<float> all(data);
      const bool odd = rank == 1;
      const auto error = error_of([&] {
        switch (kind) {
          case 0:
            odd ? all_reduce(world, std::span(integers), Sum{}) : all_reduce(world, all, Sum{});
            break;
          case 1:
            odd ? all_reduce(world, all, Max{}) : all_reduce(world, all, Sum{});
            break;
          case 2:
            all_reduce(world, all.first(odd ? 3 : 4), Sum{});
            break;
          case 3:
            broadcast(world, all, odd ? 1 : 0);
            break;
          case 4:
            odd ? broadcast(world, all, 0) : all_reduce(world, all, Sum{});
            break;
          default:
            odd ? barrier(world) : (void)world.split(0, 0);
            break;
        }
      });
      REQUIRE(error);
      CAPTURE(std::string(error->what()));
      CHECK(error->kind() == ErrorKind::mismatch);
      constexpr const char* left[] = {"float32", "Sum", "4", "0", "all_reduce", "split"};
      constexpr const char* right[] = {"int32", "Max", "3", "1", "broadcast", "barrier"};
      CHECK(says(*error, left[kind]));
      CHECK(says(*error, right[kind]));
      CHECK(says(*error, "leaving_test.cpp"));
      CHECK(data == before);
      CHECK(error_of([&] { barrier(world); })->kind() == ErrorKind::poisoned);
    }
  });
}

// C050: the child has no part in the communicator and harms nobody by ending.
TEST_CASE("a forked child cannot use the communicator, and its end is not noticed") {
  on_ranks(ranks(), [](int rank) {
    World world = join<TestTransport>();
    std::vector<float> data(50000, 1.0F);
    all_reduce(world, std::span(data), Max{});
    for (const bool quick : {false, true}) {
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
          if (quick) {
            ::_exit(wrong);
          }
          {
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

// C050 c: a child of the dead rank holds its descriptors open; the others notice all the same.
TEST_CASE("a rank is killed while its forked child lives on") {
  SharedPage notes;
  const auto endings = run_ranks(2, [&](int rank) {
    World world = join<TestTransport>();
    barrier(world);
    if (rank == 0) {
      std::fflush(nullptr);
      const ::pid_t child = ::fork();
      if (child == 0) {
        std::this_thread::sleep_for(3s);
        ::_exit(0);
      }
      notes->died_at = now_ns();
      ::kill(::getpid(), SIGKILL);
    }
    const Error error = run_until_error(world, Traffic::barrier);
    CHECK(error.kind() == ErrorKind::dead_peer);
    CHECK(error.peer() == 0);
    CHECK(now_ns() - notes->died_at < 2'500'000'000);
  });
  CHECK(endings[0].signal == SIGKILL);
  CHECK(endings[1].clean());
}

namespace {
std::unique_ptr<World> namespace_static;
World* volatile leaked;  // volatile: LeakSanitizer must find the pointer, which nobody reads
}  // namespace

// C051: no explicit end, in a namespace static, a function static and a leaked pointer; std::exit in the middle.
TEST_CASE("communicators in static objects are no trouble at exit") {
  for (int kind = 0; kind < 3; ++kind) {
    const auto endings = run_ranks(2, [&](int rank) {
      const auto pid = ::fork();  // a process whose exit() runs destructors and handlers
      if (pid == 0) {
        auto world = std::make_unique<World>(join<TestTransport>());
        std::vector<float> data(50000, 1.0F);
        all_reduce(*world, std::span(data), Max{});
        if (kind == 0) {
          namespace_static = std::move(world);
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
