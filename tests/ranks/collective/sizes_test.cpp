// SPDX-License-Identifier: Apache-2.0
// Sizes and places that have failed elsewhere: fewer elements than ranks, counts that neither ranks nor vectors divide,
// buffers that start anywhere, with guards on both sides, and inputs that must stay.
#include <doctest/doctest.h>

#include "support/collective_laws.hpp"
#include "support/ranks.hpp"
#include "tandem/collective/send_recv.hpp"

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

TEST_CASE("C004: fewer elements than ranks") {
  on_ranks(ranks(), [](int) {
    World world = join<TestTransport>();
    few_elements<float>(world, [](int value) { return static_cast<float>(value); });
    few_elements<std::uint8_t>(world, [](int value) { return static_cast<std::uint8_t>(value); });
    few_elements<BFloat16>(world, [](int value) { return to_bfloat16(static_cast<float>(value)); });
  });
}

namespace {

/// `period` again and again: quick where nothing is optimized.
template <class E>
std::vector<E> repeated(const std::vector<E>& period, std::size_t count) {
  std::vector<E> all(count);
  for (std::size_t begin = 0; begin < count; begin += period.size()) {
    std::memcpy(all.data() + begin, period.data(), std::min(period.size(), count - begin) * sizeof(E));
  }
  return all;
}

/// Element i on rank r is (i * 31 + r) mod 251: sums are exact in all four types but for uint8, which wraps, and
/// float16, whose odd sums round above 2,048 (here they stay below).
template <class E, class Make>
void odd_sizes(World& world, const std::vector<std::size_t>& counts, Make make) {
  std::vector<E> values;
  std::vector<E> sums;
  for (int i = 0; i < 251; ++i) {
    int sum = 0;
    for (int rank = 0; rank < world.size(); ++rank) sum += (i * 31 + rank) % 251;
    values.push_back(make((i * 31 + world.rank()) % 251));
    sums.push_back(make(sum));
  }
  for (const std::size_t count : counts) {
    const std::vector<E> mine = repeated(values, count);
    const std::vector<E> expected = repeated(sums, count);
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

TEST_CASE("C005: counts that neither ranks nor vectors divide") {
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

namespace {

template <class E, class Make>
void shifted(World& world, Make make) {
  const auto value = [](std::size_t i, int rank) { return static_cast<int>((i + static_cast<std::size_t>(rank)) % 5); };
  std::vector<E> mine;
  std::vector<E> expected;
  for (std::size_t i = 0; i < 1021; ++i) {
    int sum = 0;
    for (int rank = 0; rank < world.size(); ++rank) sum += value(i, rank);
    mine.push_back(make(value(i, world.rank())));
    expected.push_back(make(sum));
  }
  for (std::size_t shift = 1; shift <= 7; ++shift) {
    for (const bool registered : {false, true}) {
      GuardedBuffer<E> data(registered ? world.arena() : nullptr, mine.size(), shift);
      data.fill(mine);
      all_reduce(world, data.span(), Sum{});
      if (!data.holds(expected)) FAIL_CHECK("wrong: elements of " << sizeof(E) << " bytes, shift " << shift);
      if (!data.guards_intact()) FAIL_CHECK("guards: elements of " << sizeof(E) << " bytes, shift " << shift);
    }
  }
}

}  // namespace

TEST_CASE("C020: buffers that start at any element; their neighbours stay") {
  on_ranks(ranks(), [&](int) {
    World world = join<TestTransport>();
    shifted<std::uint8_t>(world, [](int value) { return static_cast<std::uint8_t>(value); });
    shifted<BFloat16>(world, [](int value) { return to_bfloat16(static_cast<float>(value)); });
    shifted<float>(world, [](int value) { return static_cast<float>(value); });
    shifted<double>(world, [](int value) { return static_cast<double>(value); });
  });
}

TEST_CASE("C015: what a verb only reads stays as it is") {
  const int count = ranks();
  on_ranks(count, [&](int rank) {
    World world = join<TestTransport>();
    for (const std::size_t elements : {std::size_t{1}, std::size_t{1021}, std::size_t{1} << 20}) {
      const auto mine = samples<float>(elements, rank);
      std::vector<float> data = mine;
      std::vector<float> slice(cut(elements, count, rank).size());
      std::vector<float> other(elements * static_cast<std::size_t>(count));
      const auto stays = [&](const char* verb) {
        if (std::memcmp(data.data(), mine.data(), elements * sizeof(float)) != 0)
          FAIL_CHECK(verb << " of " << elements << " elements changed its input on rank " << rank);
      };
      reduce_scatter(world, data, std::span(slice), Sum{});
      stays("reduce_scatter");
      all_gather(world, data, std::span(other));
      stays("all_gather");
      for (int root = 0; root < count; ++root) {
        const std::span<float> target = rank == root ? std::span(data) : std::span(other).first(elements);
        broadcast(world, target, root);
        stays("broadcast");
      }
      if (count > 1) {
        send(world, std::span<const float>(data), (rank + 1) % count);
        recv(world, std::span(other).first(elements), (rank + count - 1) % count);
        stays("send");
      }
    }
  });
}
