// SPDX-License-Identifier: Apache-2.0
// The arena: what it hands out, what it calls registered, how it grows, and what a failure leaves of it.
#include "tandem/comm/arena.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

using namespace tandem;

namespace {

/// An arena over plain memory, which notes what it asks of its transport.
struct Host {
  static constexpr std::size_t bytes = std::size_t{64} << 20;
  std::unique_ptr<std::byte[]> memory{new (std::align_val_t{page_bytes}) std::byte[bytes + page_bytes]};
  std::size_t limit = bytes;
  std::vector<Range> reserved{};
  std::vector<Range> kept{};
  std::vector<Range> given{};
  int detached = 0;
  Arena arena{memory.get(),
              {page_bytes, bytes},
              [this](Range range) {
                if (range.end > limit) throw Error(ErrorKind::system, "tandem: no memory");
                reserved.push_back(range);
              },
              [this](Range, const std::vector<Range>& ranges) {
                ++detached;
                kept = ranges;
                return true;
              },
              [this](Range range) { given.push_back(range); }};
  ~Host() { ::operator delete[](memory.release(), std::align_val_t{page_bytes}); }
};

}  // namespace

TEST_CASE("the arena gives aligned, disjoint memory and knows what is in it") {
  Host host;
  auto* const small = static_cast<std::byte*>(host.arena.allocate(5));
  auto* const large = static_cast<std::byte*>(host.arena.allocate(10000));
  CHECK(reinterpret_cast<std::uintptr_t>(small) % 128 == 0);
  CHECK(reinterpret_cast<std::uintptr_t>(large) % page_bytes == 0);
  CHECK(host.arena.offset_of(small, 5) == static_cast<std::uint64_t>(small - host.memory.get()));
  CHECK(host.arena.contains(large + 17, 10000 - 17));
  CHECK_FALSE(host.arena.contains(host.memory.get(), 8));    // before the heap
  CHECK_FALSE(host.arena.contains(large, Host::bytes));      // reaches past what is reserved
  CHECK_FALSE(host.arena.contains(large, ~std::size_t{0}));  // wraps around
  int outside = 0;
  CHECK_FALSE(host.arena.contains(&outside, sizeof outside));
  host.arena.release(small);
  host.arena.release(large);
  host.arena.release(nullptr);
}

TEST_CASE("the arena grows in few steps, and by what is needed when a large step fails") {
  Host host;
  for (int i = 0; i < 1000; ++i) host.arena.allocate(1000);
  CHECK(host.reserved.size() == 1);
  host.limit = std::size_t{3} << 20;  // another 2 MiB are not to be had, half of it is
  CHECK(host.arena.allocate(std::size_t{3} << 19) != nullptr);
  try {
    host.arena.allocate(std::size_t{20} << 20);
    FAIL("memory that is not there");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::system);
  }
  // What failed left no trace: the same range can be had once there is memory.
  host.limit = Host::bytes;
  CHECK(host.arena.allocate(std::size_t{20} << 20) != nullptr);
}

TEST_CASE("the arena names its size when it is full") {
  Host host;
  try {
    host.arena.allocate(Host::bytes);
    FAIL("more than there is");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::system);
    CHECK(std::string(error.what()).find("arena_bytes") != std::string::npos);
  }
}

TEST_CASE("after a failure nothing in the arena is registered, its memory stays, and it does not grow") {
  Host host;
  void* const first = host.arena.allocate(300);
  void* const second = host.arena.allocate(5000);
  host.arena.detach();
  host.arena.detach();
  CHECK(host.detached == 1);
  CHECK(host.kept.size() == 2);
  CHECK(host.arena.detached());
  CHECK_FALSE(host.arena.contains(first, 300));
  CHECK(host.arena.allocate(100) != nullptr);  // from pages that are there already
  CHECK_THROWS_AS(host.arena.allocate(std::size_t{9} << 20), Error);
  host.arena.release(first);
  host.arena.release(second);
}

TEST_CASE("trimmed, the arena gives whole free pages back, and makes them real again before it serves them") {
  constexpr std::size_t megabyte = std::size_t{1} << 20;
  Host host;
  void* const low = host.arena.allocate(100);
  void* const large = host.arena.allocate(20 * megabyte);
  void* const high = host.arena.allocate(100 + page_bytes);
  const auto place = [&host](void* memory) {
    return static_cast<std::size_t>(static_cast<std::byte*>(memory) - host.memory.get());
  };
  const std::size_t large_begin = place(large);
  const std::size_t large_end = large_begin + 20 * megabyte;
  host.arena.release(large);
  host.reserved.clear();
  host.arena.trim();
  REQUIRE(!host.given.empty());
  std::size_t whole = 0;
  for (const Range& range : host.given) {
    CHECK(range.begin % page_bytes == 0);
    CHECK(range.end % page_bytes == 0);
    CHECK(intersect(range, {place(low), place(low) + 100}).empty());
    CHECK(intersect(range, {place(high), place(high) + 100 + page_bytes}).empty());
    whole += intersect(range, {large_begin, large_end}).size();
  }
  CHECK(whole == 20 * megabyte);
  CHECK(host.reserved.empty());

  // In the hole: what is used is made real, in steps; what is not used stays away.
  void* const again = host.arena.allocate(9 * megabyte);
  const Range used{place(again), place(again) + 9 * megabyte};
  REQUIRE(host.reserved.size() == 1);
  CHECK(intersect(host.reserved[0], used) == used);
  CHECK(host.reserved[0].size() < 10 * megabyte);
  for (int i = 0; i < 100; ++i) host.arena.allocate(page_bytes);
  CHECK(host.reserved.size() <= 3);
  for (const Range& one : host.reserved) {
    for (const Range& other : host.reserved) CHECK((&one == &other || intersect(one, other).empty()));
  }

  // Given away a second time, and refused: nothing is lost, and later it is had.
  host.arena.release(again);
  host.arena.trim();
  host.limit = used.begin;
  CHECK_THROWS_AS(host.arena.allocate(9 * megabyte), Error);
  host.limit = Host::bytes;
  host.reserved.clear();
  void* const last = host.arena.allocate(9 * megabyte);
  const Range wanted{place(last), place(last) + 9 * megabyte};
  std::size_t real = 0;
  for (const Range& range : host.reserved) real += intersect(range, wanted).size();
  CHECK(real == 9 * megabyte);
}

TEST_CASE("the arena knows what lies in it, the most that did, and what it keeps") {
  constexpr std::size_t megabyte = std::size_t{1} << 20;
  Host host;
  CHECK(host.arena.use().real == 0);
  void* const small = host.arena.allocate(100);
  void* const large = host.arena.allocate(5 * megabyte);
  CHECK(host.arena.use().now == 5 * megabyte + 128);
  host.arena.release(large);
  CHECK(host.arena.use().now == 128);
  CHECK(host.arena.use().most == 5 * megabyte + 128);
  CHECK(host.arena.use().real >= 5 * megabyte);
  host.arena.watch_use();
  CHECK(host.arena.use().most == 128);
  host.arena.trim();
  CHECK(host.arena.use().real == page_bytes);
  CHECK_THROWS_AS(host.arena.allocate(Host::bytes), Error);
  CHECK(host.arena.use().now == 128);
  CHECK(host.arena.use().most == 128);
  host.arena.release(host.arena.allocate(megabyte));
  CHECK(host.arena.use().most == megabyte + 128);
  host.arena.release(small);
  CHECK(host.arena.use().now == 0);
}

TEST_CASE("after a failure the arena keeps its pages, and needs none of those it gave back") {
  Host host;
  host.arena.release(host.arena.allocate(std::size_t{4} << 20));
  host.arena.trim();
  const std::size_t given = host.given.size();
  host.arena.detach();
  host.arena.trim();
  CHECK(host.given.size() == given);
  host.reserved.clear();
  CHECK(host.arena.allocate(std::size_t{4} << 20) != nullptr);
  CHECK(host.reserved.empty());
}

TEST_CASE("several threads use the arena") {
  Host host;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&host, thread] {
      std::vector<std::pair<unsigned char*, std::size_t>> mine;
      for (std::size_t i = 0; i < 500; ++i) {
        const std::size_t bytes = 1 + i * 37 % 6000;
        auto* const memory = static_cast<unsigned char*>(host.arena.allocate(bytes));
        std::memset(memory, thread + 1, bytes);
        mine.emplace_back(memory, bytes);
        if (i % 3 == 0) {
          host.arena.release(mine.front().first);
          mine.erase(mine.begin());
        }
      }
      for (const auto& [memory, bytes] : mine) {
        for (std::size_t i = 0; i < bytes; ++i) {
          if (memory[i] != thread + 1) FAIL_CHECK("another thread's memory");
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(host.reserved.size() >= 1);
}

TEST_CASE("an array in the arena gives its memory back once") {
  Host host;
  const std::shared_ptr<Arena> arena(&host.arena, [](Arena*) {});
  {
    ArenaArray<float> array(arena, 100);
    std::iota(array.begin(), array.end(), 0.0F);
    ArenaArray<float> moved(std::move(array));
    CHECK(moved.size() == 100);
    CHECK(moved[99] == 99.0F);
    CHECK(host.arena.contains(moved.data(), 400));
    ArenaArray<float> other(arena, 7);
    other = std::move(moved);
    CHECK(other.size() == 100);
  }
  host.arena.detach();
  CHECK(host.kept.empty());  // all was given back
}

TEST_CASE("a size that would wrap is refused like any other that is too large") {
  Host host;
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - page_bytes, Host::bytes + 1}) {
    CHECK_THROWS_AS(host.arena.allocate(bytes), Error);
  }
  const std::shared_ptr<Arena> arena(std::shared_ptr<Arena>(), &host.arena);
  CHECK_THROWS_AS(ArenaArray<double>(arena, SIZE_MAX / 8 + 2), Error);
  CHECK_THROWS_AS(ArenaArray<double>(arena, std::size_t{1} << 61), Error);
  void* const first = host.arena.allocate(128);
  void* const second = host.arena.allocate(128);
  CHECK(first != second);
}
