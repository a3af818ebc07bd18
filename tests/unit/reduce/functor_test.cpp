// SPDX-License-Identifier: Apache-2.0
// Which functor goes with which element, and how a reduction is identified between ranks.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "tandem/reduce/fold.hpp"

namespace {

using namespace tandem;

struct Pair {
  float value;
  std::int32_t index;
};
struct ArgMax {
  Pair operator()(Pair a, Pair b) const { return a.value > b.value ? a : b; }
};
struct Narrow {
  std::int8_t operator()(std::int8_t a, std::int8_t b) const { return static_cast<std::int8_t>(a ^ b); }
};
struct WritesText {
  std::string operator()(float, float) const { return {}; }
};
struct NotConst {
  float operator()(float a, float b) { return a + b; }
};

static_assert(BuiltInReduction<Sum, float> && BuiltInReduction<Prod, BFloat16> && BuiltInReduction<Max, std::uint8_t>);
static_assert(BuiltInReduction<Avg, Float16> && !Reduction<Avg, std::int32_t>);
static_assert(Reduction<PreMulSum<double>, float> && Reduction<PreMulSum<std::int32_t>, std::int64_t>);
static_assert(
    !Reduction<PreMulSum<double>, std::int64_t>);  // a fractional factor of integers has no one right rounding
static_assert(!Reduction<Sum, bool> && !Reduction<Sum, Pair>);
static_assert(!Reduction<PreMulSum<bool>, float> && !Reduction<PreMulSum<Pair>, float>);
static_assert(BuiltInReduction<BitAnd, std::uint8_t> && !Reduction<BitOr, float> && !Reduction<LogicalAnd, Pair>);
static_assert(Reduction<ArgMax, Pair> && !BuiltInReduction<ArgMax, Pair> && Reduction<Narrow, std::int8_t>);
static_assert(!Reduction<WritesText, float> && !Reduction<NotConst, float> && !Reduction<int, float>);

TEST_CASE("identities differ between functors and stay below the user range") {
  const std::set<std::uint32_t> ids{reduction_id<Sum>(),
                                    reduction_id<Prod>(),
                                    reduction_id<Min>(),
                                    reduction_id<Max>(),
                                    reduction_id<Avg>(),
                                    reduction_id<BitAnd>(),
                                    reduction_id<BitOr>(),
                                    reduction_id<BitXor>(),
                                    reduction_id<LogicalAnd>(),
                                    reduction_id<LogicalOr>(),
                                    reduction_id<LogicalXor>(),
                                    reduction_id<PreMulSum<float>>(),
                                    reduction_id<PreMulSum<double>>(),
                                    reduction_id<ArgMax>(),
                                    reduction_id<Narrow>()};
  CHECK(ids.size() == 15);
  CHECK(reduction_id<PreMulSum<double>>() < 0x80000000U);
  CHECK(reduction_id<ArgMax>() >= 0x80000000U);
}

TEST_CASE("a fingerprint tells PreMulSum's factors apart") {
  const auto shown = [](auto factor) { return reduction_fingerprint(PreMulSum{factor}); };
  CHECK(shown(0.25) == shown(0.25));
  std::set<std::uint32_t> seen;
  std::size_t made = 0;
  const auto add = [&](double factor) {
    seen.insert(shown(factor));
    seen.insert(shown(static_cast<float>(factor)));
    seen.insert(shown(-factor));
    made += 3;
  };
  for (int ranks = 1; ranks <= 512; ++ranks) add(1.0 / ranks);
  add(std::nextafter(0.25, 1.0));
  add(0.0);
  for (int factor = 1; factor <= 100; ++factor) {
    seen.insert(shown(factor));
    seen.insert(shown(static_cast<std::int64_t>(factor) << 40));
    seen.insert(shown(static_cast<std::uint8_t>(factor)));
    made += 3;
  }
  CHECK(seen.size() == made - 1);  // nextafter of 0.25 is 0.25 as float
  for (const std::uint32_t it : seen) CHECK((it & 0x800000f0U) == 0x10U);
  CHECK(reduction_fingerprint(Sum{}) == reduction_id<Sum>());
  CHECK(reduction_fingerprint(ArgMax{}) == reduction_id<ArgMax>());
}

/// A cell of the support table: what all functors of a column say of T.
template <class T, class... Ops>
std::string cell() {
  constexpr bool all = (Reduction<Ops, T> && ...);
  static_assert(all == (Reduction<Ops, T> || ...));
  return all ? " yes |" : " |";
}
template <class T>
std::string row() {
  constexpr bool by_integers = Reduction<PreMulSum<std::int32_t>, T>;
  constexpr bool by_floats = Reduction<PreMulSum<double>, T>;
  static_assert(by_integers || !by_floats);
  return std::string("| `") + name_of(dtype_of<T>()) + "` |" + cell<T, Sum, Prod>() + cell<T, Min, Max>() +
         cell<T, Avg>() +
         (by_floats     ? " any factor |"
          : by_integers ? " integer factor |"
                        : " |") +
         cell<T, BitAnd, BitOr, BitXor>() + cell<T, LogicalAnd, LogicalOr, LogicalXor>() + "\n";
}

TEST_CASE("C009: the support table of the documentation is what the concepts say") {
  std::ifstream file(TANDEM_COLLECTIVES_PAGE);
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  const std::string head =
      "| element type | Sum, Prod | Min, Max | Avg | PreMulSum | BitAnd, BitOr, BitXor | LogicalAnd, LogicalOr, "
      "LogicalXor |\n|---|---|---|---|---|---|---|\n";
  const std::string table = head + row<float>() + row<double>() + row<Float16>() + row<BFloat16>() +
                            row<std::int8_t>() + row<std::uint8_t>() + row<std::int32_t>() + row<std::int64_t>() +
                            row<bool>() + "\n";
  CAPTURE(table);
  CHECK(page.find(table) != std::string::npos);
}

TEST_CASE("names for messages") {
  CHECK(reduction_name<Sum>() == "Sum");
  CHECK(reduction_name<LogicalXor>() == "LogicalXor");
  CHECK(reduction_name<PreMulSum<float>>() == "PreMulSum");
  const std::string user = reduction_name<ArgMax>();
  CAPTURE(user);
  CHECK(user.size() >= 6);
  CHECK(user.substr(user.size() - 6) == "ArgMax");
}

TEST_CASE("16-bit floats: every value there and back, and ties, carries and overflow on the way") {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const Float16 half{static_cast<std::uint16_t>(bits)};
    const BFloat16 brain{static_cast<std::uint16_t>(bits)};
    const bool half_nan = (bits & 0x7fffU) > 0x7c00U;
    const bool brain_nan = (bits & 0x7fffU) > 0x7f80U;
    const Float16 half_back = to_float16(to_float32(half));
    const BFloat16 brain_back = to_bfloat16(to_float32(brain));
    wrong += half_nan ? (half_back.bits & 0x7fffU) <= 0x7c00U : half_back != half;
    wrong += brain_nan ? (brain_back.bits & 0x7fffU) <= 0x7f80U : brain_back != brain;
    // Exact value, by another road.
    if ((bits & 0x7c00U) != 0x7c00U) {
      const int field = static_cast<int>(bits >> 10 & 31U);
      const double expected = std::ldexp((bits & 1023U) + (field != 0 ? 1024.0 : 0.0), (field != 0 ? field : 1) - 25);
      wrong += static_cast<double>(to_float32(half)) != ((bits & 0x8000U) != 0 ? -expected : expected);
    }
  }
  CHECK(wrong == 0);
  CHECK(to_float16(65519.99F).bits == 0x7bff);  // the greatest finite
  CHECK(to_float16(65520.0F).bits == 0x7c00);   // a tie, to even: infinity
  CHECK(to_float16(-1e30F).bits == 0xfc00);
  CHECK(to_float16(std::ldexp(1.0F, -25)).bits == 0);  // half of the least subnormal: to even
  CHECK(to_float16(std::nextafter(std::ldexp(1.0F, -25), 1.0F)).bits == 1);
  CHECK(to_float16(std::ldexp(3.0F, -25)).bits == 2);          // 1.5 subnormals
  CHECK(to_float16(std::ldexp(1023.5F, -24)).bits == 0x0400);  // carries into the least normal
  CHECK(to_bfloat16(std::numeric_limits<float>::max()).bits == 0x7f80);
  CHECK(to_bfloat16(std::bit_cast<float>(0x00018000U)).bits == 2);       // a subnormal tie
  CHECK(to_bfloat16(std::bit_cast<float>(0x7f800001U)).bits == 0x7fc0);  // a NaN, not infinity
}

}  // namespace
