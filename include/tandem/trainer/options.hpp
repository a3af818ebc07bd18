// SPDX-License-Identifier: Apache-2.0
// What a Trainer can be told at run time. Every default is PyTorch's.
#pragma once

#include <optional>

#include "tandem/strategy/options.hpp"
#include "tandem/tensor/bucket_layout.hpp"

namespace tandem {

/// The same on all ranks, intra_op_threads excepted: that one is compared after it was applied.
struct TrainerOptions {
  /// Gradients are scaled before each update so that their common norm is at most this.
  std::optional<double> clip_norm{};
  AfterUpdate after_update = AfterUpdate::release;
  /// Sizes of the buckets in which gradients are reduced. They decide the order of addition, and so bits.
  BucketCaps buckets{};
  /// Where Zero keeps the parameters.
  Placement placement = Placement::automatic;
  /// Threads of libtorch on this rank; by default one when ranks share processors, else what libtorch chose.
  std::optional<int> intra_op_threads{};
};

}  // namespace tandem
