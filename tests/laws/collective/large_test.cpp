// SPDX-License-Identifier: Apache-2.0
// Buffers larger than all rings together, and rings so small that they are always full: the laws hold, nothing waits
// for ever.
#include "support/collective_laws.hpp"

using namespace tandem;
using namespace tandem::test;

TEST_CASE("all_reduce beyond the capacity of the rings") {
  for (const int ranks : {2, 3, 4, 5}) {
    for (const std::size_t count : {std::size_t{300001}, std::size_t{1048583}}) {
      if (count > 1000000 && ranks > 3) continue;
      CAPTURE(ranks);
      const Case<float, Sum> c(ranks, count, Sum{}, 3);
      on_threads(ranks, [&](World& world) {
        all_reduce_law<Auto>(world, c, {Registered::nowhere, true, 1});
        all_reduce_law<Ring>(world, c, {Registered::nowhere, false, 0});
        all_reduce_law<Direct>(world, c, {Registered::everywhere, true, 0});
        all_reduce_law<Direct>(world, c, {Registered::everywhere, false, 3});
        all_reduce_law<Pairwise>(world, c, {Registered::nowhere, true, 0});
        all_reduce_law<Naive>(world, c, {Registered::nowhere, true, 1});
        reduce_scatter_law<Ring>(world, c, {Registered::nowhere, true, 0});
        reduce_scatter_law<Pairwise>(world, c, {Registered::nowhere, false, 1});
        all_gather_law<Ring>(world, c.result, {Registered::nowhere, true, 1});
        all_gather_law<Pairwise>(world, c.result, {Registered::nowhere, false, 0});
        broadcast_law<Ring>(world, c.result, ranks - 1, {Registered::nowhere, true, 1});
        broadcast_law<Naive>(world, c.result, 0, {Registered::nowhere, true, 0});
      });
    }
  }
}

TEST_CASE("rings of the smallest slots") {
  const std::vector<std::size_t> counts{1, 5, 1023, 1024, 1025, 4096, 12289, 40961, 100003};
  for (const int ranks : {2, 3, 4, 5}) {
    CAPTURE(ranks);
    const auto floats = usual_cases<float>(ranks, PreMulSum<float>{0.7F}, counts);
    const auto maps = usual_cases<Affine>(ranks, Compose{}, {1, 341, 342, 4099, 30011});
    on_threads_with_small_rings(ranks, [&](World& world) {
      const auto each = [&](const auto& cases) {
        for (const auto& c : cases) {
          all_reduce_law<Ring>(world, c, {Registered::nowhere, true, 1});
          all_reduce_law<Pairwise>(world, c, {Registered::nowhere, false, 0});
          all_reduce_law<Naive>(world, c, {Registered::nowhere, true, 0});
          reduce_scatter_law<Ring>(world, c, {Registered::nowhere, true, 1});
          reduce_scatter_law<Pairwise>(world, c, {Registered::nowhere, true, 0});
          all_gather_law<Ring>(world, c.result, {Registered::nowhere, false, 0});
          all_gather_law<Pairwise>(world, c.result, {Registered::nowhere, true, 1});
          broadcast_law<Ring>(world, c.result, 1, {Registered::nowhere, true, 0});
          broadcast_law<Naive>(world, c.result, 1, {Registered::nowhere, true, 0});
        }
      };
      each(floats);
      each(maps);
    });
  }
}

namespace {
/// The largest element there may be: one fills a slot.
struct Huge {
  std::uint32_t values[16383];
};
struct AddFirstAndLast {
  Huge operator()(const Huge& a, const Huge& b) const {
    Huge sum = a;
    sum.values[0] += b.values[0];
    sum.values[16382] += b.values[16382];
    return sum;
  }
};
}  // namespace

TEST_CASE("elements as large as a slot") {
  for (const int ranks : {2, 3}) {
    on_threads(ranks, [&](World& world) {
      std::vector<Huge> data(7);
      const auto fill = [&] {
        for (auto& it : data) it = {};
        for (std::uint32_t i = 0; i < 7; ++i) {
          data[i].values[0] = i;
          data[i].values[16382] = static_cast<std::uint32_t>(world.rank()) + i;
        }
      };
      const auto right = [&] {
        for (std::uint32_t i = 0; i < 7; ++i) {
          const auto n = static_cast<std::uint32_t>(ranks);
          if (data[i].values[0] != n * i || data[i].values[16382] != n * i + n * (n - 1) / 2) return false;
        }
        return true;
      };
      fill();
      all_reduce<Ring>(world, std::span(data), AddFirstAndLast{});
      CHECK(right());
      fill();
      all_reduce<Pairwise>(world, std::span(data), AddFirstAndLast{});
      CHECK(right());
    });
  }
}

// Values that differ in twenty binary orders round in every addition; the bits must be the same each time.
TEST_CASE("C013: the same bits in every run, whatever the ranks' pace") {
  for (const int ranks : {3, 5}) {
    const Case<float, Sum> c(ranks, 100003, Sum{}, 13);
    on_threads(ranks, [&](World& world) {
      GuardedBuffer<float> data(nullptr, c.count());
      for (int turn = 0; turn < 20; ++turn) {
        const auto delay = mix(static_cast<std::uint64_t>(turn * 8 + world.rank())) % 3;
        std::this_thread::sleep_for(std::chrono::milliseconds(delay));
        data.fill(c.inputs[static_cast<std::size_t>(world.rank())]);
        all_reduce(world, data.span(), Sum{});
        if (!data.holds(c.result)) FAIL_CHECK("turn " << turn << " on rank " << world.rank());
      }
    });
  }
}
