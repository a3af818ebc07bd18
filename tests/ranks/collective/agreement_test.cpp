// SPDX-License-Identifier: Apache-2.0
// Ranks that do not call the same thing: every one of them is told what, with both values, before anybody's data was
// touched. What only one rank can see to be wrong is refused there.
#include <doctest/doctest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "support/collective_laws.hpp"
#include "support/ranks.hpp"

using namespace tandem;
using namespace tandem::test;
using namespace std::chrono_literals;

namespace {

template <class Call>
std::optional<Error> error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}
bool says(const Error& error, const std::string& text) {
  return std::string(error.what()).find(text) != std::string::npos;
}

/// 32 bytes for each rank to call something on, `odd` on the last. All are told of a mismatch, in these words.
void must_not_match(const std::function<void(World&, std::span<float>, bool odd)>& call,
                    const std::vector<std::string>& said) {
  const int count = ranks();
  if (count == 1) return;
  on_ranks(count, [&](int rank) {
    World world = join<TestTransport>();
    std::vector<float> data = samples<float>(8, rank);
    const std::vector<float> before = data;
    const auto error = error_of([&] { call(world, data, rank == count - 1); });
    REQUIRE(error);
    CAPTURE(std::string(error->what()));
    CHECK(error->kind() == ErrorKind::mismatch);
    for (const auto& text : said) CHECK(says(*error, text));
    CHECK(says(*error, "operation 1, "));
    CHECK(says(*error, "agreement_test.cpp"));
    CHECK_FALSE(says(*error, "unknown place"));
    CHECK(std::memcmp(data.data(), before.data(), sizeof(float) * data.size()) == 0);
    const auto again = error_of([&] { barrier(world); });
    REQUIRE(again);
    CHECK(again->kind() == ErrorKind::poisoned);
  });
}

template <class E>
std::span<E> seen_as(std::span<float> data) {
  return {reinterpret_cast<E*>(data.data()), data.size_bytes() / sizeof(E)};
}
/// The same bytes, of one dtype on the last rank and of another elsewhere.
template <class Odd, class Even>
void dtypes_must_not_match(const std::string& odd_name, const std::string& even_name) {
  must_not_match(
      [](World& world, std::span<float> data, bool odd) {
        if (odd)
          all_reduce(world, seen_as<Odd>(data), Sum{});
        else
          all_reduce(world, seen_as<Even>(data), Sum{});
      },
      {"all_reduce", "dtype is ", odd_name + " on rank " + std::to_string(ranks() - 1), even_name + " on rank "});
}

/// An order of a user's own: one chunk, from the last rank down.
struct Descending {
  static constexpr ChunkTable table(std::size_t count, std::size_t, int ranks) noexcept {
    return {count, count, ranks};
  }
};

}  // namespace

TEST_CASE("C007: other dtypes of equal bytes") {
  dtypes_must_not_match<std::int32_t, float>("int32", "float32");
  dtypes_must_not_match<BFloat16, Float16>("bfloat16", "float16");
  dtypes_must_not_match<double, std::int64_t>("float64", "int64");
}

TEST_CASE("C007: other reductions, factors, orders and roots") {
  must_not_match(
      [](World& world, std::span<float> data, bool odd) {
        if (odd)
          all_reduce(world, data, Max{});
        else
          all_reduce(world, data, Sum{});
      },
      {"the reduction is ", "Max on rank ", "Sum on rank "});
  must_not_match(
      [](World& world, std::span<float> data, bool odd) { all_reduce(world, data, PreMulSum{odd ? 0.25 : 0.5}); },
      {"the factor of PreMulSum is ", "0.25", "0.5", "with the factor "});
  must_not_match(
      [](World& world, std::span<float> data, bool odd) {
        if (odd)
          all_reduce<Auto, Descending>(world, data, Sum{});
        else
          all_reduce(world, data, Sum{});
      },
      {"the order of addition is ", "GlooRing on rank ", "a user's own (number "});
  must_not_match([](World& world, std::span<float> data, bool odd) { broadcast(world, data, odd ? 1 : 0); },
                 {"root is ", "1 on rank ", "0 on rank "});
}

TEST_CASE("C008: the same operations in another order") {
  must_not_match(
      [](World& world, std::span<float> data, bool odd) {
        const auto a = data.first(4);
        const auto b = data.last(4);
        if (odd) {
          broadcast(world, b, 0);
          all_reduce(world, a, Sum{});
        } else {
          all_reduce(world, a, Sum{});
          broadcast(world, b, 0);
        }
      },
      {"the operation is ", "broadcast on rank ", "all_reduce on rank "});
}

TEST_CASE("C008: two alike in another order are the user's to keep apart, and end") {
  on_ranks(ranks(), [](int rank) {
    World world = join<TestTransport>();
    std::vector<float> a(4, 1.0F);
    std::vector<float> b(4, 2.0F);
    all_reduce(world, std::span(rank == 0 ? a : b), Max{});
    all_reduce(world, std::span(rank == 0 ? b : a), Max{});
    barrier(world);
    CHECK_FALSE(world.poisoned());
  });
}

TEST_CASE("C002: an input that overlaps the output at a shift is refused, and the others do not wait for ever") {
  const int count = ranks();
  on_ranks(count, [&](int rank) {
    World world = join<TestTransport>();
    const auto each = std::size_t{100};
    std::vector<float> whole(each * static_cast<std::size_t>(count) + 1, 0.0F);
    const std::span<float> output(whole.data(), whole.size() - 1);
    const std::size_t own = each * static_cast<std::size_t>(rank);
    std::fill_n(whole.begin() + static_cast<std::ptrdiff_t>(own), each, static_cast<float>(rank + 1));
    all_gather(world, output.subspan(own, each), output);  // its own place is no overlap
    for (std::size_t i = 0; i < output.size(); ++i) CHECK(output[i] == static_cast<float>(i / each + 1));

    if (rank == 0) {
      const auto error =
          error_of([&] { all_gather(world, std::span<const float>(whole).subspan(own + 1, each), output); });
      REQUIRE(error);
      CHECK(error->kind() == ErrorKind::argument);
      CHECK(says(*error, "input and output overlap"));
      CHECK_FALSE(world.poisoned());
      return;  // and leaves
    }
    const auto started = Clock::now();
    const auto error = error_of([&] { all_gather(world, output.subspan(own, each), output); });
    REQUIRE(error);
    CHECK(error->peer() == 0);
    CHECK(Clock::now() - started < 10s);
  });
}

TEST_CASE("C017: all_gather of unequal lengths names the lengths on every rank; all_gather_v takes them") {
  const int count = ranks();
  if (count != 3) return;
  const std::vector<std::size_t> lengths{3, 4, 3};
  on_ranks(count, [&](int rank) {
    const std::size_t length = lengths[static_cast<std::size_t>(rank)];
    std::vector<std::int32_t> mine(length, rank);
    std::vector<std::int32_t> whole(10, -1);
    {
      World world = join<TestTransport>();
      all_gather_v(world, mine, std::span(whole), lengths);
      CHECK(whole == std::vector<std::int32_t>{0, 0, 0, 1, 1, 1, 1, 2, 2, 2});
      std::vector<std::int32_t> equal(3 * length, -1);
      const auto error = error_of([&] { all_gather(world, mine, std::span(equal)); });
      REQUIRE(error);
      CAPTURE(std::string(error->what()));
      CHECK(error->kind() == ErrorKind::mismatch);
      CHECK(says(*error, "the number of elements is "));
      CHECK(says(*error, "9 on rank "));
      CHECK(says(*error, "12 on rank 1"));
      CHECK(equal == std::vector<std::int32_t>(3 * length, -1));
    }
  });
}
