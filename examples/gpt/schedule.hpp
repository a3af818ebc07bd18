// SPDX-License-Identifier: Apache-2.0
// Which windows of text training uses, as pure functions of the seed, the batch and the rank. Nothing here has a state,
// so a second run, or another process, can repeat any rank's batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace gpt {

/// Spreads a number over all 64 bits (the finisher of splitmix64): neighbours come out unrelated.
constexpr std::uint64_t scatter(std::uint64_t value) noexcept {
  value += 0x9E3779B97F4A7C15ULL;
  value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ value >> 27) * 0x94D049BB133111EBULL;
  return value ^ value >> 31;
}

/// The number of a step's micro-batch `index`, where each step has `per_step`: with one, that of the step.
constexpr std::int64_t batch_number(int step, int per_step, int index) noexcept {
  return std::int64_t{step} * per_step + index;
}

/// Where the window of one row of one rank's batch begins in a text with `places` possible beginnings.
constexpr std::size_t window_start(std::uint64_t seed, std::int64_t batch, int rank, int row,
                                   std::size_t places) noexcept {
  std::uint64_t value = scatter(seed);
  for (const std::int64_t part : {batch, std::int64_t{rank}, std::int64_t{row}})
    value = scatter(value ^ static_cast<std::uint64_t>(part));
  return static_cast<std::size_t>(value % places);
}

/// Where held-out window `index` of `count` begins: evenly spread, the same in every run.
constexpr std::size_t spread_start(int index, int count, std::size_t places) noexcept {
  return count <= 1 ? 0 : (places - 1) * static_cast<std::size_t>(index) / static_cast<std::size_t>(count - 1);
}

}  // namespace gpt
