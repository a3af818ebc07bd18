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
#include "tandem/core/error.hpp"
#include "tandem/strategy/clip.hpp"
#include "tandem/strategy/compression.hpp"
#include "tandem/strategy/concepts.hpp"
#include "tandem/strategy/degree.hpp"
#include "tandem/strategy/flat_parameters.hpp"
#include "tandem/strategy/fsdp.hpp"
#include "tandem/strategy/gradient_buckets.hpp"
#include "tandem/strategy/options.hpp"
#include "tandem/strategy/parameter.hpp"
#include "tandem/strategy/policies.hpp"
#include "tandem/strategy/scatter_gradients.hpp"
#include "tandem/strategy/sharded_clip.hpp"
#include "tandem/strategy/sharded_parameters.hpp"
#include "tandem/strategy/unit_schedule.hpp"
#include "tandem/tensor/flat_layout.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem {

namespace detail {
inline constexpr const char* zero_names[] = {"", "Zero<1>", "Zero<2>", "Zero<3>"};
}  // namespace detail

/// What Zero does on one rank; made and driven by a Trainer.
///
/// Between backward() and update() averages stand in the shards' gradients, which the optimizer sees; those of the
/// model's parameters are undefined. Within accumulate() these hold this rank's sums.
template <class T, int Level, class Compression>
class ZeroEngine {
 public:
  /// Collective: splits `world`. Throws Error(argument) on all ranks alike, before anything is sent, when the world
  /// has not `degree` ranks.
  ZeroEngine(Communicator<T>& world, int degree)
      : comm_(detail::require_degree(world, degree, detail::zero_names[Level]).split(0, world.rank())) {}

  /// The ranks that hold the same parameters.
  Communicator<T>& replicas() noexcept { return comm_; }
  Coordinate data() const noexcept { return {comm_.rank(), comm_.size()}; }

  void adopt(std::vector<NamedParameter> parameters, const StrategyOptions& options) {
    if (options.after_update == AfterUpdate::keep) {
      throw Error(ErrorKind::argument,
                  "tandem: Zero cannot keep gradients from step to step: no rank has all averages; use "
                  "AfterUpdate::release, and accumulate() to add up several backwards",
                  comm_.rank());
    }
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
    buckets_ = std::make_unique<Buckets>(
        comm_, std::move(parameters), std::move(items), options,
        Reduction(layout, comm_.rank(), flat_ ? flat_->shards() : sharded_->shards(), Level >= 2, add_up_));
  }
  /// One dimension each: the part of a parameter that this rank owns.
  std::vector<OwnedParameter> owned() const {
    std::vector<OwnedParameter> result;
    for (const Shard& shard : shards()) {
      const auto& [name, value] = buckets_->parameters()[shard.item];
      result.push_back({name, shard.value, value.sizes().vec()});
    }
    return result;
  }

  /// Computes gradients; averages them into the owners' shards unless `locally`, or with accumulation::shard_sums also
  /// then.
  void backward(const at::Tensor& loss, bool locally) {
    require_updated();
    buckets_->backward(loss, locally && !add_up_);
    if (schedule_) schedule_->rest();
    reduced_ = !locally;
  }
  void reduce_gradients() {
    require_updated();
    buckets_->reduce_standing();
    reduced_ = true;
  }
  void reduce_nothing() { buckets_->reduce_nothing(); }
  double clip_norm(double limit, clip method) {
    if (method == clip::fast) {
      std::vector<at::Tensor> own;
      for (const Shard& shard : shards()) {
        if (shard.value.grad().defined()) own.push_back(shard.value.grad());
      }
      return clip_fast(comm_, own, own, limit);
    }
    std::vector<bool> present(buckets_->parameters().size());
    for (std::size_t item = 0; item < present.size(); ++item) present[item] = buckets_->has_average(item);
    return clip_shards(comm_, layout(), buckets_->parameters(), shards(), present, limit);
  }
  void before_update() {
    if (flat_) return flat_->before_update();
    schedule_->require_free(comm_.rank());
  }
  void after_update(AfterUpdate) {
    for (const Shard& shard : shards()) at::Tensor(shard.value).mutable_grad().reset();
    reduced_ = false;
    if (flat_) flat_->after_update();
  }

  /// When a model's units are whole; nullptr when its parameters always are.
  UnitSchedule<ShardedParameters<T>>* schedule() noexcept { return schedule_.get(); }
  /// All parameters are whole from unshard() to reshard(). Collective where they are not always so.
  void unshard() {
    if (schedule_) schedule_->hold();
  }
  void reshard() {
    if (schedule_) schedule_->let_go();
  }

  /// The buckets as they are laid out now, and who owns what, for those who want to look.
  const std::vector<Bucket>& buckets() const noexcept { return buckets_->buckets(); }
  const FlatLayout& layout() const noexcept { return flat_ ? flat_->layout() : sharded_->layout(); }
  const std::vector<Shard>& shards() const noexcept { return buckets_->reduction().shards(); }

 private:
  using Reduction = ScatterGradients<Compression>;
  using Buckets = GradientBuckets<T, Reduction>;

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
  void require_updated() const {
    if (!reduced_) return;
    throw Error(ErrorKind::argument,
                "tandem: a second backward before update() would lose the averages of the first; use accumulate() for "
                "all but the last backward of a step",
                comm_.rank(), -1, "backward");
  }

  Communicator<T> comm_;
  std::unique_ptr<FlatParameters<T>> flat_;                       // one of this
  std::unique_ptr<ShardedParameters<T>> sharded_;                 // and this
  std::unique_ptr<UnitSchedule<ShardedParameters<T>>> schedule_;  // goes with sharded_
  std::unique_ptr<Buckets> buckets_;                              // hooks point at it, so it stays where it is
  bool reduced_ = false;
  bool add_up_ = false;  // every micro-batch is reduced into the shards
};

/// Data parallelism with sharded state. Policies, in any order: degree<N> ranks (unless given, what the world size
/// leaves over); compress::bf16 or fp16; reference::fsdp2 at level 3.
///
/// Level 1 shards what the optimizer keeps, level 2 also the gradients: a bucket's memory goes once it is reduced.
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
