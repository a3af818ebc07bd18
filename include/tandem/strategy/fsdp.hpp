// SPDX-License-Identifier: Apache-2.0
// Zero<3, reference::fsdp2>: everything sharded by rows, unit by unit, with the bits of PyTorch's fully_shard. Knows no
// optimizer and no loss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tandem/collective/all_reduce.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/error.hpp"
#include "tandem/reduce/functor.hpp"
#include "tandem/strategy/bucket_set.hpp"
#include "tandem/strategy/clip.hpp"
#include "tandem/strategy/degree.hpp"
#include "tandem/strategy/options.hpp"
#include "tandem/strategy/parameter.hpp"
#include "tandem/strategy/row_sharded_parameters.hpp"
#include "tandem/strategy/unit_gradients.hpp"
#include "tandem/strategy/unit_schedule.hpp"
#include "tandem/tensor/reductions.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem {

/// Scales the shards' gradients as torch.nn.utils.clip_grad_norm_ does those of fully_shard's parameters: the squares
/// of the shards' norms are summed over ranks, one number per parameter. That norm before, the same on all ranks.
template <class T>
double clip_rows(Communicator<T>& comm, const std::vector<NamedParameter>& parameters, const std::vector<Shard>& shards,
                 double limit) {
  if (parameters.empty()) return 0.0;
  const c10::AutoGradMode no_grad(false);
  const at::Tensor like = parameters.front().value.detach();
  for (const NamedParameter& parameter : parameters) {
    if (parameter.value.scalar_type() == like.scalar_type()) continue;
    throw Error(ErrorKind::argument,
                "tandem: parameters of several dtypes are clipped with clip::fast under reference::fsdp2", comm.rank());
  }
  const at::Tensor squares = like.new_empty({static_cast<std::int64_t>(parameters.size())});
  squares.zero_();
  for (const Shard& shard : shards) {
    squares.select(0, static_cast<std::int64_t>(shard.item)).copy_(gradient_norm(shard.value.grad()).square());
  }
  all_reduce(comm, squares, Sum{});
  squares.sqrt_();
  std::vector<at::Tensor> norms;
  for (std::int64_t i = 0; i < squares.numel(); ++i) norms.push_back(squares.select(0, i));
  const ClipScale scale = clip_scale(norms, limit);
  if (scale.factor.defined()) {
    for (const Shard& shard : shards) shard.value.grad().mul_(scale.factor);
  }
  return scale.norm;
}

/// What it does on one rank; made and driven by a Trainer. Between backward() and update() averages stand in the
/// shards' gradients.
template <class T>
class FsdpEngine {
 public:
  /// Collective: splits `world`. Throws Error(argument) on all ranks alike, before anything is sent, when the world
  /// has not `degree` ranks.
  FsdpEngine(Communicator<T>& world, int degree)
      : comm_(detail::require_degree(world, degree, "Zero<3, reference::fsdp2>").split(0, world.rank())) {}

  Communicator<T>& replicas() noexcept { return comm_; }
  Coordinate data() const noexcept { return {comm_.rank(), comm_.size()}; }

  void adopt(std::vector<NamedParameter> parameters, const StrategyOptions& options) {
    const auto refuse = [&](const char* what) {
      throw Error(ErrorKind::argument, std::string("tandem: under reference::fsdp2 ") + what, comm_.rank());
    };
    if (options.after_update == AfterUpdate::keep) refuse("no rank has all averages to keep; use AfterUpdate::release");
    if (options.placement == Placement::shared) refuse("every rank has its rows; use Zero<3> for Placement::shared");
    if (options.unused != unused_parameters::refuse || options.static_graph) {
      refuse("every parameter must take part; use Zero<3> for unused_parameters::find and static_graph");
    }
    gradient_items(parameters, comm_.rank());  // dense, of a dtype that can be averaged
    add_up_ = options.accumulate == accumulation::shard_sums;
    const UnitMap units = options.units();
    sharded_ = std::make_unique<RowShardedParameters<T>>(comm_, parameters, units);
    schedule_ = std::make_unique<Schedule>(*sharded_, parameters, units, options.reshard_after_forward);
    gradients_ = std::make_unique<UnitGradients<T>>(comm_, *sharded_, std::move(parameters), add_up_);
  }
  /// One dimension each: the rows of a parameter that this rank owns.
  std::vector<OwnedParameter> owned() const {
    std::vector<OwnedParameter> result;
    for (const Shard& shard : shards()) {
      const auto& [name, value] = gradients_->parameters()[shard.item];
      result.push_back({name, shard.value, value.sizes().vec()});
    }
    return result;
  }

  void backward(const at::Tensor& loss, bool locally) {
    require_updated();
    gradients_->backward(loss, locally && !add_up_);
    schedule_->rest();
    reduced_ = !locally;
  }
  void reduce_gradients() {
    require_updated();
    gradients_->reduce_standing();
    reduced_ = true;
  }
  void reduce_nothing() { gradients_->reduce_nothing(); }
  double clip_norm(double limit, clip method) {
    if (method == clip::exact) return clip_rows(comm_, gradients_->parameters(), shards(), limit);
    std::vector<at::Tensor> own;
    for (const Shard& shard : shards()) own.push_back(shard.value.grad());
    return clip_fast(comm_, own, own, limit);
  }
  void before_update() { schedule_->require_free(comm_.rank()); }
  void after_update(AfterUpdate) {
    for (const Shard& shard : shards()) at::Tensor(shard.value).mutable_grad().reset();
    reduced_ = false;
  }

  UnitSchedule<RowShardedParameters<T>>* schedule() noexcept { return schedule_.get(); }
  void unshard() { schedule_->hold(); }
  void reshard() { schedule_->let_go(); }
  const std::vector<Shard>& shards() const noexcept { return gradients_->shards(); }

 private:
  using Schedule = UnitSchedule<RowShardedParameters<T>>;

  void require_updated() const {
    if (!reduced_) return;
    throw Error(ErrorKind::argument,
                "tandem: a second backward before update() would lose the averages of the first; use accumulate() for "
                "all but the last backward of a step",
                comm_.rank(), -1, "backward");
  }

  Communicator<T> comm_;
  std::unique_ptr<RowShardedParameters<T>> sharded_;
  std::unique_ptr<Schedule> schedule_;
  std::unique_ptr<UnitGradients<T>> gradients_;
  bool reduced_ = false;
  bool add_up_ = false;  // every micro-batch is reduced into the shards
};

}  // namespace tandem
