// SPDX-License-Identifier: Apache-2.0
// A rank that is stopped at a known place: halfway through copying out of another's memory. Its output has a page that
// may not be touched yet; who touches it stops itself.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "support/errors.hpp"
#include "support/ranks.hpp"
#include "support/shared_page.hpp"
#include "support/worlds.hpp"
#include "tandem/collective/all_gather.hpp"
#include "tandem/collective/all_reduce.hpp"
#include "tandem/collective/barrier.hpp"
#include "tandem/collective/broadcast.hpp"
#include "tandem/collective/explain.hpp"

using namespace tandem;
using namespace tandem::test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t count = std::size_t{4} << 20;  // floats: many pieces
constexpr int stopped = 2;

/// `count` floats outside every window.
class Pages {
 public:
  Pages() : begin_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(begin_ != MAP_FAILED);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { ::munmap(begin_, bytes); }
  std::span<float> all() const { return {static_cast<float*>(begin_), count}; }

  /// Whoever writes into the second half is stopped there, once.
  void set_trap() const {
    begin = begin_;
    struct sigaction action {};
    action.sa_handler = [](int) {
      if (::mprotect(begin, bytes, PROT_READ | PROT_WRITE) != 0) ::_exit(3);
      ::raise(SIGSTOP);
    };
    REQUIRE(::sigaction(SIGSEGV, &action, nullptr) == 0);
    REQUIRE(::mprotect(static_cast<std::byte*>(begin_) + bytes / 2, bytes / 2, PROT_NONE) == 0);
  }

 private:
  static constexpr std::size_t bytes = count * sizeof(float);
  static inline void* begin = nullptr;  // for the handler
  void* begin_;
};

void wait_for(const std::atomic<std::int32_t>& number, int least) {
  const Deadline patience = Deadline::after(20s);
  while (number < least && !patience.expired()) std::this_thread::sleep_for(1ms);
  CHECK(number >= least);
}

/// `operate(world, buffer)` is stopped on rank 2 of 3.
template <class Operate>
void stop_inside(const Operate& operate) {
  SharedPage notes;
  const std::string again = fresh_rendezvous();
  on_ranks(3, [&](int rank) {
    JoinOptions options;
    options.timeout = 1s;
    World world = join<ShmRing>(options);
    notes->process[rank] = ::getpid();
    const Pages pages;
    for (float& it : pages.all()) it = static_cast<float>(rank);
    barrier(world);
    if (rank == stopped) pages.set_trap();
    const auto error = error_of([&] { operate(world, pages.all()); });
    REQUIRE(error);
    CAPTURE(std::string(error->what()));
    if (rank == stopped) {  // goes on where it was, and is told
      CHECK(notes->seen == 2);
      notes->phase = 1;
      return;
    }
    CHECK(error->kind() == ErrorKind::timeout);
    CHECK(error->peer() == stopped);
    notes->seen.fetch_add(1);
    // No survivor's memory changes while the stopped one wakes up, nor what they do meanwhile.
    const std::vector<float> before(pages.all().begin(), pages.all().end());
    wait_for(notes->seen, 2);
    World fresh = join_again(again, rank, 2);
    std::vector<std::int32_t> sum(50000, 1);
    if (rank == 0) ::kill(notes->process[stopped], SIGCONT);
    do {
      std::fill(sum.begin(), sum.end(), 1);
      all_reduce(fresh, std::span(sum), Sum{});
      CHECK(sum == std::vector<std::int32_t>(50000, 2));
      std::int32_t over = notes->phase;
      broadcast(fresh, std::span(&over, 1), 0);
      if (over == 1) break;
    } while (true);
    CHECK(std::equal(before.begin(), before.end(), pages.all().begin()));
  });
}

}  // namespace

TEST_CASE("a rank stopped while it copies a broadcast out of the root's pieces") {
  stop_inside([](World& world, std::span<float> data) {
    CHECK(explain(world, Verb::broadcast, data.size_bytes()).path == Path::bounce);
    broadcast(world, data, 0);
  });
}

TEST_CASE("a rank stopped while it copies an all-gather out of another's pieces") {
  stop_inside([](World& world, std::span<float> data) {
    CHECK(explain(world, Verb::all_gather, data.size_bytes()).path == Path::bounce);
    const Range own = slice_of(count, world.size(), world.rank());
    const std::vector<float> mine(own.size(), static_cast<float>(world.rank()));
    all_gather(world, std::span<const float>(mine), data);
  });
}
