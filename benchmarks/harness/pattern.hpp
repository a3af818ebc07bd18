// SPDX-License-Identifier: Apache-2.0
// The data of a benchmarked call: differs by element, rank and iteration, so that a result left over from the call
// before, or a piece at the wrong place, is counted as wrong. Small whole numbers, so that sums are exact in every
// dtype and in every order of addition: peers are judged on transport, the order has its own tests.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

#include "tandem/core/bytes.hpp"
#include "tandem/core/dtype.hpp"

namespace tandem::bench {

/// A whole number from 0 to 255 in the element type.
template <Element T>
constexpr T small_integer(int value) noexcept {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return BFloat16{static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16)};
  } else if constexpr (std::is_same_v<T, Float16>) {
    if (value == 0) return Float16{};
    const int exponent = std::bit_width(static_cast<unsigned>(value)) - 1;
    const unsigned fraction = (static_cast<unsigned>(value) << (10 - exponent)) & 0x3ffU;
    return Float16{static_cast<std::uint16_t>((static_cast<unsigned>(exponent + 15) << 10) | fraction)};
  } else {
    return static_cast<T>(value);
  }
}

/// visit_dtype but for bool, which has no sums and is in no case.
template <class F>
auto visit_number(Dtype dtype, F&& f) {
  return visit_dtype(dtype, [&]<class T>(T value) -> std::invoke_result_t<F&, float> {
    if constexpr (std::is_same_v<T, bool>)
      std::abort();
    else
      return f(value);
  });
}

/// Element i of rank r in iteration k is numbers[(i + phase(r, k)) mod period]; the period is prime, so no page,
/// slot or chunk boundary repeats it.
template <Element T>
class Pattern {
 public:
  static constexpr std::size_t period = 4093;

  Pattern() {
    std::uint32_t state = 12345;
    for (auto& number : numbers_) {
      state = state * 1664525U + 1013904223U;
      number = static_cast<std::uint8_t>(state >> 27);  // 0..31: sums of up to 8 ranks are exact in bfloat16
    }
    for (std::size_t i = 0; i < period; ++i) line_[i] = small_integer<T>(numbers_[i]);
    expected_.resize(period);
  }

  /// Writes elements [first, first + count) of `rank` in iteration `turn`.
  void fill(T* data, std::size_t first, std::size_t count, int rank, std::uint64_t turn) const {
    for_each_run(count, (first + phase(rank, turn)) % period,
                 [&](std::size_t at, std::size_t from, std::size_t length) {
                   std::memcpy(data + at, line_.data() + from, length * sizeof(T));
                 });
  }

  /// Elements of [first, first + count) that are not the sum over the given ranks (one rank: its value).
  std::uint64_t wrong(const T* data, std::size_t first, std::size_t count, Range ranks, std::uint64_t turn) {
    const std::size_t used = std::min(count, period);
    std::fill_n(sums_.begin(), used, std::uint8_t{0});
    for (std::size_t rank = ranks.begin; rank < ranks.end; ++rank) {
      for_each_run(used, (first + phase(static_cast<int>(rank), turn)) % period,
                   [&](std::size_t at, std::size_t from, std::size_t length) {
                     for (std::size_t i = 0; i < length; ++i) {
                       sums_[at + i] = static_cast<std::uint8_t>(sums_[at + i] + numbers_[from + i]);
                     }
                   });
    }
    for (std::size_t i = 0; i < used; ++i) expected_[i] = small_integer<T>(sums_[i]);
    std::uint64_t differing = 0;
    for_each_run(count, 0, [&](std::size_t at, std::size_t from, std::size_t length) {
      if (std::memcmp(data + at, expected_.data() + from, length * sizeof(T)) == 0) return;
      for (std::size_t i = 0; i < length; ++i) {
        differing += std::memcmp(data + at + i, expected_.data() + from + i, sizeof(T)) != 0 ? 1U : 0U;
      }
    });
    return differing;
  }

 private:
  static constexpr std::size_t phase(int rank, std::uint64_t turn) noexcept {
    return static_cast<std::size_t>((turn * 131 + static_cast<std::uint64_t>(rank) * 977 + 1) % period);
  }
  template <class F>
  static void for_each_run(std::size_t count, std::size_t from, F&& run) {
    for (std::size_t at = 0; at < count;) {
      const std::size_t length = std::min(count - at, period - from);
      run(at, from, length);
      at += length;
      from = 0;
    }
  }

  std::array<std::uint8_t, period> numbers_{};
  std::array<T, period> line_{};
  std::array<std::uint8_t, period> sums_{};
  std::vector<T> expected_;
};

}  // namespace tandem::bench
