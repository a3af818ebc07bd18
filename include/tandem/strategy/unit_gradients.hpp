// SPDX-License-Identifier: Apache-2.0
// Averages the gradients of a model's units while backward computes them, into the owners of rows: FSDP2's arithmetic.
// Knows no model, no optimizer, and not when parameters are whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "tandem/collective/work.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/call_site.hpp"
#include "tandem/reduce/functor.hpp"
#include "tandem/strategy/backward_checks.hpp"
#include "tandem/strategy/parameter.hpp"
#include "tandem/strategy/row_sharded_parameters.hpp"
#include "tandem/tensor/async.hpp"
#include "tandem/tensor/row_layout.hpp"
#include "tandem/tensor/storage.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem {

/// A unit's gradients are padded and laid out as all ranks' shards one after another, summed over that whole buffer in
/// gloo's order, and divided by N afterwards, as torch.distributed.fsdp.fully_shard does over gloo. Between
/// micro-batches they stay whole and are added up on each rank, or with `add_up` go into the shards each time.
template <class T>
class UnitGradients {
 public:
  UnitGradients(Communicator<T>& comm, const RowShardedParameters<T>& sharded, std::vector<NamedParameter> parameters,
                bool add_up)
      : comm_(comm),
        sharded_(sharded),
        layout_(sharded.layout()),
        parameters_(std::move(parameters)),
        shards_(sharded.shards()),
        add_up_(add_up),
        units_(sharded.units()),
        shard_of_(parameters_.size(), shards_.size()),
        seen_(parameters_.size(), 0) {
    for (std::size_t shard = 0; shard < shards_.size(); ++shard) shard_of_[shards_[shard].item] = shard;
    for (std::size_t unit = 0; unit < units_.size(); ++unit) units_[unit].items = sharded.items(unit);
    for (std::size_t index = 0; index < parameters_.size(); ++index) {
      hooks_.push_back(parameters_[index].value.register_hook(
          [this, index](const at::Tensor& gradient) { return receive(index, gradient); }));
    }
  }
  UnitGradients(const UnitGradients&) = delete;
  UnitGradients& operator=(const UnitGradients&) = delete;
  ~UnitGradients() {
    for (std::size_t index = 0; index < parameters_.size(); ++index)
      parameters_[index].value.remove_hook(hooks_[index]);
  }

  const std::vector<NamedParameter>& parameters() const noexcept { return parameters_; }
  const std::vector<Shard>& shards() const noexcept { return shards_; }

  /// Computes gradients of `loss`; averages them into the shards unless `locally`.
  void backward(const at::Tensor& loss, bool locally) {
    if (parameters_.empty() && !loss.requires_grad()) return;  // nothing to train: plain pass-through
    detail::require_graph(loss, comm_.rank());
    attempt([&] {
      begin(!locally);
      loss.backward();
      finish();
    });
  }
  /// Averages the gradients as they stand.
  void reduce_standing() {
    attempt([&] {
      begin(true);
      for (std::size_t index = 0; index < parameters_.size(); ++index) {
        if (parameters_[index].value.grad().defined()) arrive(index);
      }
      finish();
    });
  }

 private:
  struct Unit {
    std::vector<std::size_t> items;
    std::size_t arrived = 0;
  };
  struct UnderWay {
    std::size_t unit;
    at::Tensor buffer;
    Work work;
  };
  static constexpr CallSite backward_site{"a unit's gradients", "Trainer::backward", 0};
  static constexpr std::size_t most_under_way = 2;

  /// After an exception, what is under way stays so until the communicator has been given up with the true cause.
  template <class F>
  void attempt(F f) {
    try {
      f();
    } catch (...) {
      active_ = false;
      throw;
    }
  }
  void begin(bool reduce) {
    ++backward_;
    active_ = true;
    reducing_ = reduce;
    under_way_.clear();
    complete_.clear();
    for (Unit& unit : units_) unit.arrived = 0;
  }
  at::Tensor receive(std::size_t index, const at::Tensor& gradient) {
    if (!active_) return {};
    detail::require_dense(gradient, parameters_[index].name, comm_.rank());
    arrive(index);
    return {};
  }
  /// Autograd stores the gradient after this, so units that were complete before are ready now.
  void arrive(std::size_t index) {
    if (!reducing_) return;
    detail::require_first(seen_[index] != backward_, parameters_[index].name, comm_.rank());
    reduce_complete();
    seen_[index] = backward_;
    const std::size_t unit = layout_.items()[index].unit;
    if (++units_[unit].arrived == units_[unit].items.size()) complete_.push_back(unit);
    for (UnderWay& it : under_way_) it.work.poll();
  }
  void reduce_complete() {
    for (; !complete_.empty(); complete_.pop_front()) begin_reduce(complete_.front());
  }
  void begin_reduce(std::size_t unit) {
    const auto shard = static_cast<std::int64_t>(layout_.shard(unit));
    if (shard == 0) return;
    if (under_way_.size() == most_under_way) finish_oldest();
    const c10::AutoGradMode no_grad(false);
    const at::Tensor buffer = arena_empty(comm_.arena(), {shard * comm_.size()}, sharded_.type(unit));
    for (const std::size_t item : units_[unit].items) {
      const at::Tensor& gradient = parameters_[item].value.grad();
      const at::Tensor flat = gradient.defined() ? gradient.reshape({-1}) : at::Tensor();
      for (int rank = 0; rank < comm_.size(); ++rank) {
        const Range owned = flat.defined() ? layout_.owned(item, rank) : Range{};
        const auto part = static_cast<std::int64_t>(layout_.part(item)),
                   length = static_cast<std::int64_t>(owned.size());
        const at::Tensor place = buffer.narrow(0, rank * shard + static_cast<std::int64_t>(layout_.offset(item)), part);
        if (length > 0)
          place.narrow(0, 0, length).copy_(flat.narrow(0, static_cast<std::int64_t>(owned.begin), length));
        if (length < part) place.narrow(0, length, part - length).zero_();  // padding is added up too
      }
      parameters_[item].value.mutable_grad().reset();
    }
    under_way_.push_back(
        {unit, buffer, reduce_scatter_async(comm_, buffer, own_part(buffer, shard), Sum{}, {}, backward_site)});
  }
  at::Tensor own_part(const at::Tensor& buffer, std::int64_t shard) const {
    return buffer.narrow(0, comm_.rank() * shard, shard);
  }
  void finish_oldest() {
    UnderWay& oldest = under_way_.front();
    oldest.work.wait();
    const c10::AutoGradMode no_grad(false);
    const at::Tensor own = own_part(oldest.buffer, static_cast<std::int64_t>(layout_.shard(oldest.unit)));
    own.div_(comm_.size());
    for (const std::size_t item : units_[oldest.unit].items) {
      if (shard_of_[item] == shards_.size()) continue;
      at::Tensor& value = shards_[shard_of_[item]].value;
      const at::Tensor average = own.narrow(0, static_cast<std::int64_t>(layout_.offset(item)), value.numel());
      if (add_up_ && value.grad().defined())
        value.mutable_grad().add_(average);
      else
        value.mutable_grad() = average.clone();
    }
    under_way_.pop_front();
  }
  void finish() {
    active_ = false;
    if (!reducing_) return;
    reduce_complete();
    std::vector<std::size_t> unused;
    for (std::size_t index = 0; index < parameters_.size(); ++index) {
      if (seen_[index] != backward_) unused.push_back(index);
    }
    if (!unused.empty()) {
      detail::refuse_unused(unused, parameters_,
                            "use every parameter in the loss, or freeze it with requires_grad_(false) on all ranks",
                            comm_.rank());
    }
    while (!under_way_.empty()) finish_oldest();
    for (const NamedParameter& parameter : parameters_) parameter.value.mutable_grad().reset();
  }

  Communicator<T>& comm_;
  const RowShardedParameters<T>& sharded_;
  const RowLayout& layout_;
  std::vector<NamedParameter> parameters_;
  std::vector<Shard> shards_;  // at most one a parameter, in registration order
  bool add_up_;
  std::vector<Unit> units_;
  std::vector<std::size_t> shard_of_;  // by parameter; how many there are when it has none
  std::vector<std::uint64_t> seen_;    // the backward in which a parameter's gradient last came
  std::vector<unsigned> hooks_;
  std::deque<std::size_t> complete_;  // units whose last gradient is about to be stored, or was
  std::deque<UnderWay> under_way_;    // oldest first
  std::uint64_t backward_ = 0;
  bool active_ = false;
  bool reducing_ = false;
};

}  // namespace tandem
