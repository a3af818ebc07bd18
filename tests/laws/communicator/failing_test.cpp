// SPDX-License-Identifier: Apache-2.0
// How a communicator fails, as far as threads can show it: mismatches, refused arguments, deadlines, ranks that leave,
// and how far a failure reaches among communicators that were split from one another.
#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/collective_laws.hpp"
#include "support/errors.hpp"
#include "tandem/collective/async.hpp"
#include "tandem/collective/send_recv.hpp"

using namespace tandem;
using namespace tandem::test;
using namespace std::chrono_literals;

namespace {

/// Each rank calls something else; all of them must be told of a mismatch, with the words given and both call sites.
void must_not_match(int ranks, const std::function<void(World&, std::span<float>)>& call,
                    const std::vector<std::string>& said) {
  on_threads(ranks, [&](World& world) {
    for (int once = 0; once < 1; ++once) {
      GuardedBuffer<float> data(world.rank() == 0 ? world.arena() : nullptr, 5000);
      const auto mine = samples<float>(5000, world.rank());
      data.fill(mine);
      const auto error = error_of([&] { call(world, data.span()); });
      if (!error) {
        FAIL_CHECK("rank " << world.rank() << " noticed nothing");
        return;
      }
      CAPTURE(std::string(error->what()));
      CHECK(error->kind() == ErrorKind::mismatch);
      for (const auto& text : said) CHECK(says(*error, text));
      CHECK(data.holds(mine));
      CHECK(data.guards_intact());
      const auto again = error_of([&] { barrier(world); });
      REQUIRE(again);
      CHECK(again->kind() == ErrorKind::poisoned);
      // Both calls: the one that is refused, with its place, and the one that failed.
      const std::string own = std::to_string(world.rank()) + " of " + std::to_string(ranks);
      CHECK(std::string(again->what()).starts_with("tandem: barrier (" __FILE__ ":"));
      CHECK(says(*again, ") on rank " + own + " cannot go on, since this communicator failed before: "));
      CHECK(says(*again, std::string(error->what()).substr(std::string("tandem: ").size())));
    }
  });
}

}  // namespace

TEST_CASE("C007: ranks that call different things are told what, on every rank, and no data moves") {
  for (const int ranks : {2, 3, 5}) {
    CAPTURE(ranks);
    must_not_match(ranks,
                   [](World& world, std::span<float> data) {
                     if (world.rank() == 0)
                       all_reduce(world, data, Sum{});
                     else
                       broadcast(world, data, 0);
                   },
                   {"all_reduce", "broadcast", "operation 1", "failing_test.cpp"});
    must_not_match(ranks,
                   [](World& world, std::span<float> data) {
                     if (world.rank() == 1)
                       all_reduce(world, std::span(reinterpret_cast<std::int32_t*>(data.data()), data.size()), Sum{});
                     else
                       all_reduce(world, data, Sum{});
                   },
                   {"dtype", "float32", "int32", "failing_test.cpp"});
    must_not_match(ranks,
                   [](World& world, std::span<float> data) {
                     all_reduce(world, data.first(world.rank() == 0 ? 4999 : 5000), Sum{});
                   },
                   {"number of elements", "4999", "5000"});
    must_not_match(ranks,
                   [](World& world, std::span<float> data) {
                     if (world.rank() == 0)
                       all_reduce(world, data, Max{});
                     else
                       all_reduce(world, data, Sum{});
                   },
                   {"reduction", "Max", "Sum"});
    must_not_match(ranks,
                   [](World& world, std::span<float> data) { broadcast(world, data, world.rank() == 0 ? 1 : 0); },
                   {"root"});
    must_not_match(ranks,
                   [](World& world, std::span<float> data) {
                     if (world.rank() == 0)
                       all_reduce<Ring>(world, data, Sum{});
                     else
                       all_reduce<Pairwise>(world, data, Sum{});
                   },
                   {"algorithm"});
    // Whoever agrees with its neighbours has begun to send by the time it hears of the one that does not.
    const int odd = ranks - 1;
    must_not_match(ranks,
                   [&](World& world, std::span<float> data) {
                     all_reduce<Naive>(world, data.first(world.rank() == odd ? 4999 : 5000), Sum{});
                   },
                   {"number of elements", "4999", "5000"});
    must_not_match(ranks,
                   [&](World& world, std::span<float> data) {
                     broadcast(world, data.first(world.rank() == odd ? 4999 : 5000), 0);
                   },
                   {"number of elements", "4999", "5000"});
    must_not_match(ranks,
                   [&](World& world, std::span<float> data) {
                     std::vector<float> mine(slice_of(data.size(), world.size(), world.rank()).size());
                     if (world.rank() == odd)
                       all_reduce(world, data, Sum{});
                     else
                       all_gather(world, std::span<const float>(mine), data);
                   },
                   {"all_gather", "all_reduce"});
  }
}

TEST_CASE("other call sites alone are no mismatch, and noticed once") {
  std::mutex mutex;
  std::vector<std::string> notices;
  JoinOptions options;
  options.notice = [&](const std::string& text) {
    const std::lock_guard lock(mutex);
    notices.push_back(text);
  };
  on_threads(
      2,
      [](World& world) {
        for (int turn = 0; turn < 3; ++turn) {
          std::int32_t value = 1;
          if (world.rank() == 0) {
            all_reduce(world, std::span(&value, 1), Sum{});
          } else {
            all_reduce(world, std::span(&value, 1), Sum{});
          }
          CHECK(value == 2);
        }
      },
      options);
  CHECK(notices.size() == 2);  // one on each rank
  for (const auto& text : notices) CHECK(text.find("different places") != std::string::npos);
}

TEST_CASE("refused arguments cost no sequence number and leave the communicator usable") {
  on_threads(3, [](World& world) {
    std::vector<float> data(30, 1.0F);
    const std::span<float> all(data);
    const auto refused = [&](auto call) {
      const auto error = error_of(call);
      REQUIRE(error);
      CAPTURE(std::string(error->what()));
      CHECK(error->kind() == ErrorKind::argument);
      CHECK(says(*error, "failing_test.cpp"));
    };
    // Only on one rank: the others notice nothing.
    if (world.rank() == 1) {
      refused([&] { all_reduce(world, std::span<const float>(all.first(10)), all.subspan(10, 11), Sum{}); });
      refused([&] { all_reduce(world, std::span<const float>(all.first(10)), all.subspan(1, 10), Sum{}); });
      refused([&] { broadcast(world, all, 3); });
      refused([&] { broadcast(world, all, -1); });
      refused([&] { reduce_scatter(world, std::span<const float>(all), all.first(9), Sum{}); });
      refused([&] { reduce_scatter(world, std::span<const float>(all), all.first(10), Sum{}); });  // not its own slice
      refused([&] { all_gather(world, std::span<const float>(all.first(11)), all); });
      refused([&] { all_gather(world, std::span<const float>(all.subspan(11, 10)), all); });  // off by one
    }
    CHECK_FALSE(world.poisoned());
    const auto before = world.record().size();
    CHECK(before == 0);
    all_reduce(world, all, Sum{});
    CHECK(data[29] == 3.0F);
    CHECK(world.record().size() == 1);
    CHECK(world.record()[0].sequence == 1);
    CHECK(world.record()[0].progress == Progress::finished);
  });
}

// Also by ranks that wait for others.
TEST_CASE("C044: a rank that does not come is named at the deadline, which can be set per call") {
  for (const int ranks : {2, 3, 5}) {
    for (int absent = 0; absent < ranks; ++absent) {
      std::mutex mutex;
      int left = ranks - 1;
      on_threads(ranks, [&](World& world) {
        CallOptions options;
        options.timeout = 300ms;
        std::vector<float> data(50000, 1.0F);
        all_reduce(world, std::span(data), Sum{});
        if (world.rank() != absent) {
          const auto started = Clock::now();
          const auto error = error_of([&] { barrier(world, options); });
          const auto waited = Clock::now() - started;
          REQUIRE(error);
          CAPTURE(std::string(error->what()));
          CHECK(error->kind() == ErrorKind::timeout);
          CHECK(error->peer() == absent);
          CHECK(error->verb() == "barrier");
          CHECK(waited >= 300ms);
          CHECK(waited < 10s);  // not the communicator's two minutes
          CHECK(error_of([&] { barrier(world); })->kind() == ErrorKind::poisoned);
          const std::lock_guard lock(mutex);
          --left;
        } else {
          while (true) {
            const std::lock_guard lock(mutex);
            if (left == 0) break;
          }
        }
      });
    }
  }
}

// An exception unwinds a rank's communicator while the others wait.
namespace {

/// A sum that stands still while it is told to.
struct Standing {
  const std::atomic<bool>* still;
  float operator()(float input, float sum) const {
    while (still != nullptr && still->load()) std::this_thread::sleep_for(1ms);
    return input + sum;
  }
};

}  // namespace

// It took "nothing is left to send" for "go on", and never looked at the clock.
TEST_CASE("a rank that has sent all that it has still reaches its deadline") {
  const NothingIsFetched by_channels;
  on_threads(2, [still = std::make_shared<std::atomic<bool>>(true)](World& world) {
    // Rank 1 stands still at the first thing that it gets: most of what rank 0 is to get is not sent by then.
    const std::vector<std::size_t> counts{4'000'000, 20'000};
    const std::vector<float> input(counts[0] + counts[1], 1.0F);
    std::vector<float> output(counts[static_cast<std::size_t>(world.rank())]);
    const auto reduce = [&](CallOptions options) {
      const Standing op{world.rank() == 1 ? still.get() : nullptr};
      return error_of([&] { reduce_scatter_v(world, input, std::span(output), counts, op, options); });
    };
    if (world.rank() == 0) {
      const auto error = reduce({.timeout = 300ms});
      still->store(false);
      REQUIRE(error);
      CHECK(error->kind() == ErrorKind::timeout);
      CHECK(error->peer() == 1);
    } else {
      const auto error = reduce({});
      REQUIRE(error);
      CHECK(error->peer() == 1);
    }
  });
}

TEST_CASE("C048 C052: a rank that leaves is named at once") {
  for (const int ranks : {2, 3, 5}) {
    for (int leaving = 0; leaving < ranks; ++leaving) {
      on_threads(ranks, [&](World& world) {
        std::vector<float> data(5000, 1.0F);
        for (int turn = 0; turn < 5; ++turn) all_reduce(world, std::span(data), Max{});
        if (world.rank() == leaving) return;
        const auto error = error_of([&] { all_reduce(world, std::span(data), Max{}); });
        REQUIRE(error);
        CAPTURE(std::string(error->what()));
        CHECK(error->kind() == ErrorKind::dead_peer);
        CHECK(error->peer() == leaving);
        CHECK(says(*error, "rank " + std::to_string(leaving) + " left"));
      });
    }
  }
}

// The world goes on while one rank has let go of a part of it: the part's other members must not wait for ever.
TEST_CASE("a rank that lets go of one communicator only is named there at once") {
  on_threads(3, [](World& world) {
    {
      World part = world.split(0, 0);
      barrier(part);
      if (world.rank() != 1) {
        const auto started = Clock::now();
        const auto error = error_of([&] { barrier(part); });
        REQUIRE(error);
        CAPTURE(std::string(error->what()));
        CHECK(error->kind() == ErrorKind::dead_peer);
        CHECK(error->peer() == 1);
        CHECK(Clock::now() - started < 30s);
      }
    }
    CHECK_FALSE(world.poisoned());
    std::int32_t value = 1;
    all_reduce(world, std::span(&value, 1), Sum{});
    CHECK(value == 3);
    // Nor by any other way: what the failure has taken from the arena is no part of these.
    std::vector<float> data(300000, 1.0F);
    broadcast(world, std::span(data).first(5000), 0);
    all_reduce(world, std::span(data), Sum{});
    CHECK(data[299999] == 3.0F);
    CHECK_FALSE(world.poisoned());
  });
}

// Its memory may be something else by then: it read that, found all ranks done, and returned.
TEST_CASE("what is read of a rank that gave up is not taken for a result") {
  std::atomic<bool> begun{false};
  std::atomic<bool> dropped{false};
  on_threads(2, [&](World& world) {
    std::vector<float> own(50000, static_cast<float>(world.rank()));
    std::vector<float> whole(100000);
    if (world.rank() == 1) {
      {
        auto work = all_gather_async(world, std::span<const float>(own), std::span(whole));
        while (!begun) std::this_thread::yield();
        work.poll();
      }
      std::fill(own.begin(), own.end(), 77.0F);
      dropped = true;
    } else {
      auto work = all_gather_async(world, std::span<const float>(own), std::span(whole));
      begun = true;
      while (!dropped) std::this_thread::yield();
      const auto error = error_of([&] { work.wait(); });
      REQUIRE(error);
      CAPTURE(error->what());
      CHECK(error->peer() == 1);
      CHECK(says(*error, "dropped without wait()"));
    }
  });
}

TEST_CASE("a failure reaches what was split off, with the guilty rank in that communicator's numbers") {
  on_threads(4, [](World& world) {
    World odd = world.split(world.rank() % 2, -world.rank());  // {2, 0} and {3, 1}
    World all = world.split(0, -world.rank());                 // 3 2 1 0
    world.poison(Error(ErrorKind::timeout, "tandem: rank 3 does not answer", world.rank(), 3));
    CHECK(all.poisoned());
    CHECK(odd.poisoned() == (world.rank() % 2 == 1));
    const auto in_all = error_of([&] { barrier(all); });
    REQUIRE(in_all);
    CHECK(in_all->kind() == ErrorKind::poisoned);
    CHECK(in_all->peer() == 0);  // world's rank 3
    CHECK(says(*in_all, " of 4 cannot go on, since the communicator it was split from failed before: rank 3 does not"));
    if (world.rank() % 2 == 1) {
      const auto in_odd = error_of([&] { barrier(odd); });
      REQUIRE(in_odd);
      CHECK(in_odd->peer() == 0);
    } else {
      std::int32_t value = 1;
      all_reduce(odd, std::span(&value, 1), Sum{});
      CHECK(value == 2);
    }
  });
}

TEST_CASE("a program may poison its communicator, and the others are told why") {
  on_threads(3, [](World& world) {
    if (world.rank() == 2) {
      world.poison(Error(ErrorKind::poisoned, "tandem: the data of rank 2 ended early", 2, 2));
      return;
    }
    const auto error = error_of([&] { barrier(world); });
    REQUIRE(error);
    CHECK(says(*error, "the data of rank 2 ended early"));
    CHECK(error->peer() == 2);
  });
}

// A user's functor that throws leaves half a reduction in the rings: nothing may go on over them.
TEST_CASE("an exception out of a user's functor fails the communicator on every rank") {
  on_threads(2, [](World& world) {
    std::vector<float> data(50000, static_cast<float>(world.rank()));
    int calls = 0;
    const auto op = [&](float a, float b) {
      if (world.rank() == 0 && ++calls > 100) throw std::runtime_error("no");
      return a + b;
    };
    if (world.rank() == 0) {
      CHECK_THROWS_AS(all_reduce(world, std::span(data), op), std::runtime_error);
      const auto again = error_of([&] { barrier(world); });
      REQUIRE(again);
      CHECK(again->kind() == ErrorKind::poisoned);
    } else {
      CallOptions options;
      options.timeout = 20s;
      const auto error = error_of([&] { all_reduce(world, std::span(data), op, options); });
      REQUIRE(error);
      CHECK(error->peer() == 0);
      CHECK(error->kind() != ErrorKind::timeout);
    }
  });
}

// Registered memory belongs to the process: when one communicator's failure takes it from the peers, an operation of
// another one that is under way over it can no longer be right.
TEST_CASE("a pending operation does not end as if nothing had happened to its memory") {
  if (!TestTransport::has_windows) return;  // nobody reaches it there
  on_threads(2, [](World& world) {
    World part = world.split(0, 0);
    ArenaArray<float> data(world.arena(), 5000);
    for (float& it : data) it = 1.0F;
    auto pending = all_reduce_async(world, std::span(data.data(), data.size()), Sum{});
    part.poison(Error(ErrorKind::poisoned, "tandem: enough", world.rank(), world.rank()));
    CHECK_FALSE(world.poisoned());
    const auto error = error_of([&] { pending.wait(); });
    REQUIRE(error);
    CHECK(says(*error, "registered memory"));
    CHECK(world.poisoned());
  });
}
