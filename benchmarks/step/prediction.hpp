// SPDX-License-Identifier: Apache-2.0
// The memory that docs/reference/strategies.md says a mode takes, as arithmetic: float32 and Adam, bytes per rank,
// between two steps. Measures nothing.
#pragma once

#include <algorithm>
#include <cstddef>

#include "step/mode.hpp"
#include "tandem/strategy/options.hpp"

namespace tandem::bench {

struct Prediction {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double room = 0;  ///< at most, for pieces of gradients, where the arena keeps it from step to step

  double sum() const noexcept { return parameters + gradients + optimizer + room; }
};

/// `count` parameters, `ranks` ranks; gradients go in pieces of `piece_bytes`.
inline Prediction predict(const ModeInfo& mode, double count, int ranks, double piece_bytes) {
  const double whole = 4.0 * count;
  const double shard = whole / ranks;
  Prediction result;
  result.parameters = mode.shared || mode.level == 3 ? shard : whole;  // a shared page counts 1/N on each of N ranks
  result.optimizer = 2.0 * (mode.level >= 1 ? shard : whole);
  if (mode.level >= 2) {
    result.gradients = mode.rows ? 0 : shard;  // by rows they have memory from backward to update only
    // One piece is filled, the others are under way.
    const std::size_t under_way = detail::most_released_under_way(mode.link == Link::shm);
    result.room =
        mode.level == 3 && !mode.shared ? 0 : std::min(whole, static_cast<double>(under_way + 1) * piece_bytes);
  } else {
    result.gradients = whole;  // in the buckets, which stay
  }
  return result;
}

}  // namespace tandem::bench
