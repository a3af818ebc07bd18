// SPDX-License-Identifier: Apache-2.0
// What a strategy can be told at run time. Every default is PyTorch's.
#pragma once

#include <cstdint>

#include "tandem/tensor/bucket_layout.hpp"

namespace tandem {

/// What becomes of the gradients at the end of an update.
enum class AfterUpdate : std::uint8_t {
  release,  ///< they become undefined, as zero_grad() leaves them
  zero,     ///< they become zeros in place, as zero_grad(set_to_none=false) leaves them; shards' are released
  keep,     ///< nothing; the next backward adds to them unless the program clears them itself. Not with Zero
};

/// Where a strategy that shards its optimizer keeps the parameters.
enum class Placement : std::uint8_t {
  automatic,  ///< shared at level 3, else apart
  apart,      ///< every rank has a copy; after an update the owners' shards are gathered
  shared,     ///< one copy, in memory that all ranks map: nothing is gathered. Needs a transport with windows
};

struct StrategyOptions {
  BucketCaps buckets;
  AfterUpdate after_update = AfterUpdate::release;
  Placement placement = Placement::automatic;
};

}  // namespace tandem
