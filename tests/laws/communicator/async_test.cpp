// SPDX-License-Identifier: Apache-2.0
// Operations that were begun: several in flight, polled or not, between blocking operations, dropped; same bits as the
// blocking verbs.
#include "tandem/collective/async.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/collective_laws.hpp"

using namespace tandem;
using namespace tandem::test;

namespace {

struct Bucket {
  const Case<float, Sum>* c;
  GuardedBuffer<float> data;
  Bucket(const World& world, const Case<float, Sum>& c_, Registered registered)
      : c(&c_), data(arena_for(world, registered), c_.count(), 1) {
    data.fill(c->inputs[static_cast<std::size_t>(world.rank())]);
  }
  void check(const World& world, const char* what) const {
    if (!data.holds(c->result))
      FAIL_CHECK(what << ": wrong bits in " << c->count() << " elements on rank " << world.rank());
    if (!data.guards_intact()) FAIL_CHECK(what << ": wrote outside the buffer");
  }
};

const std::vector<std::size_t> bucket_counts{1, 0, 1003, 5000, 70001, 2, 30011};

}  // namespace

TEST_CASE("several pending all-reduces, polled and finished in order") {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    CAPTURE(ranks);
    const auto cases = usual_cases<float>(ranks, Sum{}, bucket_counts);
    for (const Registered registered : {Registered::everywhere, Registered::nowhere, Registered::on_last_rank}) {
      on_threads(ranks, [&](World& world) {
        for (int turn = 0; turn < 6; ++turn) {
          std::deque<Bucket> buckets;
          std::vector<Work> pending;
          const Ledger before = world.ledger();
          for (const auto& c : cases) {
            buckets.emplace_back(world, c, registered);
            pending.push_back(all_reduce_async(world, buckets.back().data.span(), Sum{}));
            if ((turn + world.rank()) % 2 == 0) {  // only some ranks look, so that they are at different places
              for (auto& it : pending) it.poll();
            }
          }
          for (auto& it : pending) it.wait();
          for (auto& it : pending) {
            it.wait();  // nothing is left to do
            if (!it.poll()) FAIL_CHECK("a finished operation is pending");
          }
          for (const auto& it : buckets) it.check(world, "in order");
          const Ledger used = world.ledger() - before;
          if (!used.balanced() || used.operations != cases.size()) FAIL_CHECK("the ledger: " << used.operations);
        }
      });
    }
  }
}

namespace {
/// All different, and rank 1's is zero.
std::vector<std::size_t> counts_of(int ranks) {
  std::vector<std::size_t> counts;
  for (int rank = 0; rank < ranks; ++rank) counts.push_back(rank == 1 ? 0 : 20011 + 7 * static_cast<std::size_t>(rank));
  return counts;
}
}  // namespace

TEST_CASE("a pending reduce-scatter by counts gives every rank its run of the all-reduce") {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    CAPTURE(ranks);
    const std::vector<std::size_t> counts = counts_of(ranks);
    const Case<float, Sum> c(ranks, std::accumulate(counts.begin(), counts.end(), std::size_t{0}), Sum{}, 3);
    for (const Registered registered : {Registered::everywhere, Registered::nowhere, Registered::on_last_rank}) {
      on_threads(ranks, [&](World& world) {
        const auto rank = static_cast<std::size_t>(world.rank());
        const std::size_t begin = std::accumulate(counts.begin(), counts.begin() + world.rank(), std::size_t{0});
        GuardedBuffer<float> in(arena_for(world, registered), c.count());
        in.fill(c.inputs[rank]);
        GuardedBuffer<float> out(nullptr, counts[rank]);
        const Ledger before = world.ledger();
        auto apart = reduce_scatter_v_async(world, in.span(), out.span(), counts, Sum{});
        apart.wait();
        if (!out.holds(part(c.result, {begin, begin + counts[rank]}))) FAIL_CHECK("wrong bits");
        auto in_place = reduce_scatter_v_async(world, in.span(), in.span().subspan(begin, counts[rank]), counts, Sum{});
        while (registered == Registered::everywhere && !in_place.poll()) std::this_thread::yield();
        in_place.wait();
        std::vector<float> expected = c.inputs[rank];
        std::copy(c.result.begin() + static_cast<std::ptrdiff_t>(begin),
                  c.result.begin() + static_cast<std::ptrdiff_t>(begin + counts[rank]),
                  expected.begin() + static_cast<std::ptrdiff_t>(begin));
        if (!in.holds(expected)) FAIL_CHECK("in place: wrong bits, or more than the own run changed");
        const Ledger used = world.ledger() - before;
        if (!used.balanced() || used.operations != 2) FAIL_CHECK("the ledger: " << used.operations);
      });
    }
  }
}

TEST_CASE("a pending all-gather by counts gives every rank all runs") {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    CAPTURE(ranks);
    const std::vector<std::size_t> counts = counts_of(ranks);
    const Case<float, Sum> c(ranks, std::accumulate(counts.begin(), counts.end(), std::size_t{0}), Sum{}, 5);
    for (const Registered registered : {Registered::everywhere, Registered::nowhere, Registered::on_last_rank}) {
      on_threads(ranks, [&](World& world) {
        const auto rank = static_cast<std::size_t>(world.rank());
        const std::size_t begin = std::accumulate(counts.begin(), counts.begin() + world.rank(), std::size_t{0});
        const auto own = part(c.result, {begin, begin + counts[rank]});
        GuardedBuffer<float> in(arena_for(world, registered), counts[rank]);
        in.fill(own);
        GuardedBuffer<float> out(arena_for(world, registered), c.count());
        const Ledger before = world.ledger();
        auto apart = all_gather_v_async(world, in.span(), out.span(), counts);
        while (registered == Registered::everywhere && !apart.poll()) std::this_thread::yield();
        apart.wait();
        if (!out.holds(c.result) || !in.holds(own)) FAIL_CHECK("wrong bits");
        std::vector<float> mine(c.count(), -1.0F);
        std::copy(own.begin(), own.end(), mine.begin() + static_cast<std::ptrdiff_t>(begin));
        out.fill(mine);
        auto in_place = all_gather_v_async(world, out.span().subspan(begin, counts[rank]), out.span(), counts);
        in_place.wait();
        if (!out.holds(c.result)) FAIL_CHECK("in place: wrong bits");
        const Ledger used = world.ledger() - before;
        if (!used.balanced() || used.operations != 2) FAIL_CHECK("the ledger: " << used.operations);
      });
    }
  }
}

TEST_CASE("registered operations complete by polling alone") {
  const auto cases = usual_cases<float>(3, Sum{}, bucket_counts);
  on_threads(3, [&](World& world) {
    std::deque<Bucket> buckets;
    std::vector<Work> pending;
    for (const auto& c : cases) {
      buckets.emplace_back(world, c, Registered::everywhere);
      pending.push_back(all_reduce_async(world, buckets.back().data.span(), Sum{}));
    }
    const Deadline deadline = Deadline::after(law_timeout);
    bool open = true;
    while (open && !deadline.expired()) {
      open = false;
      for (auto it = pending.rbegin(); it != pending.rend(); ++it) open = !it->poll() || open;
    }
    CHECK_FALSE(open);
    for (const auto& it : buckets) it.check(world, "by polling");
    barrier(world);
  });
}

TEST_CASE("blocking operations between beginning and finishing") {
  for (const Registered registered : {Registered::everywhere, Registered::nowhere, Registered::on_last_rank}) {
    const auto cases = usual_cases<float>(3, Sum{}, {3001, 70001});
    const Case<float, Sum> between(3, 20011, Sum{}, 77);
    on_threads(3, [&](World& world) {
      for (int turn = 0; turn < 10; ++turn) {
        Bucket first(world, cases[0], registered);
        Bucket second(world, cases[1], registered);
        auto one = all_reduce_async(world, first.data.span(), Sum{});
        Bucket blocking(world, between, Registered::everywhere);  // its ledger may hold the older ones' bytes
        all_reduce(world, blocking.data.span(), Sum{});
        blocking.check(world, "blocking");
        auto two = all_reduce_async(world, second.data.span(), Sum{});
        std::int64_t small = 1;
        all_reduce(world, std::span(&small, 1), Sum{});
        CHECK(small == 3);
        barrier(world);
        one.wait();
        two.wait();
        first.check(world, "between");
        second.check(world, "between");
      }
    });
  }
}

// Each rank finishes in an order of its own, with blocking operations over the same channels in between: all of it
// travels by the same rings, so the order there must not be the caller's.
TEST_CASE("unregistered operations finished in any order, and channels used in between") {
  const auto cases = usual_cases<float>(3, Sum{}, {20011, 20011, 20011});
  const Case<float, Sum> between(3, 20011, Sum{}, 77);
  on_threads(3, [&](World& world) {
    for (int turn = 0; turn < 10; ++turn) {
      std::deque<Bucket> buckets;
      std::vector<Work> pending;
      for (const auto& c : cases) {
        buckets.emplace_back(world, c, Registered::nowhere);
        pending.push_back(all_reduce_async(world, buckets.back().data.span(), Sum{}));
      }
      if (world.rank() == 1) pending[2].wait();
      Bucket blocking(world, between, Registered::nowhere);
      all_reduce<Ring>(world, blocking.data.span(), Sum{});
      blocking.check(world, "blocking");
      for (std::size_t i = 0; i < 3; ++i) pending[(i + static_cast<std::size_t>(world.rank())) % 3].wait();
      for (const auto& it : buckets) it.check(world, "any order");
      if (!world.ledger().balanced()) FAIL_CHECK("the ledger");
    }
  });
}

TEST_CASE("a pending operation may be moved") {
  const Case<float, Sum> c(2, 20011, Sum{}, 5);
  for (const Registered registered : {Registered::everywhere, Registered::nowhere}) {
    on_threads(2, [&](World& world) {
      Bucket bucket(world, c, registered);
      auto first = all_reduce_async(world, bucket.data.span(), Sum{});
      Work second(std::move(first));
      second.poll();
      std::vector<Work> third;
      third.push_back(std::move(second));
      third[0].wait();
      bucket.check(world, "moved");
    });
  }
}

TEST_CASE("as many operations may be pending as documented, one more is refused") {
  on_threads(2, [](World& world) {
    ArenaArray<float> memory(world.arena(), 64 * 40);
    for (float& it : memory) it = 1.0F;
    for (int turn = 0; turn < 5; ++turn) {
      std::vector<Work> pending;
      for (std::size_t i = 0; i < 32; ++i) {
        pending.push_back(all_reduce_async(world, std::span(memory.data() + 64 * i, 64), Sum{}));
      }
      try {
        auto refused = all_reduce_async(world, std::span(memory.data() + 64 * 32, 64), Sum{});
        FAIL_CHECK("33 operations are pending");
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::argument);
      }
      CHECK_FALSE(world.poisoned());
      for (auto& it : pending) it.wait();
    }
    CHECK(memory[0] == 32.0F);
    CHECK(memory[64 * 31 + 63] == 32.0F);
    CHECK(memory[64 * 32] == 1.0F);
  });
}

// The handle is dropped by an exception while the operation is in flight.
TEST_CASE("C053: a dropped operation gives the communicator up, and says so on every rank, once") {
  for (const Registered registered : {Registered::everywhere, Registered::nowhere}) {
    const Case<float, Sum> c(2, 100003, Sum{}, 5);
    std::mutex mutex;
    std::vector<std::string> notices;
    JoinOptions options;
    options.notice = [&](const std::string& text) {
      const std::lock_guard lock(mutex);
      notices.push_back(text);
    };
    on_threads(
        2,
        [&](World& world) {
          Bucket bucket(world, c, registered);
          Bucket other(world, c, registered);
          CallSite site{"user.cpp", "step", 7};
          if (world.rank() == 0) {
            try {
              auto dropped = all_reduce_async(world, bucket.data.span(), Sum{}, {}, site);
              auto too = all_reduce_async(world, other.data.span(), Sum{}, {}, site);
              throw std::runtime_error("of the user");
            } catch (const std::runtime_error&) {
            }
            CHECK(world.poisoned());
            CHECK_THROWS_AS(barrier(world), Error);
          } else {
            try {
              auto pending = all_reduce_async(world, bucket.data.span(), Sum{}, {}, site);
              pending.wait();
              FAIL_CHECK("the other rank dropped its part");
            } catch (const Error& error) {
              CAPTURE(std::string(error.what()));
              CHECK(std::string(error.what()).find("on rank 0 of 2: dropped without wait()") != std::string::npos);
              CHECK(error.peer() == 0);
            }
          }
        },
        options);
    REQUIRE(notices.size() == 1);
    CHECK(notices[0].find("all_reduce (operation 2, user.cpp:7 (step)) on rank 0 of 2: dropped without wait()") !=
          std::string::npos);
  }
}

TEST_CASE("a work is dropped by assignment too, and an empty or finished one is not lost") {
  std::atomic<int> notices{0};
  JoinOptions options;
  options.notice = [&](const std::string&) { ++notices; };
  on_threads(
      2,
      [&](World& world) {
        ArenaArray<float> data(world.arena(), 5000);
        for (float& it : data) it = 1.0F;
        Work work;
        CHECK(work.poll());
        work.wait();
        work = all_reduce_async(world, std::span(data.data(), data.size()), Sum{});
        work.wait();
        CHECK(data[4999] == 2.0F);
        work = all_reduce_async(world, std::span(data.data(), data.size()), Sum{});
        while (!work.poll()) {
        }
        work = Work();
        CHECK_FALSE(world.poisoned());
        barrier(world);
        CHECK(notices == 0);
        barrier(world);
        work = all_reduce_async(world, std::span(data.data(), data.size()), Sum{});
        if (world.rank() == 0) work = Work();  // the other's has nothing left to report then
        CHECK_THROWS_AS(barrier(world), Error);
      },
      options);
  CHECK(notices == 1);
}

TEST_CASE("a communicator that goes takes its operations with it") {
  std::atomic<int> notices{0};
  JoinOptions options;
  options.notice = [&](const std::string&) { ++notices; };
  on_threads(
      2,
      [&](World& world) {
        std::vector<float> data(5000, 1.0F);
        Work work;
        {
          World part = world.split(0, 0);
          work = all_reduce_async(part, std::span(data), Sum{});
          if (world.rank() == 0) {
            const World gone(std::move(part));
          } else {
            CHECK_THROWS_WITH_AS(work.wait(), doctest::Contains("dropped without wait()"), Error);
          }
        }
        CHECK_THROWS_WITH_AS(work.wait(), doctest::Contains("its communicator went"), Error);
        CHECK_THROWS_WITH_AS(work.poll(), doctest::Contains("its communicator went"), Error);
        CHECK_FALSE(world.poisoned());
        barrier(world);
      },
      options);
  CHECK(notices == 1);
}

TEST_CASE("wait has a deadline of its own, which older operations share") {
  using namespace std::chrono_literals;
  std::atomic<bool> failed{false};
  on_threads(2, [&](World& world) {
    std::vector<float> one(5000, 1.0F);
    std::vector<float> two(5000, 1.0F);
    if (world.rank() == 0) {
      auto older = all_reduce_async(world, std::span(one), Sum{});
      auto newer = all_reduce_async(world, std::span(two), Sum{});
      const auto start = std::chrono::steady_clock::now();
      try {
        newer.wait(200ms);
        FAIL_CHECK("the other rank was not there");
      } catch (const Error& error) {
        CAPTURE(std::string(error.what()));
        CHECK(error.kind() == ErrorKind::timeout);
        CHECK(error.peer() == 1);
        CHECK(std::string(error.what()).find("operation 1,") != std::string::npos);
      }
      CHECK(std::chrono::steady_clock::now() - start < 60s);  // not the communicator's
      CHECK_THROWS_AS(older.wait(), Error);
      failed = true;
    } else {
      while (!failed) std::this_thread::sleep_for(1ms);  // takes no part
    }
  });
}

// What was begun long ago has its whole timeout from the moment it is waited for.
TEST_CASE("the time before wait does not count") {
  using namespace std::chrono_literals;
  on_threads(2, [](World& world) {
    std::vector<float> data(5000, 1.0F);
    auto work = all_reduce_async(world, std::span(data), Sum{}, {.timeout = 2s});
    std::int32_t value = 1;
    all_reduce(world, std::span(&value, 1), Sum{});  // brings the older one forward
    std::this_thread::sleep_for(2500ms);
    if (world.rank() == 1) std::this_thread::sleep_for(300ms);
    work.wait();
    CHECK(data[0] == 2.0F);
  });
}

TEST_CASE("a user's functor that throws in poll is not called again for the same data") {
  on_threads(2, [](World& world) {
    ArenaArray<float> data(world.arena(), 5000);
    for (float& it : data) it = 1.0F;
    const auto op = [&world](float a, float b) {
      if (world.rank() == 0) throw std::runtime_error("no");
      return a + b;
    };
    auto work = all_reduce_async(world, std::span(data.data(), data.size()), op);
    if (world.rank() == 0) {
      CHECK_THROWS_WITH(work.wait(), "no");
      CHECK_THROWS_WITH_AS(work.wait(), doctest::Contains("failed before"), Error);
      CHECK(world.poisoned());
    } else {
      CHECK_THROWS_AS(work.wait(), Error);
    }
  });
}

// The other verbs, all in flight at the same time and mixed with all-reduces, waited for in another order on each rank.
TEST_CASE("reduce_scatter, all_gather and broadcast in flight") {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    CAPTURE(ranks);
    const auto cases = usual_cases<float>(ranks, Sum{}, {0, 1, 5, 1003, 40009});
    for (const Registered registered : {Registered::everywhere, Registered::nowhere, Registered::on_last_rank}) {
      on_threads(ranks, [&](World& world) {
        for (const auto& c : cases) {
          const auto& mine = c.inputs[static_cast<std::size_t>(world.rank())];
          const Range slice = cut(c.count(), ranks, world.rank());
          const auto arena = arena_for(world, registered);
          GuardedBuffer<float> scattered(arena, c.count()), out(nullptr, slice.size()), gathered(arena, c.count());
          GuardedBuffer<float> sent(arena, c.count()), reduced(arena, c.count(), 1), apart(arena, c.count());
          scattered.fill(mine);
          gathered.fill(std::vector<float>(c.count(), -1.0F));
          const auto own = gathered.span().subspan(slice.begin, slice.size());
          const auto expected = part(c.result, slice);
          std::copy(expected.begin(), expected.end(), own.begin());
          sent.fill(mine);
          reduced.fill(mine);
          const Ledger before = world.ledger();
          std::vector<Work> works;
          works.push_back(reduce_scatter_async(world, std::span<const float>(scattered.span()), out.span(), Sum{}));
          works.push_back(all_gather_async(world, std::span<const float>(own), gathered.span()));
          works.push_back(broadcast_async(world, sent.span(), ranks - 1));
          works.push_back(all_reduce_async(world, std::span<const float>(reduced.span()), apart.span(), Sum{}));
          for (Work& work : works) work.poll();
          for (std::size_t i = 0; i < works.size(); ++i) {
            works[(i + static_cast<std::size_t>(world.rank())) % works.size()].wait();
          }
          if (!out.holds(expected)) FAIL_CHECK("reduce_scatter of " << c.count());
          if (!scattered.holds(mine)) FAIL_CHECK("reduce_scatter changed its input");
          if (!gathered.holds(c.result)) FAIL_CHECK("all_gather of " << c.count());
          if (!sent.holds(c.inputs.back())) FAIL_CHECK("broadcast of " << c.count());
          if (!apart.holds(c.result) || !reduced.holds(mine)) FAIL_CHECK("all_reduce of " << c.count());
          const Ledger used = world.ledger() - before;
          if (!used.balanced() || used.operations != 4) FAIL_CHECK("the ledger: " << used.operations);
        }
      });
    }
  }
}

TEST_CASE("asynchronous calls that are wrong are refused before they are announced") {
  on_threads(2, [](World& world) {
    std::vector<float> data(10, 1.0F);
    const std::span<float> all(data);
    const auto kind = [](auto call) {
      try {
        Work work = call();
      } catch (const Error& error) {
        return error.kind();
      }
      return ErrorKind::system;
    };
    if (world.rank() == 1) {
      CHECK(kind([&] { return all_reduce_async(world, std::span<const float>(all), all.first(9), Sum{}); }) ==
            ErrorKind::argument);
      CHECK(kind([&] { return all_reduce_async(world, std::span<const float>(all.first(9)), all.last(9), Sum{}); }) ==
            ErrorKind::argument);
      CHECK(kind([&] { return reduce_scatter_async(world, std::span<const float>(all), all.first(4), Sum{}); }) ==
            ErrorKind::argument);
      CHECK(kind([&] { return all_gather_async(world, std::span<const float>(all.first(4)), all); }) ==
            ErrorKind::argument);
      CHECK(kind([&] { return broadcast_async(world, all, 2); }) == ErrorKind::argument);
    }
    barrier(world);
    CHECK_FALSE(world.poisoned());
  });
}
