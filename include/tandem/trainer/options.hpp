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
  /// Before a forward of Trainer::forward or step, the model's buffers (BatchNorm's statistics, say) become those of
  /// rank 0, as in DistributedDataParallel(broadcast_buffers=True): at the first, and after each forward whose
  /// gradients were to be averaged. A collective then; evaluate() sends nothing and uses this rank's own.
  bool broadcast_buffers = false;
  /// Where Zero keeps the parameters.
  Placement placement = Placement::automatic;
  /// Threads of libtorch on this rank; by default one when ranks share processors, else what libtorch chose.
  std::optional<int> intra_op_threads{};
};

}  // namespace tandem
