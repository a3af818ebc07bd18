// SPDX-License-Identifier: Apache-2.0
// The fold against a scalar oracle: every dtype, functor and number of sources, at awkward sizes and addresses.
#include <doctest/doctest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "flags/fold_oracle.hpp"
#include "tandem/core/bytes.hpp"
#include "tandem/reduce/fold.hpp"

namespace {

using namespace tandem;
using test::Kind;

template <class T>
T from_bits(std::uint64_t bits) {
  T value;
  std::memcpy(static_cast<void*>(&value), &bits, sizeof(T));  // little-endian, as all targets here
  return value;
}

/// Zeros of both signs, subnormals and any bits at all are frequent.
template <class T>
T random_element(std::mt19937_64& random) {
  const std::uint64_t bits = random();
  const std::uint64_t choice = bits >> 32 & 7U;
  if constexpr (std::is_same_v<T, bool>) {
    return choice < 5;
  } else if constexpr (std::is_integral_v<T>) {
    return choice == 0 ? T{} : static_cast<T>(bits);
  } else {
    constexpr int fraction_bits = std::is_same_v<T, double>  ? 52
                                  : std::is_same_v<T, float> ? 23
                                                             : (std::is_same_v<T, Float16> ? 10 : 7);
    const std::uint64_t sign = (bits & 1U) << (8 * sizeof(T) - 1);
    if (choice == 0) return from_bits<T>(random());
    if (choice == 1) return from_bits<T>(sign);
    if (choice == 2) return from_bits<T>(sign | (random() & ((std::uint64_t{1} << fraction_bits) - 1)));
    const float value = static_cast<float>(static_cast<std::int32_t>(bits)) * 0x1p-31F;
    if constexpr (std::is_same_v<T, double>)
      return static_cast<double>(static_cast<std::int64_t>(bits)) * 0x1p-63;
    else if constexpr (std::is_same_v<T, float>)
      return value;
    else if constexpr (std::is_same_v<T, BFloat16>)
      return to_bfloat16(value);
    else
      return to_float16(value);
  }
}

/// `sources` buffers of count elements, `shift` bytes away from alignment, a guard element on both sides.
template <class T>
class Buffers {
 public:
  Buffers(int sources, std::size_t count, std::size_t shift, std::uint64_t seed) : count_(count), shift_(shift) {
    std::mt19937_64 random(seed);
    bytes_.resize(static_cast<std::size_t>(sources));
    for (auto& buffer : bytes_) {
      buffer.assign((count + 2) * sizeof(T) + shift + 64, std::byte{0xa5});
      for (std::size_t i = 0; i < count; ++i) {
        const T value = random_element<T>(random);
        std::memcpy(start(buffer) + i * sizeof(T), &value, sizeof(T));
      }
    }
  }
  std::vector<T*> pointers() {
    std::vector<T*> result;
    for (auto& buffer : bytes_) result.push_back(reinterpret_cast<T*>(start(buffer)));
    return result;
  }
  bool guards_intact() {
    for (auto& buffer : bytes_) {
      for (std::size_t b = 0; b < buffer.size(); ++b) {
        const std::byte* at = buffer.data() + b;
        if ((at < start(buffer) || at >= start(buffer) + count_ * sizeof(T)) && *at != std::byte{0xa5}) return false;
      }
    }
    return true;
  }

 private:
  std::byte* start(std::vector<std::byte>& buffer) const {
    const auto address = reinterpret_cast<std::uintptr_t>(buffer.data()) + sizeof(T);
    return buffer.data() + sizeof(T) + (32 - address % 32) % 32 + shift_;
  }
  std::size_t count_, shift_;
  std::vector<std::vector<std::byte>> bytes_;
};

template <class T>
std::vector<const void*> as_void(const std::vector<T*>& pointers) {
  return {pointers.begin(), pointers.end()};
}

/// std::vector<bool> has no memory to point to.
template <class T>
using Stored = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;

template <class T>
std::size_t differing(const T* got, const std::vector<Stored<T>>& expected) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) wrong += !test::same_element(dtype_of<T>(), got + i, &expected[i]);
  return wrong;
}

template <class T, class Op>
void check(const Op& op, Kind kind, double factor) {
  for (int sources = 1; sources <= 9; ++sources) {
    for (const std::size_t count : {0UL, 1UL, 2UL, 3UL, 13UL, 31UL, 64UL, 1031UL, page_bytes / sizeof(T) + 1}) {
      for (const std::size_t shift : {std::size_t{0}, sizeof(T)}) {
        Buffers<T> inputs(sources, count, shift, 1000 * count + static_cast<std::size_t>(sources));
        Buffers<T> outputs(2, count, sizeof(T) - shift, 1);
        const auto in = inputs.pointers();
        const auto out = outputs.pointers();
        std::vector<Stored<T>> expected(count);
        test::oracle_fold(dtype_of<T>(), kind, factor, as_void(in).data(), sources, expected.data(), count);

        fold(op, sources, in.data(), sources, out.data(), 2, count);
        const std::size_t apart = differing(out[0], expected) + differing(out[1], expected);
        fold(op, sources, in.data(), sources, in.data(), sources, count);
        std::size_t in_place = 0;
        for (const T* result : in) in_place += differing(result, expected);

        CAPTURE(name_of(dtype_of<T>()));
        CAPTURE(reduction_name<Op>());
        CAPTURE(sources);
        CAPTURE(count);
        CAPTURE(shift);
        CHECK(apart == 0);
        CHECK(in_place == 0);
        CHECK(inputs.guards_intact());
        CHECK(outputs.guards_intact());
      }
    }
  }
}

TEST_CASE_TEMPLATE("every functor, N = 1..9, sizes 0, 1, prime, page + 1, unaligned, apart and in place", T, float,
                   double, Float16, BFloat16, std::int8_t, std::uint8_t, std::int32_t, std::int64_t, bool) {
  check<T>(Min{}, Kind::min, 1.0);
  check<T>(Max{}, Kind::max, 1.0);
  // What is true shows in LogicalXor; how it is combined is the same for all widths, and not compiled for each here.
  check<T>(LogicalXor{}, Kind::logical_xor, 1.0);
  if constexpr (sizeof(T) == 4) {
    check<T>(LogicalAnd{}, Kind::logical_and, 1.0);
    check<T>(LogicalOr{}, Kind::logical_or, 1.0);
  }
  if constexpr (std::is_integral_v<T>) {
    check<T>(BitXor{}, Kind::bit_xor, 1.0);
    if constexpr (std::is_unsigned_v<T>) {
      check<T>(BitAnd{}, Kind::bit_and, 1.0);
      check<T>(BitOr{}, Kind::bit_or, 1.0);
    }
  }
  if constexpr (!std::is_same_v<T, bool>) {
    check<T>(Sum{}, Kind::sum, 1.0);
    check<T>(Prod{}, Kind::prod, 1.0);
  }
  if constexpr (detail::is_integer<T>) {
    check<T>(PreMulSum<std::int8_t>{-3}, Kind::pre_mul_sum, -3.0);
  } else if constexpr (detail::is_floating<T>) {
    check<T>(Avg{}, Kind::avg, 1.0);
    check<T>(PreMulSum<double>{1.0 / 3.0}, Kind::pre_mul_sum, 1.0 / 3.0);
  }
}

template <class T, class Op>
void check_steps(const Op& op) {
  const int ranks = 5;
  const std::size_t count = 203;
  Buffers<T> buffers(ranks, count, 0, 77);
  const auto in = buffers.pointers();
  std::vector<T> at_once(count);
  T* const whole[] = {at_once.data()};
  fold(op, ranks, in.data(), ranks, whole, 1, count);

  // As a ring does it: a partial result in place, one more input each time.
  std::vector<T> acc(count);
  T* const target[] = {acc.data()};
  const T* first[] = {in[0]};
  fold(op, ranks, first, 1, target, 1, count, FoldStart::raw, FoldEnd::partial);
  for (int k = 1; k < ranks; ++k) {
    const T* next[] = {acc.data(), in[static_cast<std::size_t>(k)]};
    fold(op, ranks, next, 2, target, 1, count, FoldStart::partial,
         k + 1 < ranks ? FoldEnd::partial : FoldEnd::finished);
  }
  CHECK(differing(acc.data(), at_once) == 0);
}

TEST_CASE_TEMPLATE("one input at a time gives the bits of all at once", T, float, double, Float16, BFloat16) {
  check_steps<T>(Sum{});
  check_steps<T>(Max{});
  check_steps<T>(Avg{});
  check_steps<T>(PreMulSum<double>{1.0 / 3.0});
  check_steps<T>(LogicalXor{});
}

TEST_CASE("C009: what is reduced to bool is stored as 0 or 1, whatever bytes came in") {
  for (const std::size_t count : {1UL, 5UL, 1031UL}) {
    std::vector<std::uint8_t> a;
    std::vector<std::uint8_t> b;
    std::vector<std::uint8_t> result(count, 77);
    for (std::size_t i = 0; i < count; ++i) {
      a.push_back(static_cast<std::uint8_t>(i * 37));
      b.push_back(i % 3 == 0 ? 0 : static_cast<std::uint8_t>(255 - i));
    }
    const bool* const in[] = {reinterpret_cast<const bool*>(a.data()), reinterpret_cast<const bool*>(b.data())};
    bool* const out[] = {reinterpret_cast<bool*>(result.data())};
    const auto wrong = [&](auto expected) {
      std::size_t differ = 0;
      for (std::size_t i = 0; i < count; ++i) differ += result[i] != (expected(a[i] != 0, b[i] != 0) ? 1 : 0);
      return differ;
    };
    fold(Max{}, 2, in, 2, out, 1, count);
    CHECK(wrong([](bool x, bool y) { return x || y; }) == 0);
    fold(Min{}, 2, in, 2, out, 1, count);
    CHECK(wrong([](bool x, bool y) { return x && y; }) == 0);
    fold(BitXor{}, 2, in, 2, out, 1, count);
    CHECK(wrong([](bool x, bool y) { return x != y; }) == 0);
    fold(BitAnd{}, 1, in, 1, out, 1, count);  // a single rank
    CHECK(wrong([](bool x, bool) { return x; }) == 0);
  }
}

TEST_CASE("a destination may be any one source") {
  Buffers<float> inputs(4, 777, 0, 5);
  const auto in = inputs.pointers();
  std::vector<float> expected(777);
  test::oracle_fold(Dtype::float32, Kind::sum, 1.0, as_void(in).data(), 4, expected.data(), 777);
  const std::vector<float> untouched(in[1], in[1] + 777);
  float* const third[] = {in[2]};
  fold(Sum{}, 4, in.data(), 4, third, 1, 777);
  CHECK(differing(in[2], expected) == 0);
  CHECK(differing(in[1], untouched) == 0);
}

TEST_CASE("C019: integers wrap, in their own width") {
  const std::int64_t wide[] = {(std::int64_t{1} << 53) + 1};
  std::int64_t wide_sum = 0;
  const std::int64_t* wide_in[] = {wide, wide};
  std::int64_t* wide_out[] = {&wide_sum};
  fold(Sum{}, 2, wide_in, 2, wide_out, 1, 1);
  CHECK(wide_sum == 18014398509481986);

  const std::int32_t most = std::numeric_limits<std::int32_t>::max();
  const std::int32_t one = 1;
  std::int32_t sum = 0;
  const std::int32_t* in[] = {&most, &one};
  std::int32_t* out[] = {&sum};
  fold(Sum{}, 2, in, 2, out, 1, 1);
  CHECK(sum == std::numeric_limits<std::int32_t>::min());
}

template <class Op = Sum>
float fold_two(float a, float b, const Op& op = {}) {
  float result = 0;
  const float* in[] = {&a, &b};
  float* out[] = {&result};
  fold(op, 2, in, 2, out, 1, 1);
  return result;
}

TEST_CASE("C011: subnormals, signed zeros, infinities and NaN keep their meaning, flush-to-zero or not") {
  const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
  const auto check_special = [&] {
    CHECK(bits(fold_two(std::bit_cast<float>(1U), std::bit_cast<float>(1U))) == 2U);
    CHECK(bits(fold_two(-0.0F, -0.0F)) == 0x80000000U);
    const float infinity = std::numeric_limits<float>::infinity();
    CHECK((bits(fold_two(infinity, -infinity)) & 0x7fffffffU) > 0x7f800000U);
    CHECK(bits(fold_two(infinity, 1.0F)) == 0x7f800000U);
    // A NaN and a subnormal are not zero, -0.0 is.
    CHECK(fold_two(std::bit_cast<float>(1U), std::bit_cast<float>(0x7fc00000U), LogicalAnd{}) == 1.0F);
    CHECK(bits(fold_two(-0.0F, 0.0F, LogicalOr{})) == 0U);
  };
  check_special();
#if defined(__SSE__)
  // What an object linked with -ffast-math does to the whole process.
  const unsigned state = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(state | 0x8040U);
  check_special();
  CHECK((__builtin_ia32_stmxcsr() & 0x8040U) == 0x8040U);  // and the program keeps the state it had
  __builtin_ia32_ldmxcsr(state);
#endif
}

TEST_CASE("a NaN factor of 16-bit floats gives NaN, whatever its payload") {
  const BFloat16 one = to_bfloat16(1.0F);
  BFloat16 result;
  const BFloat16* in[] = {&one};
  BFloat16* out[] = {&result};
  fold(PreMulSum<float>{std::bit_cast<float>(0x7fffffffU)}, 1, in, 1, out, 1, 1);
  CHECK(test::is_nan_element(Dtype::bfloat16, &result));
}

/// Neither commutative nor associative: shows the order and the sides of every call.
struct Digits {
  std::int64_t operator()(std::int64_t input, std::int64_t accumulated) const { return accumulated * 10 + input; }
};
struct Closest {
  float distance;
  std::int32_t rank;
};
struct Nearest {
  Closest operator()(const Closest& input, const Closest& accumulated) const {
    return input.distance < accumulated.distance ? input : accumulated;
  }
};

TEST_CASE("a user's functor is called in order, input first, on elements of any size") {
  const std::int64_t one[] = {1, 4};
  const std::int64_t two[] = {2, 5};
  const std::int64_t three[] = {3, 6};
  std::int64_t result[2] = {};
  const std::int64_t* in[] = {one, two, three};
  std::int64_t* out[] = {result};
  fold(Digits{}, 3, in, 3, out, 1, 2);
  CHECK(result[0] == 123);
  CHECK(result[1] == 456);

  const Closest a[] = {{2.0F, 0}};
  const Closest b[] = {{1.0F, 1}};
  Closest best[1] = {};
  const Closest* candidates[] = {a, b};
  Closest* bests[] = {best};
  fold(Nearest{}, 2, candidates, 2, bests, 1, 1);
  CHECK(best[0].rank == 1);
}

}  // namespace
