// SPDX-License-Identifier: Apache-2.0
// float32 to and from the 16-bit floats, one value at a time, by integer arithmetic only: no compiler flag and no
// floating-point state can change a bit. The vector forms live with the fold.
#pragma once

#include <bit>
#include <cstdint>

#include "tandem/core/dtype.hpp"

namespace tandem {

constexpr float to_float32(BFloat16 value) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

/// Rounds to nearest even; NaN stays NaN (quiet), overflow becomes infinity.
constexpr BFloat16 to_bfloat16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return {static_cast<std::uint16_t>((bits >> 16) | 0x0040U)};
  return {static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}

constexpr float to_float32(Float16 value) noexcept {
  const std::uint32_t sign = (value.bits & 0x8000U) << 16;
  const std::uint32_t magnitude = value.bits & 0x7fffU;
  if (magnitude >= 0x7c00U) return std::bit_cast<float>(sign | 0x7f800000U | (magnitude & 0x3ffU) << 13);
  if (magnitude >= 0x0400U) return std::bit_cast<float>(sign | ((magnitude << 13) + (112U << 23)));
  if (magnitude == 0) return std::bit_cast<float>(sign);
  // Subnormal: magnitude * 2^-24. Every such value is a normal float32.
  const auto top = static_cast<std::uint32_t>(std::bit_width(magnitude)) - 1U;
  return std::bit_cast<float>(sign | (103U + top) << 23 | ((magnitude << (23U - top)) & 0x7fffffU));
}

/// Rounds to nearest even; NaN stays NaN (quiet), 65520 and above become infinity, small values become subnormal.
constexpr Float16 to_float16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint32_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  std::uint32_t result = 0;
  if (magnitude > 0x7f800000U) {
    result = 0x7e00U | ((magnitude >> 13) & 0x1ffU);
  } else if (magnitude >= 0x47800000U) {  // 65536
    result = 0x7c00U;
  } else if (magnitude >= 0x38800000U) {  // 2^-14, the smallest normal; a carry may reach infinity, rightly
    result = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  } else if (magnitude > 0x33000000U) {                    // above 2^-25, half of the smallest subnormal
    const std::uint32_t shift = 126U - (magnitude >> 23);  // 14 .. 24: how far the significand lies above 2^-24
    const std::uint32_t significand = (magnitude & 0x7fffffU) | 0x800000U;
    const std::uint32_t half = 1U << (shift - 1U);
    result = (significand + half - 1U + ((significand >> shift) & 1U)) >> shift;
  }
  return {static_cast<std::uint16_t>(sign | result)};
}

}  // namespace tandem
