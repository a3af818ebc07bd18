// SPDX-License-Identifier: Apache-2.0
// Sizes that have failed elsewhere: fewer elements than ranks (C004), and counts that neither ranks nor vectors divide,
// with guards on both sides (C005).
#include <doctest/doctest.h>

#include "support/collective_laws.hpp"
#include "support/ranks.hpp"

using namespace tandem;
using namespace tandem::test;

namespace {

template <class E, class Make>
void few_elements(World& world, Make make) {
  const int count = world.size();
  for (std::size_t elements = 1; elements <= 5; ++elements) {
    for (int turn = 0; turn < 200; ++turn) {
      GuardedBuffer<E> data(turn % 2 == 0 ? world.arena() : nullptr, elements);
      data.fill(std::vector<E>(elements, make(world.rank() + 1)));
      all_reduce(world, data.span(), Sum{});
      if (!data.holds(std::vector<E>(elements, make(count * (count + 1) / 2))) || !data.guards_intact()) {
        FAIL_CHECK(elements << " elements, turn " << turn);
      }
    }
  }
  std::vector<E> in(static_cast<std::size_t>(count), make(world.rank() + 1));
  std::vector<E> out(1);
  reduce_scatter(world, std::span<const E>(in), std::span(out), Sum{});
  CHECK(std::memcmp(&out[0], std::vector<E>{make(count * (count + 1) / 2)}.data(), sizeof(E)) == 0);
}

}  // namespace

TEST_CASE("fewer elements than ranks") {
  on_ranks(ranks(), [](int) {
    World world = join<TestTransport>();
    few_elements<float>(world, [](int value) { return static_cast<float>(value); });
    few_elements<std::uint8_t>(world, [](int value) { return static_cast<std::uint8_t>(value); });
    few_elements<BFloat16>(world, [](int value) { return to_bfloat16(static_cast<float>(value)); });
  });
}

namespace {

/// Element i on rank r is (i * 31 + r) mod 251: sums are exact in all four types but for uint8, which wraps, and
/// float16, whose odd sums round above 2,048 (here they stay below).
template <class E, class Make>
void odd_sizes(World& world, const std::vector<std::size_t>& counts, Make make) {
  for (const std::size_t count : counts) {
    std::vector<E> mine;
    std::vector<E> expected;
    for (std::size_t i = 0; i < count; ++i) {
      int sum = 0;
      for (int rank = 0; rank < world.size(); ++rank)
        sum += static_cast<int>((i * 31 + static_cast<std::size_t>(rank)) % 251);
      mine.push_back(make(static_cast<int>((i * 31 + static_cast<std::size_t>(world.rank())) % 251)));
      expected.push_back(make(sum));
    }
    for (const bool registered : {false, true}) {
      GuardedBuffer<E> data(registered ? world.arena() : nullptr, count);
      data.fill(mine);
      all_reduce(world, data.span(), Sum{});
      if (!data.holds(expected)) FAIL_CHECK("wrong: " << count << " elements of " << sizeof(E) << " bytes");
      if (!data.guards_intact()) FAIL_CHECK("guards: " << count << " elements of " << sizeof(E) << " bytes");
    }
  }
}

}  // namespace

TEST_CASE("counts that neither ranks nor vectors divide") {
  const std::vector<std::size_t> counts{1, 7, 127, 128, 129, 1021, 65537, 1048583};
  on_ranks(ranks(), [&](int) {
    World world = join<TestTransport>();
    odd_sizes<std::uint8_t>(world, counts, [](int value) { return static_cast<std::uint8_t>(value); });
    odd_sizes<Float16>(world, counts, [](int value) { return to_float16(static_cast<float>(value)); });
    odd_sizes<float>(world, counts, [](int value) { return static_cast<float>(value); });
    odd_sizes<double>(world, counts, [](int value) { return static_cast<double>(value); });
    odd_sizes<std::uint8_t>(world, {10556587}, [](int value) { return static_cast<std::uint8_t>(value); });
  });
}
