// SPDX-License-Identifier: Apache-2.0
// The failure matrix: every kind of traffic x {killed, stopped, ended without closing, an exception} x {2, 3, 4} ranks,
// at a random point of endless traffic. Each survivor is told who it was, fails at once from then on, and goes on in a
// fresh world; a stopped rank that resumes is told too, and reaches nobody's memory.
//
//   TANDEM_MATRIX=full         every cell with every rank as the victim, instead of a sample
//   TANDEM_MATRIX="ring, SIG"  those of them whose names contain this, as "ring, SIGSTOP of rank 1 of 4"
//   TANDEM_SEED=n              of the sample and of the moments; printed
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/ranks.hpp"
#include "support/samples.hpp"
#include "support/shared_page.hpp"
#include "support/traffic.hpp"

using namespace tandem;
using namespace tandem::test;
using namespace std::chrono_literals;

namespace {

enum class Failure { kill, stop, exit, exception };
constexpr Failure all_failures[] = {Failure::kill, Failure::stop, Failure::exit, Failure::exception};
constexpr const char* words_of(Failure failure) {
  constexpr const char* names[] = {"SIGKILL", "SIGSTOP", "exit without close", "exception"};
  return names[static_cast<int>(failure)];
}

struct Cell {
  Traffic traffic;
  Failure failure;
  int ranks;
  int victim;
  std::chrono::microseconds moment;  // of traffic before it

  std::string name() const {
    return std::string(tandem::test::name_of(traffic)) + ", " + words_of(failure) + " of rank " +
           std::to_string(victim) + " of " + std::to_string(ranks);
  }
};

/// Of every call where a rank is stopped. A death has to be noticed without one.
constexpr std::chrono::nanoseconds deadline = 500ms;
/// What is promised is a second, from the death, or from the deadline. The machine may be busy: it shows in the
/// figures.
constexpr std::int64_t promise_ns = 1'000'000'000;
constexpr std::int64_t limit_ns = 5 * promise_ns;

struct Thrown {};

/// Fails as the cell says in the middle of its traffic. Returns when the rank is a stopped one that was resumed, or one
/// that was left by an exception.
void be_the_victim(const Cell& cell, std::optional<World>& world, TrafficBuffers& buffers, const CallOptions& options,
                   SharedPage& notes) {
  const auto patience = [&](auto until) {
    const Deadline end = Deadline::after(15s);
    while (!until() && !end.expired()) std::this_thread::sleep_for(1ms);
    CHECK(until());
  };
  if (cell.failure == Failure::exception) {
    const auto when = now_ns() + std::chrono::nanoseconds(cell.moment).count();
    try {
      World unwound(std::move(*world));
      world.reset();
      const Error error = run_until_error(unwound, cell.traffic, buffers, options, [&] {
        if (now_ns() < when) return;
        notes->died_at = now_ns();
        throw Thrown{};
      });
      FAIL_CHECK("failed before its own exception: " << error.what());
    } catch (const Thrown&) {
    }
    // The process lives on: the others must not need its death to notice.
    patience([&] { return notes->seen == cell.ranks - 1; });
    return;
  }
  std::thread([&cell, &notes] {
    std::this_thread::sleep_for(cell.moment);
    notes->died_at = now_ns();
    if (cell.failure == Failure::exit) ::_exit(0);
    ::kill(::getpid(), cell.failure == Failure::kill ? SIGKILL : SIGSTOP);
  }).detach();
  const Error error = run_until_error(*world, cell.traffic, buffers, options, [] {});
  CAPTURE(std::string(error.what()));
  CHECK((error.kind() == ErrorKind::timeout || error.kind() == ErrorKind::dead_peer));
  CHECK(run_until_error(*world, cell.traffic, buffers, options, [] {}).kind() == ErrorKind::poisoned);
  notes->phase = 1;
}

/// The survivors' memory is theirs from now on: also what was part of the traffic.
void fill(TrafficBuffers& buffers, ArenaArray<std::uint64_t>& apart, std::uint64_t seed) {
  const auto pattern = [&](std::size_t i) { return static_cast<float>(mix(seed + i) >> 40); };
  for (std::size_t i = 0; i < buffers.count; ++i) buffers.registered[i] = buffers.data[i] = pattern(i);
  for (std::size_t i = 0; i < buffers.slice.size(); ++i) buffers.slice[i] = pattern(i);
  for (std::size_t i = 0; i < apart.size(); ++i) apart[i] = mix(~seed + i);
}
struct Bits {
  std::vector<float> registered, data, slice;
  std::vector<std::uint64_t> apart;

  Bits(const TrafficBuffers& buffers, const ArenaArray<std::uint64_t>& apart_)
      : registered(buffers.registered.begin(), buffers.registered.end()),
        data(buffers.data),
        slice(buffers.slice),
        apart(apart_.begin(), apart_.end()) {}
  friend bool operator==(const Bits& a, const Bits& b) {
    const auto same = [](const auto& x, const auto& y) {
      return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(x[0])) == 0;
    };
    return same(a.registered, b.registered) && same(a.data, b.data) && same(a.slice, b.slice) && same(a.apart, b.apart);
  }
};

/// Rounds of the fresh world, of which each is checked; `last` says on its rank 0 when it is the last.
template <class Last>
void work(World& world, Last last) {
  for (std::int64_t turn = 1, end = 0; end == 0; ++turn) {
    ArenaArray<std::int64_t> registered(world.arena(), 5000);
    std::vector<std::int64_t> data(5000, turn + world.rank());
    std::copy(data.begin(), data.end(), registered.begin());
    all_reduce(world, std::span(data), Sum{});
    all_reduce(world, std::span(registered.data(), registered.size()), Sum{});
    const std::int64_t sum = world.size() * turn + world.size() * (world.size() - 1) / 2;
    if (data[4999] != sum || registered[4999] != sum) FAIL_CHECK("turn " << turn << ": " << data[4999]);
    end = world.rank() == 0 && last() ? 1 : 0;
    broadcast(world, std::span(&end, 1), 0);
  }
}

void survive(const Cell& cell, int rank, std::optional<World>& world, TrafficBuffers& buffers,
             const CallOptions& options, const std::string& again, SharedPage& notes) {
  const bool stopped = cell.failure == Failure::stop;
  ArenaArray<std::uint64_t> apart(world->arena(), 1 << 12);  // registered, and no part of the traffic
  const Error error = run_until_error(*world, cell.traffic, buffers, options, [] {});
  notes->noticed[rank] = now_ns();
  const std::int64_t took = notes->noticed[rank] - notes->died_at;
  CAPTURE(std::string(error.what()));
  CAPTURE(took);
  CHECK(notes->died_at != 0);
  CHECK(took < limit_ns + (stopped ? deadline.count() : 0));
  // A rank that is left by an exception with an operation in flight says that it gave it up.
  CHECK((error.kind() == (stopped ? ErrorKind::timeout : ErrorKind::dead_peer) ||
         (cell.failure == Failure::exception && error.kind() == ErrorKind::poisoned)));
  CHECK(error.peer() == cell.victim);
  CHECK(error.rank() == rank);
  CHECK(std::string(error.what()).find("rank " + std::to_string(cell.victim)) != std::string::npos);

  CHECK(world->poisoned());
  const auto asked = now_ns();
  const Error next = run_until_error(*world, cell.traffic, buffers, options, [] {});
  CHECK(next.kind() == ErrorKind::poisoned);
  CHECK(next.peer() == cell.victim);
  CHECK(now_ns() - asked < limit_ns);
  notes->seen.fetch_add(1);
  if (!stopped) world.reset();

  World fresh = join_again(again, rank < cell.victim ? rank : rank - 1, cell.ranks - 1);
  if (!stopped) return work(fresh, [] { return true; });
  fill(buffers, apart, static_cast<std::uint64_t>(rank));
  const Bits before(buffers, apart);
  barrier(fresh);
  if (fresh.rank() == 0) ::kill(notes->process[cell.victim], SIGCONT);
  const Deadline patience = Deadline::after(10s);
  work(fresh, [&] { return notes->phase == 1 || patience.expired(); });
  CHECK(notes->phase == 1);
  CHECK(Bits(buffers, apart) == before);
}

/// The time that each survivor took to notice.
std::vector<std::int64_t> run(const Cell& cell) {
  SharedPage notes;
  const std::string again = fresh_rendezvous();
  const auto endings = run_ranks(
      cell.ranks,
      [&](int rank) {
        JoinOptions join_options;
        join_options.timeout = 30s;
        CallOptions options;
        if (cell.failure == Failure::stop) options.timeout = deadline;
        std::optional<World> world(join<TestTransport>(join_options));
        notes->process[rank] = ::getpid();
        TrafficBuffers buffers(*world);
        barrier(*world);
        if (rank == cell.victim)
          be_the_victim(cell, world, buffers, options, notes);
        else
          survive(cell, rank, world, buffers, options, again, notes);
      },
      25s);
  std::vector<std::int64_t> took;
  for (int rank = 0; rank < cell.ranks; ++rank) {
    CAPTURE(rank);
    const auto& ending = endings[static_cast<std::size_t>(rank)];
    CHECK(ending.signal == (rank == cell.victim && cell.failure == Failure::kill ? SIGKILL : 0));
    CHECK(ending.code == 0);
    if (rank != cell.victim) took.push_back(notes->noticed[rank] - notes->died_at);
  }
  return took;
}

/// A sample, or all whose names contain `wanted`.
std::vector<Cell> cells(const std::optional<std::string>& wanted, std::mt19937& random) {
  const auto moment = [&] { return std::chrono::microseconds(random() % 30000); };
  const auto any = [&](int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); };
  std::vector<Cell> chosen;
  if (wanted) {
    for (const Traffic traffic : all_traffic) {
      for (const Failure failure : all_failures) {
        for (int ranks = 2; ranks <= 4; ++ranks) {
          for (int victim = 0; victim < ranks; ++victim) {
            const Cell cell{traffic, failure, ranks, victim, moment()};
            if (cell.name().find(*wanted) != std::string::npos) chosen.push_back(cell);
          }
        }
      }
    }
    return chosen;
  }
  // Two failures of each traffic, of each failure as many.
  int turn = any(4);
  for (const Traffic traffic : all_traffic) {
    for (const int other : {0, 2}) {
      const int ranks = 2 + any(3);
      chosen.push_back({traffic, all_failures[(turn + other) % 4], ranks, any(ranks), moment()});
    }
    ++turn;
  }
  return chosen;
}

/// Rows of the table in docs/reference/reliability.md.
void print(Failure failure, std::size_t runs, std::vector<std::int64_t> took) {
  if (took.empty()) return;
  std::sort(took.begin(), took.end());
  const auto late = std::count_if(took.begin(), took.end(), [](std::int64_t it) { return it > promise_ns; });
  const auto ms = [](std::int64_t ns) { return static_cast<double>(ns) / 1e6; };
  std::printf("| %s | %s | %zu | %zu | %.1f ms | %.1f ms | %ld |\n", TestTransport::name, words_of(failure), runs,
              took.size(), ms(took[took.size() / 2]), ms(took.back()), static_cast<long>(late));
}

}  // namespace

TEST_CASE("C045 C048 C052: the failure matrix") {
  const char* const which = std::getenv("TANDEM_MATRIX");
  std::optional<std::string> wanted;
  if (which != nullptr) wanted = std::string(which) == "full" ? "" : which;
  const char* const given = std::getenv("TANDEM_SEED");
  const unsigned seed = given != nullptr ? static_cast<unsigned>(std::atoll(given)) : std::random_device{}();
  std::printf("TANDEM_SEED=%u\n", seed);
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::vector<std::int64_t> took[std::size(all_failures)];
  std::size_t runs[std::size(all_failures)] = {};
  const auto chosen = cells(wanted, random);
  REQUIRE(!chosen.empty());
  for (const Cell& cell : chosen) {
    CAPTURE(cell.name());
    CAPTURE(cell.moment.count());
    const auto kind = static_cast<std::size_t>(cell.failure);
    ++runs[kind];
    for (const std::int64_t it : run(cell)) {
      took[kind].push_back(it - (cell.failure == Failure::stop ? deadline.count() : 0));
    }
  }
  std::printf("| transport | one rank | cells | survivors | half notice within | all within | later than 1 s |\n");
  for (const Failure failure : all_failures) {
    const auto kind = static_cast<std::size_t>(failure);
    print(failure, runs[kind], took[kind]);
  }
}
