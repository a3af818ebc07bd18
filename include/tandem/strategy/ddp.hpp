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
#include "tandem/core/error.hpp"
#include "tandem/strategy/clip.hpp"
#include "tandem/strategy/concepts.hpp"
#include "tandem/strategy/gradient_buckets.hpp"
#include "tandem/strategy/parameter.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem {

/// What Ddp does on one rank; made and driven by a Trainer.
template <class T>
class DdpEngine {
 public:
  /// Collective: splits `world`. Throws Error(argument) on all ranks alike, before anything is sent, when the world
  /// has not `degree` ranks.
  DdpEngine(Communicator<T>& world, int degree) : comm_(require_degree(world, degree).split(0, world.rank())) {}

  /// The ranks that hold the same parameters.
  Communicator<T>& replicas() noexcept { return comm_; }
  Coordinate data() const noexcept { return {comm_.rank(), comm_.size()}; }

  void adopt(std::vector<NamedParameter> parameters, const StrategyOptions& options) {
    buckets_ = std::make_unique<GradientBuckets<T>>(comm_, std::move(parameters), options.buckets);
  }
  std::vector<OwnedParameter> owned() const {
    std::vector<OwnedParameter> result;
    for (const auto& [name, value] : buckets_->parameters()) result.push_back({name, value, value.sizes().vec()});
    return result;
  }

  /// Computes gradients; averages them unless `locally`.
  void backward(const at::Tensor& loss, bool locally) {
    if (!loss.requires_grad()) {
      if (buckets_->parameters().empty()) return;  // nothing to train: plain pass-through
      throw Error(ErrorKind::argument,
                  "tandem: the loss depends on no parameter that requires grad; compute it from the model's output "
                  "without detach() and outside no-grad scopes",
                  comm_.rank(), -1, "backward");
    }
    buckets_->begin(!locally);
    try {
      loss.backward();
      buckets_->finish();
    } catch (...) {
      buckets_->abandon();
      throw;
    }
  }
  void reduce_gradients() {
    try {
      buckets_->reduce_standing();
    } catch (...) {
      buckets_->abandon();
      throw;
    }
  }
  /// Scales all gradients so that their common norm is at most `limit`; the norm before.
  double clip(double limit) const {
    std::vector<at::Tensor> gradients;
    for (const NamedParameter& parameter : buckets_->parameters()) {
      if (parameter.value.grad().defined()) gradients.push_back(parameter.value.grad());
    }
    return clip_gradients(gradients, limit);
  }
  /// The buckets as they are laid out now, for those who want to look.
  const std::vector<Bucket>& buckets() const noexcept { return buckets_->buckets(); }

 private:
  static Communicator<T>& require_degree(Communicator<T>& world, int degree) {
    if (degree != 0 && degree != world.size()) {
      throw Error(ErrorKind::argument,
                  "tandem: world size " + std::to_string(world.size()) + " is not " + std::to_string(degree) +
                      "; use Ddp<>, or start " + std::to_string(degree) + " ranks",
                  world.rank());
    }
    return world;
  }

  Communicator<T> comm_;
  std::unique_ptr<GradientBuckets<T>> buckets_;  // hooks point at it, so it stays where it is
};

/// Gradients are averaged over `Degree` ranks; 0 stands for what the world size leaves over.
///
/// Equals torch.nn.parallel.DistributedDataParallel over gloo bit for bit, at any number of ranks, for the same
/// batches, thread count and CPU capability. A parameter that takes no part in the loss is an error in the same
/// backward, which names it; frozen parameters (requires_grad false at construction) are left alone.
template <int Degree = 0>
struct Ddp {
  static constexpr int degree = Degree;
  static constexpr const char* name = "Ddp";
  static constexpr const char* reference = "torch.nn.parallel.DistributedDataParallel over gloo (torch 2.11)";

  template <class T>
  using Engine = DdpEngine<T>;
};

}  // namespace tandem
