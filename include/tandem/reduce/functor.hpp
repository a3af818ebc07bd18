// SPDX-License-Identifier: Apache-2.0
// The reductions a collective can be given: built-in functors and the concept that a user's own functor must meet.
// Says what is computed per element; how it is computed fast, and in which order, belongs to fold and order.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "tandem/core/dtype.hpp"

namespace tandem {

/// The sum. Integers wrap; 16-bit floats are rounded to nearest even after every addition, as PyTorch's gloo does.
struct Sum {};
/// The product, with the same rules.
struct Prod {};
/// The least element. A NaN wins, as in torch.minimum; -0.0 is below +0.0.
struct Min {};
/// The greatest element. A NaN wins, as in torch.maximum; +0.0 is above -0.0.
struct Max {};
/// The sum, then a true division by the number of ranks. Floating types only: an integer average has no one right
/// rounding, so it does not compile.
struct Avg {};
/// Every input times `factor`, rounded to the element type, then the sum. The factor is converted to the type that
/// computes (float for float32 and the 16-bit floats, double for float64), so PreMulSum<double>{1.0 / ranks} gives
/// PyTorch's DDP gradients in every dtype.
template <class Scalar>
struct PreMulSum {
  Scalar factor;
};
template <class Scalar>
PreMulSum(Scalar) -> PreMulSum<Scalar>;

namespace detail {

template <class T>
inline constexpr bool is_16_bit_float = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;
template <class T>
inline constexpr bool is_floating = std::is_same_v<T, float> || std::is_same_v<T, double> || is_16_bit_float<T>;
// bool is left out: a wrapped sum would store bytes that are no bool.
template <class T>
inline constexpr bool is_integer = std::is_integral_v<T> && !std::is_same_v<std::remove_cv_t<T>, bool>;

template <class Op>
struct PreMulScalar {
  static constexpr bool yes = false;
};
template <class Scalar>
struct PreMulScalar<PreMulSum<Scalar>> {
  static constexpr bool yes = true;
  using type = Scalar;
};

/// One of the functors above, whatever the element type.
template <class Op>
inline constexpr bool is_named_reduction =
    std::is_same_v<Op, Sum> || std::is_same_v<Op, Prod> || std::is_same_v<Op, Min> || std::is_same_v<Op, Max> ||
    std::is_same_v<Op, Avg> || PreMulScalar<Op>::yes;

template <class Op, class T>
consteval bool is_built_in() {
  if constexpr (!is_named_reduction<Op> || !(is_floating<T> || is_integer<T>)) {
    return false;
  } else if constexpr (std::is_same_v<Op, Avg>) {
    return is_floating<T>;
  } else if constexpr (PreMulScalar<Op>::yes) {
    using Scalar = typename PreMulScalar<Op>::type;
    return is_floating<T> ? is_floating<Scalar> || is_integer<Scalar> : is_integer<Scalar>;
  } else {
    return true;
  }
}

/// The functor's type as the compiler spells it. Stable within one build, which is all that a program's ranks share.
template <class Op>
constexpr std::string_view type_name() {
  const std::string_view text = __PRETTY_FUNCTION__;
  const std::size_t begin = text.find("Op = ") + 5;
  const std::size_t semicolon = text.find("; std::string_view", begin);  // g++ adds its own aliases
  return text.substr(begin, (semicolon == std::string_view::npos ? text.rfind(']') : semicolon) - begin);
}

}  // namespace detail

/// A reduction whose arithmetic is the library's and therefore under its numeric contract.
template <class Op, class T>
concept BuiltInReduction = Element<T> && detail::is_built_in<Op, T>();

/// What a collective over T accepts: a built-in functor that is defined for T, or any const-callable (T input, T
/// accumulated) -> T. A user functor is called in the contract's order, but its own arithmetic is its author's affair.
template <class Op, class T>
concept Reduction = BuiltInReduction<Op, T> ||
    (Element<T> && !detail::is_named_reduction<Op> && requires(const Op& op, T value) {
      { op(value, value) } -> std::convertible_to<T>;
    });

/// Identifies the reduction in a fingerprint: small numbers for built-ins, a hash of the type's name with the top bit
/// set for user functors. Equal over the processes of one program.
template <class Op>
constexpr std::uint32_t reduction_id() {
  if constexpr (std::is_same_v<Op, Sum>)
    return 1;
  else if constexpr (std::is_same_v<Op, Prod>)
    return 2;
  else if constexpr (std::is_same_v<Op, Min>)
    return 3;
  else if constexpr (std::is_same_v<Op, Max>)
    return 4;
  else if constexpr (std::is_same_v<Op, Avg>)
    return 5;
  else {
    std::uint32_t hash = 2166136261U;  // FNV-1a
    for (const char c : detail::type_name<Op>()) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
    // PreMulSum keeps a small range of its own, one number per scalar type.
    if constexpr (detail::PreMulScalar<Op>::yes)
      return 16U + static_cast<std::uint32_t>(dtype_of<decltype(Op::factor)>());
    return hash | 0x80000000U;
  }
}

/// The reduction's name for messages: "Sum", "PreMulSum", or the user's type as the compiler spells it.
template <class Op>
std::string reduction_name() {
  if constexpr (std::is_same_v<Op, Sum>)
    return "Sum";
  else if constexpr (std::is_same_v<Op, Prod>)
    return "Prod";
  else if constexpr (std::is_same_v<Op, Min>)
    return "Min";
  else if constexpr (std::is_same_v<Op, Max>)
    return "Max";
  else if constexpr (std::is_same_v<Op, Avg>)
    return "Avg";
  else if constexpr (detail::PreMulScalar<Op>::yes)
    return "PreMulSum";
  else
    return std::string(detail::type_name<Op>());
}

}  // namespace tandem
