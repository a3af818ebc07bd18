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
#include "tandem/strategy/options.hpp"
#include "tandem/strategy/parameter.hpp"
#include "tandem/strategy/row_sharded_parameters.hpp"
#include "tandem/strategy/sharding_engine.hpp"
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

/// What it does on one rank; made and driven by a Trainer.
template <class T>
class FsdpEngine : public ShardingEngine<T, UnitGradients<T>, RowShardedParameters<T>> {
  using Base = ShardingEngine<T, UnitGradients<T>, RowShardedParameters<T>>;

 public:
  FsdpEngine(Communicator<T>& world, int degree) : Base(world, degree, "Zero<3, reference::fsdp2>") {}

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
    trims_ = options.trim_after_update;
    add_up_ = options.accumulate == accumulation::shard_sums;
    const UnitMap units = options.units();
    sharded_ = std::make_unique<RowShardedParameters<T>>(comm_, parameters, units);
    schedule_ = std::make_unique<UnitSchedule<RowShardedParameters<T>>>(*sharded_, parameters, units,
                                                                        options.reshard_after_forward);
    gradients_ = std::make_unique<UnitGradients<T>>(comm_, *sharded_, std::move(parameters), add_up_);
  }
  /// A rank without a batch cannot gather what the others' graphs need: the Trainer does not let it come to this.
  void reduce_nothing() noexcept {}
  double clip_norm(double limit, clip method) {
    if (method == clip::fast) return this->clip_norm_fast(limit);
    return clip_rows(comm_, gradients_->parameters(), this->shards(), limit);
  }
  void before_update() { schedule_->require_free(comm_.rank()); }
  void after_update(AfterUpdate) { this->end_step(); }

 private:
  using Base::add_up_;
  using Base::comm_;
  using Base::gradients_;
  using Base::schedule_;
  using Base::sharded_;
  using Base::trims_;
};

}  // namespace tandem
