// SPDX-License-Identifier: Apache-2.0
// A sample of the collectives' laws on ranks that are processes, each with mappings of its own.
#include <doctest/doctest.h>

#include "support/collective_laws.hpp"
#include "support/ranks.hpp"
#include "tandem/collective/async.hpp"
#include "tandem/collective/send_recv.hpp"

using namespace tandem;
using namespace tandem::test;

TEST_CASE("the collectives obey their laws between processes") {
  const int count = ranks();
  const auto sums = usual_cases<float>(count, Sum{}, {0, 1, 3, 1003, 1025, 4099, 400001});
  const auto halves = usual_cases<BFloat16>(count, PreMulSum<float>{1.0F / 3.0F}, {2, 127, 4097, 30011});
  const auto maps = usual_cases<Affine>(count, Compose{}, {5, 683, 10007});
  on_ranks(
      count,
      [&](int) {
        World world = join<TestTransport>();
        all_reduce_laws(world, sums);
        all_reduce_laws(world, halves);
        all_reduce_laws(world, maps);
        reduce_scatter_laws(world, sums);
        reduce_scatter_laws(world, maps);
        all_gather_laws(world, usual_wholes<float>({0, 1, 1003, 4099, 100003}));
        broadcast_laws(world, usual_wholes<Affine>({0, 1, 1003, 50021}));
      },
      std::chrono::seconds(120));
}

TEST_CASE("pending all-reduces, parts of the world and messages between processes") {
  const int count = ranks();
  const auto cases = usual_cases<float>(count, Sum{}, {1, 0, 1003, 70001, 30011});
  on_ranks(count, [&](int rank) {
    World world = join<TestTransport>();
    for (const Registered registered : {Registered::everywhere, Registered::nowhere, Registered::on_last_rank}) {
      for (int turn = 0; turn < 5; ++turn) {
        std::vector<GuardedBuffer<float>> buffers;
        buffers.reserve(cases.size());
        std::vector<Work> pending;
        for (const auto& c : cases) {
          buffers.emplace_back(arena_for(world, registered), c.count());
          buffers.back().fill(c.inputs[static_cast<std::size_t>(rank)]);
          pending.push_back(all_reduce_async(world, buffers.back().span(), Sum{}));
          pending.front().poll();
        }
        for (auto& it : pending) it.wait();
        for (std::size_t i = 0; i < cases.size(); ++i) {
          if (!buffers[i].holds(cases[i].result)) FAIL_CHECK("wrong bits in " << cases[i].count() << " elements");
        }
      }
    }
    World half = world.split(rank % 2, -rank);
    std::int64_t members = 1;
    all_reduce(half, std::span(&members, 1), Sum{});
    CHECK(members == (count + 1 - rank % 2) / 2);
    if (count > 1) {  // all send first, more than a channel holds (C034)
      std::vector<double> out(300007, rank);
      std::vector<double> in(out.size());
      send(world, std::span<const double>(out), (rank + 1) % count);
      recv(world, std::span(in), (rank + count - 1) % count);
      CHECK(in.front() == (rank + count - 1) % count);
      CHECK(in.back() == in.front());
    }
    CHECK(world.ledger().balanced());
  });
}

// Data of both go over the same connections, so their order must not depend on when a rank finishes the older one.
// Where posts are not awaited before data are sent (Tcp), a later collective used to overtake a pending one.
TEST_CASE("a collective does not overtake a pending one that some rank finishes later") {
  const int count = ranks();
  const Case<float, Sum> first(count, 70001, Sum{}, 1);
  const Case<float, Sum> second(count, 70001, Sum{}, 2);
  on_ranks(count, [&](int rank) {
    World world = join<TestTransport>();
    for (int late = 0; late < count; ++late) {
      GuardedBuffer<float> x(nullptr, first.count());
      GuardedBuffer<float> y(nullptr, second.count());
      x.fill(first.inputs[static_cast<std::size_t>(rank)]);
      y.fill(second.inputs[static_cast<std::size_t>(rank)]);
      auto pending = all_reduce_async(world, x.span(), Sum{});
      if (rank != late) pending.wait();
      all_reduce(world, y.span(), Sum{});
      if (rank == late) pending.wait();
      CHECK(x.holds(first.result));
      CHECK(y.holds(second.result));
    }
    CHECK(world.ledger().balanced());
  });
}
