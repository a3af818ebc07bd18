// SPDX-License-Identifier: Apache-2.0
// Learning rates as functions of the step alone: without a state, the same on every rank, and after a restart.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace tandem {

/// Rises in a straight line over `warm_up` steps to `peak`, then falls to `floor` at step `steps` and stays there.
/// `Fall` maps how much of the fall is over to how much of it is left, both from 0 to 1.
template <class Fall>
struct WarmUp {
  double peak = 1e-3;
  std::int64_t warm_up = 0;
  std::int64_t steps = 1;
  double floor = 0.0;

  /// Of a step counted from 0.
  double at(std::int64_t step) const noexcept {
    if (step < warm_up) return peak * static_cast<double>(step + 1) / static_cast<double>(warm_up);
    const double over = std::min(
        1.0, static_cast<double>(step - warm_up) / static_cast<double>(std::max<std::int64_t>(1, steps - warm_up)));
    return floor + (peak - floor) * Fall::left(over);
  }
};

namespace detail {
struct HalfCosine {
  static double left(double over) noexcept { return 0.5 * (1.0 + std::cos(std::numbers::pi * over)); }
};
struct StraightLine {
  static double left(double over) noexcept { return 1.0 - over; }
};
}  // namespace detail

/// Along half a cosine, as language models are usually trained.
using WarmUpCosine = WarmUp<detail::HalfCosine>;
/// In a straight line.
using WarmUpLinear = WarmUp<detail::StraightLine>;

/// `start`, times `factor` after every `every` steps: torch.optim.lr_scheduler.StepLR, to the bit, since every rate is
/// the last one times `factor`. Takes step / every multiplications.
struct StepDecay {
  double start = 1e-3;
  std::int64_t every = 1;
  double factor = 0.1;

  double at(std::int64_t step) const noexcept {
    double rate = start;
    for (std::int64_t falls = step / std::max<std::int64_t>(1, every); falls > 0; --falls) rate *= factor;
    return rate;
  }
};

}  // namespace tandem
