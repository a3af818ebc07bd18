// SPDX-License-Identifier: Apache-2.0
// Folds N inputs into one result in a given order and stores it to several places: the only arithmetic a collective
// does. Host memory only; knows neither ranks' addresses nor which order is right (see order.hpp, apply.hpp).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tandem/core/dtype.hpp"
#include "tandem/reduce/detail/float_state.hpp"
#include "tandem/reduce/detail/kernels.hpp"
#include "tandem/reduce/functor.hpp"
#include "tandem/reduce/half.hpp"

namespace tandem {

/// raw: sources[0] is an input like the others. partial: it is the result of an earlier fold, no longer to be scaled.
enum class FoldStart { raw, partial };
/// finished: nothing follows, so Avg divides. partial: more inputs are folded in later, elsewhere.
enum class FoldEnd { finished, partial };

namespace detail {

template <class To, class Scalar>
constexpr To convert_factor(Scalar scalar) noexcept {
  if constexpr (is_16_bit_float<Scalar>)
    return static_cast<To>(to_float32(scalar));
  else
    return static_cast<To>(scalar);
}

template <class T, class Op>
Parameters<T> parameters_of([[maybe_unused]] const Op& op, [[maybe_unused]] int ranks, [[maybe_unused]] FoldStart start,
                            [[maybe_unused]] FoldEnd end) noexcept {
  Parameters<T> parameters;
  if constexpr (PreMulScalar<Op>::yes) {
    parameters.factor = convert_factor<Compute<T>>(op.factor);
    if constexpr (is_16_bit_float<T>) {  // a NaN whose lower half is zero, which the kernels' rounding relies on
      if ((std::bit_cast<std::uint32_t>(parameters.factor) & 0x7fffffffU) > 0x7f800000U) {
        parameters.factor = std::bit_cast<float>(0x7fc00000U);
      }
    }
    if (start == FoldStart::raw) parameters.first_factor = parameters.factor;
  }
  if constexpr (std::is_same_v<Op, Avg>) {
    parameters.divides = end == FoldEnd::finished;
    parameters.divisor = static_cast<Compute<T>>(ranks);
  }
  return parameters;
}

}  // namespace detail

/// acc = sources[0]; then acc = op(sources[k], acc) for k = 1, 2, ..., element by element; acc goes to every
/// destination. Each input is read once and each output written once.
///  - 16-bit floats are computed in float32 and rounded to nearest even after every operation. Integers wrap.
///    Subnormals, signed zeros, infinities and NaN keep their meaning whatever flags the program is compiled with.
///  - `ranks` is what Avg divides by. source_count >= 1; one source is a copy (scaled or divided as the functor says).
///  - A destination is exactly one of the sources (in place) or disjoint from all. Pointers need only T's alignment.
template <Element T, class Op>
void fold(const Op& op, int ranks, const T* const* sources, int source_count, T* const* destinations,
          int destination_count, std::size_t count, FoldStart start = FoldStart::raw, FoldEnd end = FoldEnd::finished) {
  detail::require_reduction<Op, T>();
  if (count == 0) return;
  if constexpr (BuiltInReduction<Op, T>) {
    using Kernel = typename detail::KernelOf<T, Op>::type;
    const detail::Job<T> job{sources, source_count, destinations, destination_count, count};
    if constexpr (detail::is_floating<T> && !detail::is_extreme<Op> && !detail::is_logical<Op>) {
      const detail::ExactFloats exact;
      detail::fold_job<T, Kernel>(detail::parameters_of<T>(op, ranks, start, end), job);
    } else {
      detail::fold_job<T, Kernel>(detail::parameters_of<T>(op, ranks, start, end), job);
    }
  } else if constexpr (Reduction<Op, T>) {
    for (std::size_t i = 0; i < count; ++i) {
      T acc = sources[0][i];
      for (int k = 1; k < source_count; ++k) acc = static_cast<T>(op(sources[k][i], acc));
      for (int k = 0; k < destination_count; ++k) destinations[k][i] = acc;
    }
  }
}

}  // namespace tandem
