// SPDX-License-Identifier: Apache-2.0
// Order statistics of timing samples. Means are left out on purpose: one preempted call would move them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace tandem::bench {

/// The nearest-rank percentile, `share` in [0, 1]; 0 for no samples.
inline double percentile(std::vector<double> samples, double share) {
  if (samples.empty()) return 0.0;
  const auto place = static_cast<std::size_t>(std::ceil(share * static_cast<double>(samples.size())));
  const std::size_t index = place == 0 ? 0 : std::min(place, samples.size()) - 1;
  std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(index), samples.end());
  return samples[index];
}

inline double median(std::vector<double> samples) { return percentile(std::move(samples), 0.5); }

}  // namespace tandem::bench
