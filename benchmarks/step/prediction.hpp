// SPDX-License-Identifier: Apache-2.0
// The memory that docs/reference/strategies.md says a mode takes, as arithmetic: float32 and Adam, bytes per rank,
// between two steps. Measures nothing.
#pragma once

#include "step/mode.hpp"

namespace tandem::bench {

struct Prediction {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double buckets = 0;  ///< room for those under way, which the arena keeps from step to step

  double sum() const noexcept { return parameters + gradients + optimizer + buckets; }
};

/// `count` parameters, `ranks` ranks; `under_way`: the most bytes of buckets that a rank had at once in a backward.
inline Prediction predict(const ModeInfo& mode, double count, int ranks, double under_way) {
  const double whole = 4.0 * count;
  const double shard = whole / ranks;
  Prediction result;
  result.parameters = mode.shared ? shard : whole;  // a shared page counts 1/N on each of N ranks
  result.optimizer = 2.0 * (mode.level >= 1 ? shard : whole);
  if (mode.level >= 2) {
    result.gradients = shard;
    result.buckets = under_way;
  } else if (mode.link != Link::nothing) {
    result.gradients = whole;  // in the buckets, which stay; alone, they are gone when the step is
  }
  return result;
}

}  // namespace tandem::bench
