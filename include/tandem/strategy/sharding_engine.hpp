// SPDX-License-Identifier: Apache-2.0
// What all strategies that shard have in common on one rank: shards whose gradients are averages between backward and
// update, and units of parameters that are whole when they are needed. Knows neither the cut nor the reduction.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tandem/comm/communicator.hpp"
#include "tandem/strategy/backward_checks.hpp"
#include "tandem/strategy/clip.hpp"
#include "tandem/strategy/degree.hpp"
#include "tandem/strategy/options.hpp"
#include "tandem/strategy/parameter.hpp"
#include "tandem/strategy/unit_schedule.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem {

/// Between backward() and update() averages stand in the shards' gradients, which the optimizer sees; those of the
/// model's parameters are undefined. Within accumulate() these hold this rank's sums.
///
/// `Gradients` averages (GradientBuckets, UnitGradients), `Sharded` holds parameters that are not always whole.
template <class T, class Gradients, class Sharded>
class ShardingEngine {
 public:
  /// The ranks that hold the same parameters.
  Communicator<T>& replicas() noexcept { return comm_; }
  Coordinate data() const noexcept { return {comm_.rank(), comm_.size()}; }

  /// One dimension each: the part of a parameter that this rank owns.
  std::vector<OwnedParameter> owned() const {
    std::vector<OwnedParameter> result;
    for (const Shard& shard : shards()) {
      const auto& [name, value] = gradients_->parameters()[shard.item];
      result.push_back({name, shard.value, value.sizes().vec()});
    }
    return result;
  }

  /// Computes gradients; averages them into the owners' shards unless `locally`, or with accumulation::shard_sums also
  /// then.
  void backward(const at::Tensor& loss, bool locally) {
    require_updated();
    if (schedule_) schedule_->begin_backward();
    gradients_->backward(loss, locally && !add_up_);
    if (schedule_) schedule_->rest();
    reduced_ = !locally;
  }
  void reduce_gradients() {
    require_updated();
    gradients_->reduce_standing();
    reduced_ = true;
  }

  /// When a model's units are whole; nullptr when its parameters always are.
  UnitSchedule<Sharded>* schedule() noexcept { return schedule_.get(); }
  /// All parameters are whole from unshard() to reshard(). Collective where they are not always so.
  void unshard() {
    if (schedule_) schedule_->hold();
  }
  void reshard() {
    if (schedule_) schedule_->let_go();
  }
  const std::vector<Shard>& shards() const noexcept { return gradients_->shards(); }

 protected:
  /// Collective: splits `world`. Throws Error(argument) on all ranks alike, before anything is sent, when the world
  /// has not `degree` ranks.
  ShardingEngine(Communicator<T>& world, int degree, const char* name)
      : comm_(detail::require_degree(world, degree, name).split(0, world.rank())) {}

  double clip_norm_fast(double limit) {
    std::vector<at::Tensor> own;
    for (const Shard& shard : shards()) {
      if (shard.value.grad().defined()) own.push_back(shard.value.grad());
    }
    return clip_fast(comm_, own, own, limit);
  }
  /// Averages are no longer needed, nor, where units are gathered, the room for what was under way.
  void end_step() {
    for (const Shard& shard : shards()) at::Tensor(shard.value).mutable_grad().reset();
    detail::have_changed(gradients_->parameters());
    reduced_ = false;
    if (schedule_ && trims_) comm_.arena()->trim();
  }

  Communicator<T> comm_;
  std::unique_ptr<Sharded> sharded_;                 // with schedule_, or neither
  std::unique_ptr<UnitSchedule<Sharded>> schedule_;  // hooks point at it and at gradients_, so they stay where they are
  std::unique_ptr<Gradients> gradients_;
  bool reduced_ = false;
  bool add_up_ = false;  // every micro-batch is reduced into the shards
  bool trims_ = true;

 private:
  void require_updated() const {
    if (!reduced_) return;
    detail::refuse_backward(
        "a second backward before update() would lose the averages of the first; use accumulate() for all but the last "
        "backward of a step",
        comm_.rank());
  }
};

}  // namespace tandem
