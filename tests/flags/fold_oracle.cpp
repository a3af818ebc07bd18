// SPDX-License-Identifier: Apache-2.0
// Straightforward, slow, and deliberately independent of tandem/reduce: 16-bit conversions go through double
// arithmetic.
#include "fold_oracle.hpp"

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__FAST_MATH__)
#error "the oracle must be compiled without -ffast-math"
#endif

namespace tandem::test {
namespace {

// Significand bits (hidden one included), least and greatest exponent of a 16-bit format.
struct Shape {
  int precision, least, greatest;
};
constexpr Shape shape_of(Float16) { return {11, -14, 15}; }
constexpr Shape shape_of(BFloat16) { return {8, -126, 127}; }

template <class H>
double value_of(H half) {
  const Shape shape = shape_of(half);
  const int fraction_bits = shape.precision - 1;
  const int fraction = half.bits & ((1 << fraction_bits) - 1);
  const int field = (half.bits & 0x7fff) >> fraction_bits;
  const double sign = (half.bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (field == 2 * shape.greatest + 1) return fraction != 0 ? std::nan("") : sign * HUGE_VAL;
  if (field == 0) return sign * std::ldexp(fraction, shape.least - fraction_bits);
  return sign * std::ldexp(fraction + (1 << fraction_bits), field - shape.greatest - fraction_bits);
}

template <class H>
H nearest(float value) {
  const Shape shape = shape_of(H{});
  const int fraction_bits = shape.precision - 1;
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const auto infinity = static_cast<std::uint16_t>((2 * shape.greatest + 1) << fraction_bits);
  if (std::isnan(value)) return {static_cast<std::uint16_t>(infinity | 1 << (fraction_bits - 1))};
  const double magnitude = std::fabs(static_cast<double>(value));
  if (std::isinf(value)) return {static_cast<std::uint16_t>(sign | infinity)};
  int exponent = shape.least;
  if (magnitude > 0) exponent = std::max(exponent, std::ilogb(magnitude));
  // Scaled so that one unit is the last place; nearbyint rounds to nearest even.
  const auto units = static_cast<long>(std::nearbyint(std::ldexp(magnitude, fraction_bits - exponent)));
  // units < 2^fraction_bits is subnormal; a carry into the next binade falls out of the addition.
  const long bits = units + (static_cast<long>(exponent - shape.least) << fraction_bits);
  return {static_cast<std::uint16_t>(sign | (bits >= infinity ? infinity : bits))};
}

template <class T>
constexpr bool half_float = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

template <class T>
bool is_nan(T value) {
  if constexpr (half_float<T>)
    return std::isnan(value_of(value));
  else if constexpr (std::is_floating_point_v<T>)
    return std::isnan(value);
  else
    return false;
}
template <class T>
bool less(T a, T b) {
  if constexpr (half_float<T>) {
    return less(value_of(a), value_of(b));
  } else if constexpr (std::is_floating_point_v<T>) {
    return a < b || (a == b && std::signbit(a) && !std::signbit(b));
  } else {
    return a < b;
  }
}

template <class T>
bool is_true(T value) {
  if constexpr (half_float<T>)
    return is_nan(value) || value_of(value) != 0;
  else
    return value != 0;  // a NaN differs from everything
}
template <class T>
T bits(Kind kind, T a, T b) {
  std::uint64_t x = 0;
  std::uint64_t y = 0;
  std::memcpy(&x, &a, sizeof(T));
  std::memcpy(&y, &b, sizeof(T));
  x = kind == Kind::bit_and ? x & y : kind == Kind::bit_or ? x | y : x ^ y;
  std::memcpy(static_cast<void*>(&a), &x, sizeof(T));
  return a;
}

enum class Step { add, multiply, divide };

template <class T>
T apply(Step step, T a, T b) {
  if constexpr (half_float<T>) {
    const auto x = static_cast<float>(value_of(a));
    const auto y = static_cast<float>(value_of(b));
    return nearest<T>(step == Step::add ? x + y : step == Step::multiply ? x * y : x / y);
  } else if constexpr (std::is_floating_point_v<T>) {
    return step == Step::add ? a + b : step == Step::multiply ? a * b : a / b;
  } else {
    const auto x = static_cast<std::uint64_t>(a);
    const auto y = static_cast<std::uint64_t>(b);
    return static_cast<T>(step == Step::add ? x + y : x * y);
  }
}

// The factor of a 16-bit float stays a float: only the product is rounded.
template <class T>
T scale(T value, double factor) {
  if constexpr (half_float<T>)
    return nearest<T>(static_cast<float>(value_of(value)) * static_cast<float>(factor));
  else if constexpr (std::is_integral_v<T>)
    return apply(Step::multiply, value, static_cast<T>(static_cast<long>(factor)));
  else
    return apply(Step::multiply, value, static_cast<T>(factor));
}

template <class T>
T number(int value) {
  if constexpr (half_float<T>)
    return nearest<T>(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

template <class T>
void fold_elements(Kind kind, double factor, const void* const* sources, int source_count, void* result,
                   std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    T acc{};
    for (int k = 0; k < source_count; ++k) {
      T x;
      std::memcpy(&x, static_cast<const char*>(sources[k]) + i * sizeof(T), sizeof(T));
      if (kind == Kind::pre_mul_sum) x = scale(x, factor);
      if (kind >= Kind::logical_and) x = number<T>(is_true(x) ? 1 : 0);
      if (k == 0)
        acc = x;
      else if (kind == Kind::prod)
        acc = apply(Step::multiply, x, acc);
      else if (kind == Kind::min)
        acc = is_nan(acc) || (!is_nan(x) && !less(x, acc)) ? acc : x;
      else if (kind == Kind::max)
        acc = is_nan(acc) || (!is_nan(x) && !less(acc, x)) ? acc : x;
      else if (kind >= Kind::bit_and && kind <= Kind::bit_xor)
        acc = bits(kind, x, acc);
      else if (kind >= Kind::logical_and)
        acc = number<T>(kind == Kind::logical_and  ? is_true(x) && is_true(acc)
                        : kind == Kind::logical_or ? is_true(x) || is_true(acc)
                                                   : is_true(x) != is_true(acc));
      else
        acc = apply(Step::add, x, acc);
    }
    if (kind == Kind::avg) acc = apply(Step::divide, acc, number<T>(source_count));
    std::memcpy(static_cast<char*>(result) + i * sizeof(T), &acc, sizeof(T));
  }
}

}  // namespace

void oracle_fold(Dtype dtype, Kind kind, double factor, const void* const* sources, int source_count, void* result,
                 std::size_t count) {
  // A program linked with -ffast-math runs with subnormals flushed: the oracle computes in the standard state.
  std::fenv_t state;
  std::feholdexcept(&state);
  std::fesetenv(FE_DFL_ENV);
  visit_dtype(dtype, [&]<class T>(T) { fold_elements<T>(kind, factor, sources, source_count, result, count); });
  std::fesetenv(&state);
}

bool is_nan_element(Dtype dtype, const void* element) {
  return visit_dtype(dtype, [&]<class T>(T) {
    T x;
    std::memcpy(&x, element, sizeof(T));
    return is_nan(x);
  });
}

bool same_element(Dtype dtype, const void* a, const void* b) {
  return std::memcmp(a, b, visit_dtype(dtype, []<class T>(T) { return sizeof(T); })) == 0 ||
         (is_nan_element(dtype, a) && is_nan_element(dtype, b));
}

}  // namespace tandem::test
