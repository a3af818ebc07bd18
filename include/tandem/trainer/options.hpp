// SPDX-License-Identifier: Apache-2.0
// What a Trainer can be told at run time. Every default is PyTorch's.
#pragma once

#include <cstdint>
#include <optional>

#include "tandem/tensor/bucket_layout.hpp"

namespace tandem {

/// What becomes of the gradients at the end of update().
enum class AfterUpdate : std::uint8_t {
  release,  ///< they become undefined, as zero_grad() leaves them
  zero,     ///< they become zeros in place, as zero_grad(set_to_none=false) leaves them
  keep,     ///< nothing; the next backward adds to them unless the program clears them itself
};

/// The same on all ranks, intra_op_threads excepted: that one is compared after it was applied.
struct TrainerOptions {
  /// Gradients are scaled before each update so that their common norm is at most this.
  std::optional<double> clip_norm{};
  AfterUpdate after_update = AfterUpdate::release;
  /// Sizes of the buckets in which gradients are reduced. They decide the order of addition, and so bits.
  BucketCaps buckets{};
  /// Threads of libtorch on this rank; by default one when ranks share processors, else what libtorch chose.
  std::optional<int> intra_op_threads{};
};

}  // namespace tandem
