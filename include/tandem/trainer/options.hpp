// SPDX-License-Identifier: Apache-2.0
// What a Trainer can be told at run time. Every default is PyTorch's.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "tandem/strategy/options.hpp"
#include "tandem/tensor/bucket_layout.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem {

/// What update() does when a gradient is infinite or not a number after averaging.
enum class non_finite : std::uint8_t {
  step,  ///< what it always does, as PyTorch
  skip,  ///< nothing, on all ranks: gradients are cleared, the optimizer does not step. One byte is exchanged per
         ///< update
};

/// The same on all ranks, intra_op_threads excepted: that one is compared after it was applied. Of gradient_hook, only
/// whether it is set is compared.
struct TrainerOptions {
  /// Gradients are scaled before each update so that their common norm is at most this.
  std::optional<double> clip_norm{};
  clip clip_method = clip::exact;
  /// Every element of the gradients is cut to [-clip_value, clip_value] before each update:
  /// torch.nn.utils.clip_grad_value_. Not together with clip_norm.
  std::optional<double> clip_value{};
  AfterUpdate after_update = AfterUpdate::release;
  /// Sizes of the buckets in which gradients are reduced. They decide the order of addition, and so bits.
  BucketCaps buckets{};
  unused_parameters unused = unused_parameters::refuse;
  /// Every step reaches the same parameters, so those that the first does not reach need not be looked for again: DDP's
  /// static_graph=True, with its buckets (one until the third step). Each rank may reach others.
  bool static_graph = false;
  /// What micro-batches add up to under Zero<2> and Zero<3>.
  accumulation accumulate = accumulation::local_sums;
  non_finite on_non_finite = non_finite::step;
  /// Before the first forward of each step (Trainer::forward or step), the model's buffers (BatchNorm's statistics,
  /// say) become those of rank 0, as in DistributedDataParallel(broadcast_buffers=True). A collective then; evaluate()
  /// sends nothing and uses this rank's own.
  bool broadcast_buffers = false;
  /// Ranks may have different numbers of batches: one that has run out calls Trainer::join() and takes part in the
  /// others' steps with zeros. Costs an exchange of one byte before each collective phase of a step. Sums are divided
  /// by the number of all ranks, as DDP's join() does unless told otherwise.
  bool uneven_inputs = false;
  /// Where Zero keeps the parameters.
  Placement placement = Placement::automatic;
  /// Zero<3> with parameters apart: is a unit's memory given back after its forward, and the unit gathered again for
  /// its backward? Without, a step sends D (N-1) / N bytes less and all units are whole at its middle.
  bool reshard_after_forward = true;
  /// Zero<3> with parameters apart: does the memory for gathered units and buckets go back to the system after each
  /// update? Without, it stays for the next step, which saves the cost of its first use.
  bool trim_after_update = true;
  /// Zero reduces a bucket in pieces, as gradients come: each at least of so many bytes, but for the last of a bucket.
  /// Decides how much memory is under way during a backward, and no bits.
  std::size_t piece_bytes = default_piece_bytes;
  /// Called at the beginning of each update for every parameter that this rank updates (a whole one, or the shard that
  /// it owns, under the parameter's name) with the average in its gradient, which it may change in place. Where all
  /// ranks have all gradients (Ddp), it must do the same on all of them.
  std::function<void(const std::string& name, at::Tensor& gradient)> gradient_hook{};
  /// Threads of libtorch on this rank; by default one when ranks share processors, else what libtorch chose.
  std::optional<int> intra_op_threads{};
};

}  // namespace tandem
