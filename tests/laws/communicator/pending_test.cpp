// SPDX-License-Identifier: Apache-2.0
// Pending all-reduces: several in flight, polled or not, between blocking operations, dropped; same bits as the
// blocking verb.
#include "tandem/collective/pending.hpp"

#include <doctest/doctest.h>

#include <deque>
#include <vector>

#include "support/collective_laws.hpp"

using namespace tandem;
using namespace tandem::test;

namespace {

using Pending = PendingAllReduce<TestTransport, float, Sum>;

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
          std::vector<Pending> pending;
          const Ledger before = world.ledger();
          for (const auto& c : cases) {
            buckets.emplace_back(world, c, registered);
            pending.push_back(begin_all_reduce(world, buckets.back().data.span(), Sum{}));
            if ((turn + world.rank()) % 2 == 0) {  // only some ranks look, so that they are at different places
              for (auto& it : pending) it.poll();
            }
          }
          for (auto& it : pending) it.finish();
          for (auto& it : pending) {
            it.finish();  // nothing is left to do
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

TEST_CASE("registered operations complete by polling alone") {
  const auto cases = usual_cases<float>(3, Sum{}, bucket_counts);
  on_threads(3, [&](World& world) {
    std::deque<Bucket> buckets;
    std::vector<Pending> pending;
    for (const auto& c : cases) {
      buckets.emplace_back(world, c, Registered::everywhere);
      pending.push_back(begin_all_reduce(world, buckets.back().data.span(), Sum{}));
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
        auto one = begin_all_reduce(world, first.data.span(), Sum{});
        Bucket blocking(world, between, Registered::everywhere);  // its ledger may hold the older ones' bytes
        all_reduce(world, blocking.data.span(), Sum{});
        blocking.check(world, "blocking");
        auto two = begin_all_reduce(world, second.data.span(), Sum{});
        std::int64_t small = 1;
        all_reduce(world, std::span(&small, 1), Sum{});
        CHECK(small == 3);
        barrier(world);
        one.finish();
        two.finish();
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
      std::vector<Pending> pending;
      for (const auto& c : cases) {
        buckets.emplace_back(world, c, Registered::nowhere);
        pending.push_back(begin_all_reduce(world, buckets.back().data.span(), Sum{}));
      }
      if (world.rank() == 1) pending[2].finish();
      Bucket blocking(world, between, Registered::nowhere);
      all_reduce<Ring>(world, blocking.data.span(), Sum{});
      blocking.check(world, "blocking");
      for (std::size_t i = 0; i < 3; ++i) pending[(i + static_cast<std::size_t>(world.rank())) % 3].finish();
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
      auto first = begin_all_reduce(world, bucket.data.span(), Sum{});
      Pending second(std::move(first));
      second.poll();
      std::vector<Pending> third;
      third.push_back(std::move(second));
      third[0].finish();
      bucket.check(world, "moved");
    });
  }
}

TEST_CASE("as many operations may be pending as documented, one more is refused") {
  on_threads(2, [](World& world) {
    ArenaArray<float> memory(world.arena(), 64 * 40);
    for (float& it : memory) it = 1.0F;
    for (int turn = 0; turn < 5; ++turn) {
      std::vector<Pending> pending;
      for (std::size_t i = 0; i < 32; ++i) {
        pending.push_back(begin_all_reduce(world, std::span(memory.data() + 64 * i, 64), Sum{}));
      }
      try {
        auto refused = begin_all_reduce(world, std::span(memory.data() + 64 * 32, 64), Sum{});
        FAIL_CHECK("33 operations are pending");
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::argument);
      }
      CHECK_FALSE(world.poisoned());
      for (auto& it : pending) it.finish();
    }
    CHECK(memory[0] == 32.0F);
    CHECK(memory[64 * 31 + 63] == 32.0F);
    CHECK(memory[64 * 32] == 1.0F);
  });
}

// The handle is dropped by an exception while the operation is in flight (C053).
TEST_CASE("a dropped operation gives the communicator up, and says so on every rank") {
  for (const Registered registered : {Registered::everywhere, Registered::nowhere}) {
    const Case<float, Sum> c(2, 100003, Sum{}, 5);
    on_threads(2, [&](World& world) {
      Bucket bucket(world, c, registered);
      if (world.rank() == 0) {
        { auto dropped = begin_all_reduce(world, bucket.data.span(), Sum{}); }
        CHECK(world.poisoned());
        CHECK_THROWS_AS(barrier(world), Error);
      } else {
        try {
          auto pending = begin_all_reduce(world, bucket.data.span(), Sum{});
          pending.finish();
          FAIL_CHECK("the other rank dropped its part");
        } catch (const Error& error) {
          CAPTURE(std::string(error.what()));
          CHECK(std::string(error.what()).find("rank 0 dropped all_reduce") != std::string::npos);
          CHECK(error.peer() == 0);
        }
      }
    });
  }
}
