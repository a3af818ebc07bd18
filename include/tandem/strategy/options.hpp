// SPDX-License-Identifier: Apache-2.0
// What a strategy can be told at run time. Every default is PyTorch's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

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
  automatic,  ///< at level 3 shared where the transport has windows, else apart
  apart,   ///< levels 1 and 2: every rank has a copy; after an update the owners' shards are gathered. Level 3: every
           ///< rank has its shard; the units of the model (see CutInUnits) are gathered as they are needed
  shared,  ///< one copy, in memory that all ranks map: nothing is gathered. Needs a transport with windows
};

/// What becomes of parameters that a backward does not reach.
enum class unused_parameters : std::uint8_t {
  refuse,  ///< an error in the same backward, which names them
  find,    ///< they count as zeros, or as what earlier micro-batches of the step gave; a parameter that no rank reached
           ///< keeps the gradient it has, and without one no optimizer touches it. DDP's find_unused_parameters=True;
           ///< one byte per parameter is exchanged, and buckets stay in registration order
};

/// What Zero<2> and Zero<3> keep between the micro-batches of a step.
enum class accumulation : std::uint8_t {
  local_sums,  ///< whole gradients, this rank's sums: reduced once, the bits of DDP's no_sync()
  shard_sums,  ///< every micro-batch is reduced, and owners add averages up: a shard's memory, K times the bytes, and
               ///< the bits of adding K averages, which are others
};

/// How the norm of all gradients is formed when they are clipped.
enum class clip : std::uint8_t {
  exact,  ///< to the bit as torch.nn.utils.clip_grad_norm_ on whole gradients
  fast,   ///< from sums of squares over what each rank owns: 8 bytes are exchanged, the last bits are others
};

/// A model cut in units (see CutInUnits): how many there are, and the unit of each trainable parameter.
struct UnitMap {
  std::size_t units = 0;
  std::vector<std::size_t> unit_of{};
};

/// Large enough to be reduced at the speed of memory.
inline constexpr std::size_t default_piece_bytes = std::size_t{4} << 20;

namespace detail {

/// How many buckets may be under way when another begins, where a bucket's memory goes once it is reduced: they are
/// memory that a rank needs only while its peers lag. Without windows a reduction moves only while it is waited for:
/// putting that off would gain nothing.
constexpr std::size_t most_released_under_way(bool windows) noexcept { return windows ? 4 : 1; }

}  // namespace detail

struct StrategyOptions {
  BucketCaps buckets;
  AfterUpdate after_update = AfterUpdate::release;
  Placement placement = Placement::automatic;
  unused_parameters unused = unused_parameters::refuse;
  bool static_graph = false;
  accumulation accumulate = accumulation::local_sums;
  bool reshard_after_forward = true;
  bool trim_after_update = true;
  std::size_t piece_bytes = default_piece_bytes;
  /// For a model that is cut. Throws Error(argument) where a parameter is in two units, or in none.
  std::function<UnitMap()> units{};
};

}  // namespace tandem
