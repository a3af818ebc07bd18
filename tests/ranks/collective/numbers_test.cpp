// SPDX-License-Identifier: Apache-2.0
// Values that have gone wrong elsewhere: bool, special floats, sums that round in every addition, and integers at the
// edge of their width. (Every pair of type and reduction: table_test.cpp.)
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "support/collective_laws.hpp"
#include "support/ranks.hpp"

using namespace tandem;
using namespace tandem::test;

TEST_CASE("C009: bool moves as it is") {
  on_ranks(ranks(), [](int rank) {
    World world = join<TestTransport>();
    const auto truth = [](std::size_t i, int of) { return mix(i + 1000 * static_cast<std::uint64_t>(of)) % 2 == 0; };
    for (const std::size_t each : {std::size_t{3}, std::size_t{20001}}) {
      const std::size_t count = each * static_cast<std::size_t>(world.size());
      const auto whole = std::make_unique<bool[]>(count);
      const auto own = std::make_unique<bool[]>(each);
      for (std::size_t i = 0; i < each; ++i) own[i] = truth(i, rank);
      all_gather(world, std::span<const bool>(own.get(), each), std::span(whole.get(), count));
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < count; ++i) wrong += whole[i] != truth(i % each, static_cast<int>(i / each));
      broadcast(world, std::span(own.get(), each), world.size() - 1);
      for (std::size_t i = 0; i < each; ++i) wrong += own[i] != truth(i, world.size() - 1);
      CHECK(wrong == 0);
    }
  });
}

namespace {

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
bool is_nan(float value) { return (bits_of(value) & 0x7fffffffU) > 0x7f800000U; }

/// Subnormal, -0.0, infinities of both signs and a NaN on one rank only, at the front and the end of a buffer.
template <class Op>
std::vector<float> of_specials(World& world, const Op& op, std::size_t count) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const bool last = world.rank() == world.size() - 1;
  std::vector<float> data(count, -0.0F);
  data[0] = std::bit_cast<float>(1U);
  data[2] = world.rank() == 0 ? infinity : last ? -infinity : 0.0F;
  data[count - 1] = last ? std::numeric_limits<float>::quiet_NaN() : 1.0F;
  all_reduce(world, std::span(data), op);
  return data;
}
void check_specials(World& world) {
  for (const std::size_t count : {std::size_t{4}, std::size_t{5000}}) {
    const auto sum = of_specials(world, Sum{}, count);
    CHECK(bits_of(sum[0]) == static_cast<std::uint32_t>(world.size()));
    CHECK(bits_of(sum[1]) == 0x80000000U);
    CHECK(is_nan(sum[2]) == (world.size() > 1));
    CHECK(is_nan(sum[count - 1]));
    const auto greatest = of_specials(world, Max{}, count);
    CHECK(bits_of(greatest[0]) == 1U);
    CHECK(bits_of(greatest[1]) == 0x80000000U);
    CHECK(bits_of(greatest[2]) == 0x7f800000U);
    CHECK(is_nan(greatest[count - 1]));
    const auto all = of_specials(world, LogicalAnd{}, count);
    CHECK(all[0] == 1.0F);
    CHECK(bits_of(all[1]) == 0U);
    CHECK(all[count - 1] == 1.0F);  // a NaN is not zero
  }
}

}  // namespace

TEST_CASE("C011: subnormals, -0.0, infinities and NaN are the same on all ranks, flush-to-zero or not") {
  on_ranks(ranks(), [](int rank) {
    World world = join<TestTransport>();
    check_specials(world);
#if defined(__SSE__)
    if (rank == 0) __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040U);  // as -ffast-math does to a process
    check_specials(world);
#endif
  });
}

namespace {

/// Exponents from 1e-20 to 1e20: every addition rounds, most lose one of their operands.
template <class E, class Make>
Case<E, Sum> wide_case(int count, std::size_t elements, Make make) {
  Case<E, Sum> c(count, elements, Sum{});
  for (int rank = 0; rank < count; ++rank) {
    for (std::size_t i = 0; i < elements; ++i) {
      const int exponent = static_cast<int>(mix(i * 64 + static_cast<std::size_t>(rank)) % 134) - 67;
      c.inputs[static_cast<std::size_t>(rank)][i] = make(std::ldexp(sample<float>(i, rank, 13), exponent));
    }
  }
  c.result = gloo_fold(c.inputs, Sum{});
  return c;
}

template <class E>
void same_in_every_run(World& world, const Case<E, Sum>& c) {
  GuardedBuffer<E> data(nullptr, c.count());
  for (int turn = 0; turn < 50; ++turn) {
    std::this_thread::sleep_for(
        std::chrono::milliseconds(mix(static_cast<std::uint64_t>(8 * turn + world.rank())) % 21));
    data.fill(c.inputs[static_cast<std::size_t>(world.rank())]);
    all_reduce(world, data.span(), Sum{});
    if (!data.holds(c.result)) FAIL_CHECK("turn " << turn << " on rank " << world.rank());
  }
}

template <class E>
void gathers_what_it_scattered(World& world, const Case<E, Sum>& c) {
  std::vector<E> whole = c.inputs[static_cast<std::size_t>(world.rank())];
  std::vector<E> slice(cut(c.count(), world.size(), world.rank()).size());
  std::vector<E> gathered(c.count());
  reduce_scatter(world, whole, std::span(slice), Sum{});
  all_gather(world, slice, std::span(gathered));
  all_reduce(world, std::span(whole), Sum{});
  CHECK(std::memcmp(whole.data(), gathered.data(), whole.size() * sizeof(E)) == 0);
  CHECK(std::memcmp(whole.data(), c.result.data(), whole.size() * sizeof(E)) == 0);
}

/// One element for each placement of four values on four ranks.
template <class E, class Make>
Case<E, Sum> placements(const std::vector<float>& values, Make make) {
  std::vector<std::size_t> places{0, 1, 2, 3};
  std::vector<std::vector<E>> inputs(4);
  do {
    for (std::size_t rank = 0; rank < 4; ++rank) inputs[rank].push_back(make(values[places[rank]]));
  } while (std::next_permutation(places.begin(), places.end()));
  Case<E, Sum> c(4, inputs[0].size(), Sum{});
  c.inputs = std::move(inputs);
  c.result = gloo_fold(c.inputs, Sum{});
  return c;
}

float same(float value) { return value; }

}  // namespace

TEST_CASE("C013: the same bits on all ranks and in all runs, whatever the ranks' pace") {
  const int count = ranks();
  if (count != 3) return;
  const auto floats = wide_case<float>(count, 100003, same);
  const auto brains = wide_case<BFloat16>(count, 100003, to_bfloat16);
  on_ranks(count, [&](int) {
    World world = join<TestTransport>();
    same_in_every_run(world, floats);
    same_in_every_run(world, brains);
  });
}

TEST_CASE("C014: all_reduce is all_gather of reduce_scatter, bit for bit, and no further from the sum than rounding") {
  const int count = ranks();
  const auto brains = wide_case<BFloat16>(count, 4099, to_bfloat16);
  const auto floats = placements<float>({1e8F, 1.0F, -1e8F, 1.0F}, same);
  const auto small = placements<BFloat16>({256.0F, 1.0F, 1.0F, 1.0F}, to_bfloat16);
  on_ranks(count, [&](int) {
    World world = join<TestTransport>();
    gathers_what_it_scattered(world, brains);
    if (count != 4) return;
    gathers_what_it_scattered(world, floats);
    gathers_what_it_scattered(world, small);
    // Three additions, each off by at most half a unit in the last place: 4 around 1e8, 1 around 256 in bfloat16.
    for (const float it : floats.result) CHECK(std::abs(it - 2.0F) <= 3 * 4.0F);
    for (const BFloat16 it : small.result) CHECK(std::abs(to_float32(it) - 259.0F) <= 3 * 1.0F);
  });
}

// An average of integers does not compile: see docs/reference/collectives.md.
static_assert(!Reduction<Avg, std::int64_t> && !Reduction<Avg, std::int32_t> && !Reduction<Avg, std::uint8_t>);

TEST_CASE("C019: integer sums are exact to the last bit and wrap in their own width") {
  const int count = ranks();
  on_ranks(count, [&](int rank) {
    World world = join<TestTransport>();
    std::int64_t wide = (std::int64_t{1} << 53) + 1;  // a path through double would lose the last bit
    std::int32_t middle = rank == 0 ? std::numeric_limits<std::int32_t>::max() : 1;
    std::uint8_t narrow = rank == 0 ? 200 : 100;
    all_reduce<Naive>(world, std::span(&wide, 1), Sum{});
    all_reduce<Naive>(world, std::span(&middle, 1), Sum{});
    all_reduce<Naive>(world, std::span(&narrow, 1), Sum{});
    CHECK(wide == count * ((std::int64_t{1} << 53) + 1));
    CHECK(static_cast<std::uint32_t>(middle) == 0x7fffffffU + static_cast<std::uint32_t>(count - 1));
    CHECK(narrow == static_cast<std::uint8_t>(200 + 100 * (count - 1)));
  });
}
