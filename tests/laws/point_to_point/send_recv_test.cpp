// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks: exact, in order, of any size; two that send first do not block each other; what does not
// fit its receiver is told, not delivered.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "support/samples.hpp"
#include "support/worlds.hpp"
#include "tandem/collective/all_reduce.hpp"
#include "tandem/collective/barrier.hpp"
#include "tandem/collective/broadcast.hpp"
#include "tandem/collective/send_recv.hpp"

using namespace tandem;
using namespace tandem::test;

namespace {

template <class E>
void send_samples(World& world, std::size_t count, int to, std::uint64_t seed) {
  const auto data = samples<E>(count, world.rank(), seed);
  send(world, std::span<const E>(data), to);
}
template <class E>
void expect_samples(World& world, std::size_t count, int from, std::uint64_t seed,
                    std::shared_ptr<Arena> arena = nullptr) {
  GuardedBuffer<E> buffer(std::move(arena), count, 1);
  recv(world, buffer.span(), from);
  if (!buffer.holds(samples<E>(count, from, seed)))
    FAIL_CHECK("wrong message of " << count << " elements from rank " << from);
  if (!buffer.guards_intact()) FAIL_CHECK("wrote outside the buffer");
}

}  // namespace

TEST_CASE("messages of every size arrive whole and in order") {
  const std::vector<std::size_t> counts{0, 1, 2, 3, 7, 1003, 1025, 4064, 4096, 100003, 300001};
  on_threads(2, [&](World& world) {
    const int other = 1 - world.rank();
    for (int turn = 0; turn < 2; ++turn) {
      for (const std::size_t count : counts) {
        if (world.rank() == turn)
          send_samples<float>(world, count, other, count);
        else
          expect_samples<float>(world, count, other, count, turn == 0 ? world.arena() : nullptr);
      }
    }
  });
}

TEST_CASE("many messages wait in the channel in their order") {
  on_threads(2, [](World& world) {
    for (std::uint64_t i = 0; i < 2000; ++i) {
      const std::size_t count = mix(i) % 300;
      if (world.rank() == 0)
        send_samples<Affine>(world, count, 1, i);
      else
        expect_samples<Affine>(world, count, 0, i);
    }
  });
}

// Both send before either receives, far more than the channel holds.
TEST_CASE("C034: ranks that send to each other first do not wait for each other") {
  for (const std::size_t count : {std::size_t{1}, std::size_t{100003}, std::size_t{1} << 20}) {
    on_threads(2, [&](World& world) {
      const int other = 1 - world.rank();
      for (std::uint64_t turn = 0; turn < 3; ++turn) {
        send_samples<float>(world, count, other, turn);
        send_samples<std::uint8_t>(world, 17, other, turn);
        expect_samples<float>(world, count, other, turn);
        expect_samples<std::uint8_t>(world, 17, other, turn);
      }
    });
  }
}

TEST_CASE("C034: a circle of ranks that all send first") {
  for (int ranks = 2; ranks <= 5; ++ranks) {
    on_threads(ranks, [&](World& world) {
      const int next = (world.rank() + 1) % ranks;
      const int before = (world.rank() + ranks - 1) % ranks;
      send_samples<double>(world, 100003, next, 1);
      expect_samples<double>(world, 100003, before, 1);
    });
  }
}

// Each rank waits for room in another communicator than the one over which its own neighbour waits.
TEST_CASE("a circle of sends over communicators of two ranks each") {
  on_threads(3, [](World& world) {
    // A communicator for every pair; each rank sends on the one with its successor.
    std::vector<World> pairs;
    for (const auto& [a, b] : {std::pair{0, 1}, std::pair{1, 2}, std::pair{0, 2}}) {
      const bool inside = world.rank() == a || world.rank() == b;
      pairs.push_back(world.split(inside ? 0 : 1, world.rank()));
    }
    World& mine = pairs[static_cast<std::size_t>(world.rank())];
    World& theirs = pairs[static_cast<std::size_t>((world.rank() + 2) % 3)];
    std::vector<float> out(500009, static_cast<float>(world.rank()));
    std::vector<float> in(out.size());
    send(mine, std::span<const float>(out), 1 - mine.rank());
    recv(theirs, std::span(in), 1 - theirs.rank());
    const auto expected = static_cast<float>((world.rank() + 2) % 3);
    CHECK(std::count(in.begin(), in.end(), expected) == static_cast<std::ptrdiff_t>(in.size()));
  });
}

// They share a channel; which communicator receives first used to have to be the order of sending.
TEST_CASE("messages of several communicators are received in any order") {
  on_threads(2, [](World& world) {
    const int other = 1 - world.rank();
    World twin = world.split(0, world.rank());
    World third = world.split(0, world.rank());
    for (const std::size_t count : {std::size_t{0}, std::size_t{5}, std::size_t{100003}, std::size_t{1} << 20}) {
      CAPTURE(count);
      if (world.rank() == 0) {
        for (std::uint64_t turn = 0; turn < 3; ++turn) {
          send_samples<float>(world, count, other, turn);
          send_samples<float>(twin, count, other, 10 + turn);
          send_samples<float>(third, 7, other, 20 + turn);
        }
        expect_samples<float>(twin, count, other, 2);
        expect_samples<float>(world, count, other, 1);
      } else {
        for (std::uint64_t turn = 0; turn < 3; ++turn) expect_samples<float>(third, 7, other, 20 + turn);
        send_samples<float>(world, count, other, 1);  // both ways at once
        for (std::uint64_t turn = 0; turn < 3; ++turn) expect_samples<float>(twin, count, other, 10 + turn);
        for (std::uint64_t turn = 0; turn < 3; ++turn) expect_samples<float>(world, count, other, turn);
        send_samples<float>(twin, count, other, 2);
      }
    }
    CHECK(world.ledger().balanced());
  });
}

// Over Tcp the last frames stayed with the sender until its next call of the library, however late that was.
TEST_CASE("what a rank has sent arrives while it does other things") {
  constexpr std::size_t count = std::size_t{4} << 20;
  on_threads(2, [got = std::make_shared<std::atomic<int>>(0)](World& world) {
    const auto wait_for = [&](int number) {
      const Deadline patience = Deadline::after(std::chrono::seconds(30));
      while (got->load() < number && !patience.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      CHECK(got->load() == number);
    };
    std::vector<float> data(count, 1.0F);
    for (int turn = 0; turn < 5; ++turn) {
      if (world.rank() == 0)
        send(world, std::span<const float>(data), 1);
      else
        recv(world, std::span(data), 0);
      world.rank() == 0 ? wait_for(2 * turn + 1) : void(++*got);
      broadcast(world, std::span(data), 0);
      world.rank() == 0 ? wait_for(2 * turn + 2) : void(++*got);
    }
  });
}

// The rest of a message of which only half was sent used to be taken for the next message's header.
TEST_CASE("a message that fails in the middle does not disturb those of other communicators") {
  on_threads(2, [](World& world) {
    const int other = 1 - world.rank();
    World doomed = world.split(0, world.rank());
    World twin = world.split(0, world.rank());
    std::vector<float> much(std::size_t{8} << 20, 1.0F);
    try {
      if (world.rank() == 0) {
        send(doomed, std::span<const float>(much), other);
        barrier(doomed);  // all of it may have been buffered
      } else {
        std::vector<std::int32_t> wrong(3);
        recv(doomed, std::span(wrong), other);
      }
      FAIL_CHECK("rank " << world.rank() << " did not notice that the message does not fit");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::mismatch);
    }
    CHECK(doomed.poisoned());
    CHECK_FALSE(twin.poisoned());
    if (world.rank() == 0) {
      send_samples<float>(twin, 100003, other, 4);
      send_samples<float>(world, 3, other, 5);
    } else {
      expect_samples<float>(world, 3, other, 5);
      expect_samples<float>(twin, 100003, other, 4);
    }
  });
}

TEST_CASE("messages and collectives do not disturb each other") {
  on_threads(4, [](World& world) {
    const int other = world.rank() ^ 1;
    for (std::uint64_t turn = 0; turn < 30; ++turn) {
      send_samples<float>(world, 5000, other, turn);  // unread while the others reduce
      std::vector<std::int64_t> value(3000, world.rank());
      all_reduce(world, std::span(value), Sum{});
      if (value[2999] != 6) FAIL_CHECK("a message got into a reduction");
      expect_samples<float>(world, 5000, other, turn);
    }
  });
}

TEST_CASE("the ledger of a message is its bytes and a header, counted by the sender") {
  on_threads(2, [](World& world) {
    const Ledger before = world.ledger();
    std::vector<double> data(1000, 1.0);
    if (world.rank() == 0)
      send(world, std::span<const double>(data), 1);
    else
      recv(world, std::span(data), 0);
    const Ledger used = world.ledger() - before;
    CHECK(used.operations == 1);
    CHECK(used.balanced());
    CHECK(used.measured == (world.rank() == 0 ? 8128 : 0));
  });
}

namespace {

/// Rank 0 sends, rank 1 receives something else: rank 1 is told what and its buffer stays; rank 0 learns of it.
template <class Send, class Recv>
void do_not_match(Send sending, Recv receiving, const std::string& said) {
  on_threads(2, [&](World& world) {
    if (world.rank() == 0) {
      sending(world);
      try {
        barrier(world);
        FAIL_CHECK("rank 0 did not learn of the mismatch");
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::mismatch);
      }
    } else {
      try {
        receiving(world);
        FAIL_CHECK("not noticed: " << said);
      } catch (const Error& error) {
        CAPTURE(std::string(error.what()));
        CHECK(error.kind() == ErrorKind::mismatch);
        CHECK(error.peer() == 0);
        CHECK(std::string(error.what()).find(said) != std::string::npos);
        CHECK(std::string(error.what()).find("send_recv_test.cpp") != std::string::npos);  // both call sites
      }
    }
  });
}

}  // namespace

TEST_CASE("a message that is not the one expected is told and not delivered") {
  const std::vector<float> floats(8, 1.0F);
  const auto send_floats = [&](World& world) { send(world, std::span<const float>(floats), 1); };
  do_not_match(
      send_floats,
      [](World& world) {
        std::vector<std::int32_t> in(8, 42);
        try {
          recv(world, std::span(in), 0);
        } catch (const Error&) {
          CHECK(in == std::vector<std::int32_t>(8, 42));
          throw;
        }
      },
      "dtype is int32 on rank 1 and float32 on rank 0");
  do_not_match(
      send_floats,
      [](World& world) {
        std::vector<float> in(9, 42.0F);
        try {
          recv(world, std::span(in), 0);
        } catch (const Error&) {
          CHECK(in == std::vector<float>(9, 42.0F));
          throw;
        }
      },
      "elements is 9 on rank 1 and 8 on rank 0");
}

TEST_CASE("wrong ranks are refused and cost nothing") {
  on_threads(2, [](World& world) {
    std::vector<float> data(4);
    for (const int wrong : {-1, 2, world.rank()}) {
      try {
        send(world, std::span<const float>(data), wrong);
        FAIL_CHECK("sent to " << wrong);
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::argument);
      }
      try {
        recv(world, std::span(data), wrong);
        FAIL_CHECK("received from " << wrong);
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::argument);
      }
    }
    CHECK_FALSE(world.poisoned());
    if (world.rank() == 0)
      send_samples<float>(world, 4, 1, 5);
    else
      expect_samples<float>(world, 4, 0, 5);
  });
}
