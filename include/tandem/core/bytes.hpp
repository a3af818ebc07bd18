// SPDX-License-Identifier: Apache-2.0
// Sizes, alignment and ranges: the arithmetic on byte and element counts that every layer needs. 64-bit throughout.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tandem {

/// Two cache lines: adjacent-line prefetchers pull pairs, so data of two writers stay this far apart.
inline constexpr std::size_t line_pair_bytes = 128;
inline constexpr std::size_t cache_line_bytes = 64;
inline constexpr std::size_t page_bytes = 4096;

/// The smallest multiple of `unit` that is >= value; unit > 0.
constexpr std::size_t round_up(std::size_t value, std::size_t unit) noexcept {
  return (value + unit - 1) / unit * unit;
}
constexpr std::size_t divide_up(std::size_t value, std::size_t unit) noexcept { return (value + unit - 1) / unit; }

/// Half-open range [begin, end) of elements or bytes.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;

  constexpr std::size_t size() const noexcept { return end - begin; }
  constexpr bool empty() const noexcept { return end <= begin; }
  friend constexpr bool operator==(const Range&, const Range&) = default;
};

constexpr Range intersect(Range a, Range b) noexcept {
  const std::size_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

/// Part `part` of `parts` when `count` is cut into equal slices of ceil(count / parts), the last ones short or empty.
/// With parts dividing count these are the equal slices of MPI and PyTorch.
constexpr Range slice_of(std::size_t count, int parts, int part) noexcept {
  const std::size_t each = divide_up(count, static_cast<std::size_t>(parts));
  const std::size_t begin = std::min(count, each * static_cast<std::size_t>(part));
  return {begin, std::min(count, begin + each)};
}

/// "1.50 MiB", for messages.
inline std::string format_bytes(std::uint64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024.0 && unit < 4; ++unit) value /= 1024.0;
  if (unit == 0) return std::to_string(bytes) + " B";
  const auto hundredths = static_cast<std::uint64_t>(value * 100.0 + 0.5);
  const std::uint64_t part = hundredths % 100;
  return std::to_string(hundredths / 100) + (part < 10 ? ".0" : ".") + std::to_string(part) + " " + units[unit];
}

}  // namespace tandem
