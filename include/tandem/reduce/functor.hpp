// SPDX-License-Identifier: Apache-2.0
// The reductions a collective can be given: built-in functors and the concept that a user's own functor must meet.
// Says what is computed per element; how it is computed fast, and in which order, belongs to fold and order.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "tandem/core/dtype.hpp"
#include "tandem/core/type_name.hpp"

namespace tandem {

/// The sum. Integers wrap; 16-bit floats are rounded to nearest even after every addition, as PyTorch's gloo does.
struct Sum {};
/// The product, with the same rules.
struct Prod {};
/// The least element. A NaN wins, as in torch.minimum; -0.0 is below +0.0. On bool: are all true?
struct Min {};
/// The greatest element. A NaN wins, as in torch.maximum; +0.0 is above -0.0. On bool: is any true?
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
/// The bits that are set in all inputs. Integers and bool; on bool the same as LogicalAnd.
struct BitAnd {};
/// The bits that are set in any input. Integers and bool; on bool the same as LogicalOr.
struct BitOr {};
/// The bits that are set in an odd number of inputs. Integers and bool; on bool the same as LogicalXor.
struct BitXor {};
/// Are all inputs true? An element is true when it is not zero, as in C: a NaN and a subnormal are true, -0.0 is false.
/// The result is 0 or 1 in the element's type, also at a single rank.
struct LogicalAnd {};
/// Is any input true? With the same rules.
struct LogicalOr {};
/// Is an odd number of inputs true? With the same rules.
struct LogicalXor {};

namespace detail {

template <class T>
inline constexpr bool is_16_bit_float = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;
template <class T>
inline constexpr bool is_floating = std::is_same_v<T, float> || std::is_same_v<T, double> || is_16_bit_float<T>;
// bool is none: a wrapped sum would store bytes that are no bool.
template <class T>
inline constexpr bool is_whole_number = std::is_integral_v<T> && !std::is_same_v<std::remove_cv_t<T>, bool>;
// Of the elements, those that have a Dtype: of others (int16, uint32, ...) ranks could not tell that theirs differ.
template <class T>
inline constexpr bool is_integer = is_whole_number<T>&& dtype_of<T>() != Dtype::opaque;

template <class Op, class... Any>
inline constexpr bool is_any_of = (std::is_same_v<Op, Any> || ...);
template <class Op>
inline constexpr bool is_extreme = is_any_of<Op, Min, Max>;
template <class Op>
inline constexpr bool is_bitwise = is_any_of<Op, BitAnd, BitOr, BitXor>;
template <class Op>
inline constexpr bool is_logical = is_any_of<Op, LogicalAnd, LogicalOr, LogicalXor>;

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
    is_any_of<Op, Sum, Prod, Avg> || is_extreme<Op> || is_bitwise<Op> || is_logical<Op> || PreMulScalar<Op>::yes;

template <class T>
inline constexpr bool is_reducible = is_floating<T> || is_integer<T> || std::is_same_v<T, bool>;

template <class Op, class T>
consteval bool is_built_in() {
  if constexpr (!is_named_reduction<Op> || !is_reducible<T>) {
    return false;
  } else if constexpr (is_extreme<Op> || is_logical<Op>) {
    return true;
  } else if constexpr (is_bitwise<Op>) {
    return !is_floating<T>;
  } else if constexpr (std::is_same_v<Op, Avg>) {
    return is_floating<T>;
  } else if constexpr (PreMulScalar<Op>::yes) {
    using Scalar = typename PreMulScalar<Op>::type;
    return is_floating<T> ? is_floating<Scalar> || is_whole_number<Scalar> : is_integer<T> && is_whole_number<Scalar>;
  } else {
    return is_floating<T> || is_integer<T>;
  }
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

namespace detail {

/// Says in one sentence why Op is no reduction of T. Instantiated once for each pair, so it is said once.
template <class Op, class T>
consteval void require_reduction() {
  if constexpr (!Reduction<Op, T>) {
    static_assert(is_named_reduction<Op>,
                  "tandem: this is no reduction of these elements; take one of the library's functors, or an object "
                  "that is const-callable as (T input, T accumulated) -> T");
    static_assert(!is_named_reduction<Op> || is_reducible<T>,
                  "tandem: the library's reductions are defined on float32, float64, float16, bfloat16, int8, uint8, "
                  "int32, int64 and bool; take a functor of your own for other elements");
    static_assert(!is_bitwise<Op> || !is_floating<T>,
                  "tandem: BitAnd, BitOr and BitXor are not defined on floating types; take LogicalAnd, LogicalOr or "
                  "LogicalXor, or reduce integers");
    static_assert(!std::is_same_v<T, bool> || !is_named_reduction<Op>,
                  "tandem: Sum, Prod, Avg and PreMulSum are not defined on bool; take LogicalOr (is any true?), "
                  "LogicalAnd (are all?) or LogicalXor, or reduce integers");
    static_assert(!std::is_same_v<Op, Avg> || !is_integer<T>,
                  "tandem: Avg is not defined on integers, whose mean has no one right rounding; take Sum and divide, "
                  "or reduce floats");
    static_assert(!PreMulScalar<Op>::yes || std::is_same_v<T, bool> || !is_reducible<T>,
                  "tandem: PreMulSum takes a number as its factor, on integers an integer: their product with another "
                  "has no one right rounding");
  }
}

}  // namespace detail

/// Identifies the reduction in a fingerprint: small numbers for built-ins (PreMulSum has one for each type of factor),
/// a hash of the type's name with the top bit set for user functors. Equal over the processes of one program.
template <class Op>
consteval std::uint32_t reduction_id() {
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
  else if constexpr (std::is_same_v<Op, BitAnd>)
    return 6;
  else if constexpr (std::is_same_v<Op, BitOr>)
    return 7;
  else if constexpr (std::is_same_v<Op, BitXor>)
    return 8;
  else if constexpr (std::is_same_v<Op, LogicalAnd>)
    return 9;
  else if constexpr (std::is_same_v<Op, LogicalOr>)
    return 10;
  else if constexpr (std::is_same_v<Op, LogicalXor>)
    return 11;
  else if constexpr (detail::PreMulScalar<Op>::yes)
    return 16U + static_cast<std::uint32_t>(dtype_of<typename detail::PreMulScalar<Op>::type>());
  else
    return detail::type_hash<Op>() | 0x80000000U;
}

/// What a fingerprint holds of `op`: its id, and above PreMulSum's a hash of 23 bits of the factor, which has to be the
/// same on all ranks as the functor has.
template <class Op>
std::uint32_t reduction_fingerprint([[maybe_unused]] const Op& op) noexcept {
  if constexpr (detail::PreMulScalar<Op>::yes) {
    std::uint64_t bits = 0;
    static_assert(sizeof op.factor <= sizeof bits);
    std::memcpy(&bits, &op.factor, sizeof op.factor);
    return reduction_id<Op>() | static_cast<std::uint32_t>((bits * 0x9e3779b97f4a7c15U) >> 41) << 8;
  } else {
    return reduction_id<Op>();
  }
}

/// The reduction's name for messages: "Sum", "PreMulSum", or the user's type as the compiler spells it.
template <class Op>
std::string reduction_name() {
  if constexpr (detail::PreMulScalar<Op>::yes) {
    return "PreMulSum";
  } else {
    std::string name(detail::type_name<Op>());
    if constexpr (detail::is_named_reduction<Op>) name.erase(0, name.rfind(':') + 1);
    return name;
  }
}

}  // namespace tandem
