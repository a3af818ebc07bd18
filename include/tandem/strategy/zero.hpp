// SPDX-License-Identifier: Apache-2.0
// ZeRO: data parallelism in which each rank updates its shard of the parameters, so that what an optimizer keeps is
// there once and not N times. Knows no optimizer and no loss.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tandem/comm/communicator.hpp"
#include "tandem/core/dtype.hpp"
#include "tandem/core/error.hpp"
#include "tandem/strategy/clip.hpp"
#include "tandem/strategy/compression.hpp"
#include "tandem/strategy/concepts.hpp"
#include "tandem/strategy/flat_parameters.hpp"
#include "tandem/strategy/fsdp.hpp"
#include "tandem/strategy/gradient_buckets.hpp"
#include "tandem/strategy/options.hpp"
#include "tandem/strategy/parameter.hpp"
#include "tandem/strategy/policies.hpp"
#include "tandem/strategy/scatter_gradients.hpp"
#include "tandem/strategy/sharded_clip.hpp"
#include "tandem/strategy/sharded_parameters.hpp"
#include "tandem/strategy/sharding_engine.hpp"
#include "tandem/strategy/unit_schedule.hpp"
#include "tandem/tensor/flat_layout.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem {

namespace detail {
inline constexpr const char* zero_names[] = {"", "Zero<1>", "Zero<2>", "Zero<3>"};
}  // namespace detail

/// What Zero does on one rank; made and driven by a Trainer.
template <class T, int Level, class Compression>
class ZeroEngine : public ShardingEngine<T, GradientBuckets<T, ScatterGradients<Compression>>, ShardedParameters<T>> {
  using Buckets = GradientBuckets<T, ScatterGradients<Compression>>;
  using Base = ShardingEngine<T, Buckets, ShardedParameters<T>>;

 public:
  ZeroEngine(Communicator<T>& world, int degree) : Base(world, degree, detail::zero_names[Level]) {}

  void adopt(std::vector<NamedParameter> parameters, const StrategyOptions& options) {
    if (options.after_update == AfterUpdate::keep) {
      throw Error(ErrorKind::argument,
                  "tandem: Zero cannot keep gradients from step to step: no rank has all averages; use "
                  "AfterUpdate::release, and accumulate() to add up several backwards",
                  comm_.rank());
    }
    trims_ = options.trim_after_update;
    add_up_ = options.accumulate == accumulation::shard_sums;
    if (add_up_ && Level < 2) {
      throw Error(ErrorKind::argument,
                  "tandem: Zero<1> keeps whole gradients, so accumulation::shard_sums would save nothing; use Zero<2>, "
                  "or accumulation::local_sums",
                  comm_.rank());
    }
    auto items = gradient_items(parameters, comm_.rank());
    FlatLayout layout(items, comm_.size());
    const bool shared = is_shared(options.placement);
    if (Level < 3 || shared) {
      flat_ = std::make_unique<FlatParameters<T>>(comm_, parameters, layout, shared);
    } else {
      const UnitMap units = units_of(options);
      sharded_ = std::make_unique<ShardedParameters<T>>(comm_, parameters, layout, units);
      schedule_ = std::make_unique<UnitSchedule<ShardedParameters<T>>>(*sharded_, parameters, units,
                                                                       options.reshard_after_forward);
    }
    gradients_ = std::make_unique<Buckets>(
        comm_, std::move(parameters), std::move(items), options,
        ScatterGradients<Compression>(layout, comm_.rank(), flat_ ? flat_->shards() : sharded_->shards(),
                                      options.piece_bytes, Level >= 2, add_up_),
        sharded_ != nullptr);
  }
  void reduce_nothing() { gradients_->reduce_nothing(); }
  double clip_norm(double limit, clip method) {
    if (method == clip::fast) return this->clip_norm_fast(limit);
    std::vector<bool> present(gradients_->parameters().size());
    for (std::size_t item = 0; item < present.size(); ++item) present[item] = gradients_->has_average(item);
    return clip_shards(comm_, layout(), gradients_->parameters(), this->shards(), present, limit);
  }
  void before_update() {
    if (flat_) return flat_->before_update();
    schedule_->require_free(comm_.rank());
  }
  void after_update(AfterUpdate) {
    this->end_step();
    if (flat_) flat_->after_update();
  }

  /// The buckets as they are laid out now, and who owns what, for those who want to look.
  const std::vector<Bucket>& buckets() const noexcept { return gradients_->buckets(); }
  const FlatLayout& layout() const noexcept { return flat_ ? flat_->layout() : sharded_->layout(); }

 private:
  using Base::add_up_;
  using Base::comm_;
  using Base::gradients_;
  using Base::schedule_;
  using Base::sharded_;
  using Base::trims_;

  static bool is_shared(Placement placement) noexcept {
    return placement == Placement::shared || (placement == Placement::automatic && Level == 3 && T::has_windows);
  }
  UnitMap units_of(const StrategyOptions& options) const {
    if (options.units) return options.units();
    throw Error(ErrorKind::argument,
                "tandem: with parameters apart, Zero<3> gathers one unit of the model after another, and this model is "
                "not cut; give it as torch::nn::Sequential, as tandem::Stages or with visit_units(), or use "
                "Placement::shared",
                comm_.rank());
  }

  std::unique_ptr<FlatParameters<T>> flat_;  // where parameters are always whole
};

/// Data parallelism with sharded state. Policies, in any order: degree<N> ranks (unless given, what the world size
/// leaves over); compress::bf16 or fp16; reference::fsdp2 at level 3.
///
/// Level 1 shards what the optimizer keeps, level 2 also the gradients: a piece's memory goes once it is reduced.
/// Level 3 shards the parameters too: on a transport with windows there is one copy for all ranks of the host, which
/// all map; elsewhere, and on request, every rank has its shard, and the units of the model (see CutInUnits) are
/// gathered for their forward and again for their backward. Bytes this rank moves in a step, for D bytes of parameters:
/// D (N-1) / N for gradients; and as many for the new parameters at levels 1 and 2, up to twice as many at level 3, or
/// none where they are shared.
///
/// Shards are cut once, flat and even in registration order (see FlatLayout); the optimizer recipe gets the parts that
/// this rank owns. Every optimizer that treats elements alike gives the same weights as unsharded: equal to
/// torch.nn.parallel.DistributedDataParallel over gloo bit for bit, as Ddp.
///
/// With reference::fsdp2 shards are rows of each parameter, gradients are reduced unit by unit, and the weights are
/// those of torch.distributed.fsdp.fully_shard over gloo, applied to each unit; the model must be cut in units.
template <int Level, class... Policies>
struct Zero {
  static_assert(Level >= 1 && Level <= 3, "tandem: Zero has the levels 1, 2 and 3; name one of them");
  static_assert(
      detail::policies_are_sound<Policies...>(),
      "tandem: after its level Zero takes degree<N>, reference::ddp or fsdp2, and compress::none, bf16 or fp16, "
      "each kind once; leave out what is none of these");
  using Reference = detail::policy_of<detail::PolicyKind::reference, reference::ddp, Policies...>;
  using Compression = detail::policy_of<detail::PolicyKind::compression, compress::none, Policies...>;
  static constexpr bool by_rows = std::is_same_v<Reference, reference::fsdp2>;
  static_assert(
      !by_rows || (Level == 3 && std::is_same_v<Compression, compress::none>),
      "tandem: reference::fsdp2 shards everything and compresses nothing; use it as Zero<3, reference::fsdp2>");
  static constexpr int degree = detail::policy_of<detail::PolicyKind::degree, tandem::degree<0>, Policies...>::value;
  static constexpr int level = Level;
  static constexpr Dtype wire = Compression::dtype;  // in which gradients travel; opaque: each in its own
  /// Level 3 is there only where ranks map each other's memory, or where the model is cut; by rows, where it is cut.
  static constexpr bool needs_windows_or_units = Level == 3 && !by_rows;
  static constexpr bool needs_units = by_rows;
  static constexpr const char* name = by_rows ? "Zero<3, reference::fsdp2>" : detail::zero_names[Level];
  static constexpr const char* reference = by_rows ? "torch.distributed.fsdp.fully_shard over gloo (torch 2.11)"
                                                   : "torch.nn.parallel.DistributedDataParallel over gloo (torch 2.11)";

  template <class T>
  using Engine = std::conditional_t<by_rows, FsdpEngine<T>, ZeroEngine<T, Level, Compression>>;
};

}  // namespace tandem
