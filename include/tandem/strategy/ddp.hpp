// SPDX-License-Identifier: Apache-2.0
// Data parallelism: every rank holds the whole model, sees its own batch, and updates with the average of all ranks'
// gradients. Knows no optimizer and no loss.
#pragma once

#include <cmath>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tandem/comm/communicator.hpp"
#include "tandem/core/dtype.hpp"
#include "tandem/core/error.hpp"
#include "tandem/strategy/all_reduce_gradients.hpp"
#include "tandem/strategy/clip.hpp"
#include "tandem/strategy/compression.hpp"
#include "tandem/strategy/concepts.hpp"
#include "tandem/strategy/degree.hpp"
#include "tandem/strategy/gradient_buckets.hpp"
#include "tandem/strategy/options.hpp"
#include "tandem/strategy/parameter.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem {

/// What Ddp does on one rank; made and driven by a Trainer.
template <class T, class Compression>
class DdpEngine {
 public:
  /// Collective: splits `world`. Throws Error(argument) on all ranks alike, before anything is sent, when the world
  /// has not `degree` ranks.
  DdpEngine(Communicator<T>& world, int degree)
      : comm_(detail::require_degree(world, degree, "Ddp<>").split(0, world.rank())) {}

  /// The ranks that hold the same parameters.
  Communicator<T>& replicas() noexcept { return comm_; }
  Coordinate data() const noexcept { return {comm_.rank(), comm_.size()}; }

  void adopt(std::vector<NamedParameter> parameters, const StrategyOptions& options) {
    if (options.placement == Placement::shared) {
      throw Error(ErrorKind::argument,
                  "tandem: under Ddp every rank updates its own copy of the parameters; use Zero<1> to share them",
                  comm_.rank());
    }
    if (options.accumulate == accumulation::shard_sums) {
      throw Error(ErrorKind::argument,
                  "tandem: under Ddp every rank has whole gradients, so accumulation::shard_sums would save nothing; "
                  "use Zero<2>, or accumulation::local_sums",
                  comm_.rank());
    }
    auto items = gradient_items(parameters, comm_.rank());
    buckets_ = std::make_unique<Buckets>(comm_, std::move(parameters), std::move(items), options,
                                         AllReduceGradients<Compression>{});
  }
  std::vector<OwnedParameter> owned() const {
    std::vector<OwnedParameter> result;
    for (const auto& [name, value] : buckets_->parameters()) result.push_back({name, value, value.sizes().vec()});
    return result;
  }

  /// Computes gradients; averages them unless `locally`.
  void backward(const at::Tensor& loss, bool locally) { buckets_->backward(loss, locally); }
  void reduce_gradients() { buckets_->reduce_standing(); }
  void reduce_nothing() { buckets_->reduce_nothing(); }
  /// Scales all gradients so that their common norm is at most `limit`; the norm before.
  double clip_norm(double limit, clip method) {
    std::vector<at::Tensor> gradients;
    for (const NamedParameter& parameter : buckets_->parameters()) {
      if (parameter.value.grad().defined()) gradients.push_back(parameter.value.grad());
    }
    if (method == clip::exact) return clip_gradients(gradients, limit);
    return clip_fast(comm_, share_of(gradients, comm_.rank(), comm_.size()), gradients, limit);
  }
  void before_update() noexcept {}
  void after_update(AfterUpdate what) {
    detail::have_changed(buckets_->parameters());
    if (what == AfterUpdate::keep) return;
    const c10::AutoGradMode no_grad(false);
    for (const NamedParameter& parameter : buckets_->parameters()) {
      at::Tensor& gradient = parameter.value.mutable_grad();
      if (what == AfterUpdate::release)
        gradient.reset();
      else if (gradient.defined())
        gradient.zero_();
    }
  }
  /// The buckets as they are laid out now, for those who want to look.
  const std::vector<Bucket>& buckets() const noexcept { return buckets_->buckets(); }

 private:
  using Buckets = GradientBuckets<T, AllReduceGradients<Compression>>;

  Communicator<T> comm_;
  std::unique_ptr<Buckets> buckets_;  // hooks point at it, so it stays where it is
};

/// Gradients are averaged over `Degree` ranks; 0 stands for what the world size leaves over.
///
/// Equals torch.nn.parallel.DistributedDataParallel over gloo bit for bit, at any number of ranks, for the same
/// batches, thread count and CPU capability; with compress::bf16 and fp16, that with the communication hook of this
/// name. A parameter that takes no part in the loss is an error in the same backward, which names it, unless
/// TrainerOptions say otherwise; frozen parameters (requires_grad false at construction) are left alone.
template <int Degree = 0, class Compression = compress::none>
struct Ddp {
  static constexpr int degree = Degree;
  static constexpr Dtype wire = Compression::dtype;  // in which gradients travel; opaque: each in its own
  static constexpr const char* name = "Ddp";
  static constexpr const char* reference = "torch.nn.parallel.DistributedDataParallel over gloo (torch 2.11)";

  template <class T>
  using Engine = DdpEngine<T, Compression>;
};

}  // namespace tandem
