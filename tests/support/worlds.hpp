// SPDX-License-Identifier: Apache-2.0
// The transport that a test runs on, and ranks as threads: over one mapping, for laws that ThreadSanitizer has to see
// both ends of. A rank that fails lets go of its communicator, so the others learn of it instead of waiting.
#pragma once

#include <doctest/doctest.h>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "tandem/collective/algorithm.hpp"
#include "tandem/comm/join.hpp"
#if defined(TANDEM_TEST_TRANSPORT_TCP)
#include "tandem/transport/tcp.hpp"
#endif

namespace tandem::test {

#if defined(TANDEM_TEST_TRANSPORT_TCP)
using TestTransport = Tcp;
#else
using TestTransport = ShmRing;
#endif
using World = Communicator<TestTransport>;
using DirectIfAny = std::conditional_t<TestTransport::has_windows, Direct, Auto>;

/// Generous: it ends a test that hangs, and must not end one that is merely slow under a sanitizer.
inline constexpr std::chrono::seconds law_timeout{120};

/// A fresh world of those that are left, `rank` of `size`.
inline World join_again(const std::string& name, int rank, int size) {
  JoinOptions options;
  options.identity = Identity{rank, size, rank, size, name, "the test"};
  options.timeout = std::chrono::seconds(30);
  return join<TestTransport>(options);
}

/// Worlds joined while it lives leave what is not registered to channels, as where the host forbids reading.
struct NothingIsFetched {
  NothingIsFetched() { ::setenv("TANDEM_CMA", "0", 1); }
  NothingIsFetched(const NothingIsFetched&) = delete;
  NothingIsFetched& operator=(const NothingIsFetched&) = delete;
  ~NothingIsFetched() { ::unsetenv("TANDEM_CMA"); }
};

/// Runs body(world) on one thread for each of `worlds`, and takes them along.
inline void on_worlds(std::vector<World> worlds, const std::function<void(World&)>& body) {
  std::vector<std::thread> threads;
  for (auto& world : worlds) {
    threads.emplace_back([&body, own = std::move(world)]() mutable {
      World mine(std::move(own));
      const int rank = mine.rank();
      const int size = mine.size();
      try {
        body(mine);
      } catch (const std::exception& error) {
        FAIL_CHECK("rank " << rank << " of " << size << " threw: " << error.what());
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

#if defined(TANDEM_TEST_TRANSPORT_TCP)

/// `ranks` ranks as threads of this process, connected as processes are.
inline void on_threads(int ranks, const std::function<void(World&)>& body, JoinOptions options = {}) {
  static std::atomic<int> number{0};
  const std::string job = "a test " + std::to_string(::getpid()) + " " + std::to_string(++number);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        JoinOptions own = options;
        if (!own.timeout) own.timeout = law_timeout;
        own.identity = Identity{rank, ranks, rank, ranks, job, "the test"};
        World world = join<TestTransport>(own);
        body(world);
      } catch (const std::exception& error) {
        FAIL_CHECK("rank " << rank << " of " << ranks << " threw: " << error.what());
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

#else

/// The in-process world of `ranks` ranks.
inline void on_threads(int ranks, const std::function<void(World&)>& body, JoinOptions options = {}) {
  if (!options.timeout) options.timeout = law_timeout;
  on_worlds(join_threads(ranks, options), body);
}

/// The same over rings of the smallest slots that are allowed, so that wrap-around and full rings are usual.
inline void on_threads_with_small_rings(int ranks, const std::function<void(World&)>& body) {
  ShmRing::Geometry geometry{};
  geometry.heap_bytes = std::size_t{64} << 20;
  geometry.collective_slot_bytes = 4096;
  geometry.message_slot_bytes = 256;
  std::vector<World> worlds;
  for (auto& endpoint : ShmRing::connect_threads(ranks, geometry)) {
    worlds.push_back(detail::make_world(std::move(endpoint), JoinOptions{}, law_timeout));
  }
  on_worlds(std::move(worlds), body);
}

#endif

}  // namespace tandem::test
