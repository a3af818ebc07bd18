// SPDX-License-Identifier: Apache-2.0
// Times a job's training step in several modes, by turns in one run, and compares the weights they end with.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "harness/team.hpp"
#include "step/mode.hpp"
#include "step/options.hpp"

namespace tandem::bench {

class Worlds;

struct StepTime {
  const ModeInfo* mode;
  double median_ms = 0;
  double p99_ms = 0;
  /// Weights whose bits are not c10d's, over all ranks; nothing where they need not be.
  std::optional<std::uint64_t> differing{};
};

/// In every mode that the options name, c10d and alone. Collective; results on every rank.
std::vector<StepTime> time_steps(Team& team, Worlds& worlds, const Options& options, const Job& job);

}  // namespace tandem::bench
