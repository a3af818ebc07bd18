// SPDX-License-Identifier: Apache-2.0
// Measures what memory a mode takes on each rank, in processes that have done nothing else.
#pragma once

#include <cstdint>

#include "harness/team.hpp"
#include "step/footprint.hpp"
#include "step/mode.hpp"

namespace tandem::bench {

class Worlds;

/// Means over the ranks, in bytes beside what was there before the model was made.
struct MemoryUse {
  std::int64_t parameters = 0;
  Footprint held;     ///< between two steps
  Footprint trimmed;  ///< the same once malloc has given back what is free
  Footprint first;    ///< the most when a gradient came in the first backward, before there is an optimizer's state
  Footprint peak;     ///< the same in a later one
  double piece_bytes = 0;  ///< of a piece of gradients, known from the model's layers: the same on all ranks
  double under_way = 0;    ///< the most that lay in the arena in a later step, beside what lies there between steps
};

/// Trains a chain of `layers` layers in this mode; leaves what it saw in the team. Collective.
void measure_memory(Team& team, Worlds& worlds, const ModeInfo& which, int layers);

/// What measure_memory left, also when the ranks are gone.
MemoryUse memory_use(Team& team);

}  // namespace tandem::bench
