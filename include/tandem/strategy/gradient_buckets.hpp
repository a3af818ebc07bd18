// SPDX-License-Identifier: Apache-2.0
// Averages gradients over ranks while backward computes them: hooks on the parameters fill buckets, a full bucket is
// reduced at once. Knows no model, no optimizer, and not who gets the averages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tandem/collective/broadcast.hpp"
#include "tandem/collective/work.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/call_site.hpp"
#include "tandem/strategy/backward_checks.hpp"
#include "tandem/strategy/bucket_set.hpp"
#include "tandem/strategy/options.hpp"
#include "tandem/strategy/parameter.hpp"
#include "tandem/strategy/parameter_use.hpp"
#include "tandem/tensor/bucket.hpp"
#include "tandem/tensor/bucket_layout.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem {

/// The arithmetic is that of torch.nn.parallel.DistributedDataParallel over gloo (see BucketCaps and
/// rebuilt_buckets for the layout): every gradient times 1/N in its dtype, then the contract's sum.
///
/// The hook of a parameter writes the gradient into its bucket and returns a fresh view of it, which autograd stores
/// as the parameter's gradient without a copy. So a gradient is touched once by its rank, and once by the reduction.
///
/// Between two calls of begin() nothing here runs: a backward that was not announced (autograd::grad for a penalty,
/// say) passes through the hooks unchanged.
///
/// What backwards reach may change (unused_parameters::find), or be learnt from the first one that is reduced
/// (static_graph): then, as in PyTorch, buckets are laid out anew before the third.
///
/// `Reduction` is AllReduceGradients or of its shape.
template <class T, class Reduction>
class GradientBuckets {
 public:
  /// `parameters` all require grad and are the same on all ranks, `items` are their gradient_items(); `comm` must
  /// outlive this object. With `among_others`, other operations are begun on `comm` while backward runs: where ranks
  /// need not reach the same parameters, reductions then begin only when it is over, so that all ranks begin all in one
  /// order.
  GradientBuckets(Communicator<T>& comm, std::vector<NamedParameter> parameters, std::vector<BucketItem> items,
                  const StrategyOptions& options, Reduction reduction, bool among_others = false)
      : comm_(comm),
        caps_(options.buckets),
        graph_(graph_of(options)),
        late_(among_others && graph_ != Graph::whole),
        reduction_(std::move(reduction)),
        parameters_(std::move(parameters)),
        items_(std::move(items)),
        slots_(parameters_.size()),
        use_(parameters_.size()),
        buckets_(comm.arena(), parameters_),
        rebuilt_(graph_ == Graph::changing) {
    BucketCaps first = caps_;
    if (graph_ == Graph::changing) first.from_first_step = true;
    buckets_.lay_out(reduction_.arrange(first_buckets(items_, first), backwards(items_.size())));
    for (std::size_t index = 0; index < parameters_.size(); ++index) {
      slots_[index].hook = parameters_[index].value.register_hook(
          [this, index](const at::Tensor& gradient) { return receive(index, gradient); });
    }
  }
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;
  ~GradientBuckets() {
    for (std::size_t index = 0; index < parameters_.size(); ++index) {
      parameters_[index].value.remove_hook(slots_[index].hook);
    }
  }

  /// Computes gradients of `loss`; averages them unless `locally`, and then every gradient that the reduction gives is
  /// there when this returns.
  void backward(const at::Tensor& loss, bool locally) {
    if (parameters_.empty() && !loss.requires_grad()) return;  // nothing to train: plain pass-through
    detail::require_graph(loss, comm_.rank());
    attempt([&] {
      begin(!locally);
      loss.backward();
      finish();
      learnt_ = learnt_ || !locally;
    });
  }
  /// Averages the gradients as they stand, without a backward: written by hand, or added up locally before.
  void reduce_standing() {
    attempt([&] {
      begin(true);
      const c10::AutoGradMode no_grad(false);
      for (std::size_t index = 0; index < parameters_.size(); ++index) {
        at::Tensor& gradient = parameters_[index].value.mutable_grad();
        const at::Tensor& view = buckets_.view_of(index);
        if (gradient.defined() && !same_memory(gradient, view)) require_in_graph(index);
        if (!gradient.defined() || stands_in(index)) continue;  // named by finish()
        if (!same_memory(gradient, view)) view.copy_(gradient);
        gradient = view.alias();
        use_.reached(index);
        mark_ready(index);
      }
      finish();
      learnt_ = true;
    });
  }
  /// Takes part in the others' averages with zeros, and gets them, where there are any: this rank has no batch of its
  /// own. As in DistributedDataParallel's join(), gradients count as having come in registration order.
  void reduce_nothing() {
    attempt([&] {
      begin(true);
      for (std::size_t index = 0; index < parameters_.size(); ++index) {
        if (!stands_in(index)) note_arrival(index);
      }
      for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {  // in the order in which they are reduced
        for (const std::size_t index : std::vector<std::size_t>(buckets_[bucket].layout().items)) {
          if (!stands_in(index)) stand_in(index, true);
        }
      }
      finish();
    });
  }

  /// Had any rank a gradient of this parameter in the last step?
  bool has_average(std::size_t index) const noexcept { return use_.anywhere(index); }

  const std::vector<NamedParameter>& parameters() const noexcept { return parameters_; }
  /// The layout now in use.
  const std::vector<Bucket>& buckets() const noexcept { return buckets_.all(); }
  /// What this rank owns, for a reduction that gives each owner its part.
  const auto& shards() const noexcept requires(!Reduction::whole) { return reduction_.shards(); }

 private:
  /// Which parameters do backwards reach: all, some that may be others each time, or some that stay the same?
  enum class Graph : std::uint8_t { whole, changing, fixed };
  static Graph graph_of(const StrategyOptions& options) noexcept {
    if (options.static_graph) return Graph::fixed;
    return options.unused == unused_parameters::find ? Graph::changing : Graph::whole;
  }
  struct Slot {
    std::uint64_t ready = 0;      // the backward in which its place in the bucket was last filled
    std::uint64_t stands_in = 0;  // the backward in which it was last filled without a gradient
    bool unreached = false;       // fixed graph: this rank's first step had no gradient of it
    unsigned hook = 0;
  };
  /// A gradient that lies in its bucket and is to stay what it is unless some rank has a new one.
  struct Kept {
    std::size_t index;
    at::Tensor value;
  };
  struct UnderWay {
    Work work;
    std::size_t bucket;
  };

  // The user's call cannot be known inside a hook; this says more than the hook's own place would.
  static constexpr CallSite backward_site{"a gradient bucket", "Trainer::backward", 0};
  /// Elsewhere far below the communicator's limit, and more than a backward has in flight where ranks keep in step.
  /// Where a rank may lack a gradient until its backward is over, the others must not wait for it in theirs; and where
  /// all buckets have memory already, from local sums, waiting would save none.
  std::size_t most_under_way() const noexcept {
    return reduction_.releases() && graph_ != Graph::changing && !sums_
               ? detail::most_released_under_way(T::has_windows)
               : 16;
  }

  /// After an exception, what is under way stays so until the communicator has been given up with the true cause: a
  /// reduction that is dropped before gives it up with its own.
  template <class F>
  void attempt(F f) {
    try {
      f();
    } catch (...) {
      active_ = false;
      throw;
    }
  }

  /// From now on gradients go into the buckets; with `reduce`, full ones are averaged over the ranks, otherwise they
  /// are only added up.
  void begin(bool reduce) {
    if constexpr (!Reduction::whole) adding_up_ = reduction_.adds_up();  // before a bucket gives the shards new ones
    if (!arrival_on_rank_0_.empty()) {
      const auto order = std::exchange(arrival_on_rank_0_, {});
      buckets_.lay_out(reduction_.arrange(rebuilt_buckets(items_, order, caps_), order));
    }
    under_way_.clear();  // only after a failure is anything left
    ++backward_;
    sums_ = backward_ > 1 && !reducing_;
    reducing_ = reduce;
    active_ = true;
    next_ = 0;
    missing_.clear();
    for (const Bucket& bucket : buckets_.all()) missing_.push_back(bucket.layout().items.size());
    kept_.clear();
    if (reducing_) {
      for (const std::size_t index : absent_) stand_in(index);
    }
  }

  /// After backward: waits for what is under way. Every gradient is then the average, the same bits on all ranks.
  /// Throws Error(argument) naming the parameters that took no part, unless they may.
  void finish() {
    active_ = false;
    if (!reducing_) return;
    if (late_) begin_full_ones();
    if (next_ < buckets_.size()) complete();
    while (!under_way_.empty()) finish_oldest();
    if (searches()) use_.share(comm_, adding_up_, backward_site);
    for (std::size_t index = 0; index < parameters_.size(); ++index) settle(index);
    for (const Kept& kept : kept_) {
      if (!use_.anywhere(kept.index)) buckets_.view_of(kept.index).copy_(kept.value);
    }
    ++reductions_;
    if (!rebuilt_ && !parameters_.empty() && (graph_ == Graph::whole || reductions_ > 1)) {
      share_arrival();
      // The first steps needed more where gradients did not come backwards.
      if (reduction_.releases()) comm_.arena()->trim();
    }
  }
  /// Is it yet to be found out in this backward what it reaches?
  bool searches() const noexcept { return graph_ == Graph::changing || (graph_ == Graph::fixed && reductions_ == 0); }
  /// Backward is over, and some gradients did not come.
  void complete() {
    if (!searches() && (graph_ != Graph::fixed || learnt_)) refuse_unused();
    for (std::size_t index = 0; index < parameters_.size(); ++index) {
      if (slots_[index].ready == backward_) continue;
      if (graph_ == Graph::fixed) {
        absent_.push_back(index);
        slots_[index].unreached = !use_.here(index);
      }
      stand_in(index);
    }
  }
  /// What this rank has of a gradient that does not come in this backward: earlier sums, or zeros. With `nothing`,
  /// zeros whatever it has.
  void stand_in(std::size_t index, bool nothing = false) {
    const c10::AutoGradMode no_grad(false);
    const at::Tensor& earlier = parameters_[index].value.grad();
    const at::Tensor& place = buckets_.view_of(index);
    const bool lies_there = earlier.defined() && same_memory(earlier, place);
    if (Reduction::whole && graph_ != Graph::whole && lies_there && !use_.here(index))
      kept_.push_back({index, earlier.detach().clone()});
    if (!earlier.defined() || nothing)
      place.zero_();
    else if (!lies_there)
      place.copy_(earlier);
    slots_[index].stands_in = backward_;
    mark_ready(index);
  }
  bool stands_in(std::size_t index) const noexcept { return slots_[index].stands_in == backward_; }
  /// The parameter's gradient becomes what it is to be after backward.
  void settle(std::size_t index) {
    at::Tensor& gradient = parameters_[index].value.mutable_grad();
    if constexpr (!Reduction::whole) {
      gradient.reset();  // this rank's own sum, or a part of the averages
      if (!use_.anywhere(index)) reduction_.forget(index);
    } else if (stands_in(index)) {
      if (use_.anywhere(index)) gradient = buckets_.view_of(index).alias();
    } else if (!gradient.defined() || !same_memory(gradient, buckets_.view_of(index))) {
      detail::refuse_backward(
          "a hook on parameter \"" + parameters_[index].name +
              "\" replaced its gradient after it was averaged; register hooks before the Trainer is "
              "made",
          comm_.rank());
    }
  }

  static bool same_memory(const at::Tensor& a, const at::Tensor& b) {
    return a.data_ptr() == b.data_ptr() && a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
           a.strides() == b.strides();
  }

  /// The hook. What it returns becomes the parameter's gradient.
  at::Tensor receive(std::size_t index, const at::Tensor& gradient) {
    if (!active_) return {};  // not ours: autograd goes on with the gradient as it is
    const c10::AutoGradMode no_grad(false);
    if (gradient.defined() || (reducing_ && stands_in(index))) require_in_graph(index);
    detail::require_first(slots_[index].ready != backward_, parameters_[index].name, comm_.rank());
    detail::require_dense(gradient, parameters_[index].name, comm_.rank());
    at::Tensor& kept = parameters_[index].value.mutable_grad();
    const at::Tensor& place = buckets_.view_of(index);
    if (!gradient.defined()) {
      if (!kept.defined())
        place.zero_();
      else if (!same_memory(kept, place))
        place.copy_(kept);
    } else if (!kept.defined()) {
      place.copy_(gradient);
    } else if (same_memory(kept, place)) {
      place.add_(gradient);
    } else {
      at::Tensor sum = place;
      at::_ops::add_out::call(kept, gradient, 1, sum);
    }
    kept.reset();  // so that autograd takes the view over instead of adding it to what was there
    at::Tensor view = place.alias();
    if (gradient.defined()) use_.reached(index);
    mark_ready(index);
    return view;
  }

  void mark_ready(std::size_t index) {
    slots_[index].ready = backward_;
    if (!reducing_) return;
    if (!stands_in(index)) note_arrival(index);
    --missing_[buckets_.bucket_of(index)];
    if (!late_ || !active_) begin_full_ones();
  }
  void note_arrival(std::size_t index) {
    if (!rebuilt_ && (graph_ == Graph::whole || reductions_ > 0)) arrival_.push_back(index);
  }
  /// In the buckets' order, as far as they have all their gradients.
  void begin_full_ones() {
    // Before another begins: autograd has stored the gradients of these buckets by now, so their memory can go.
    if constexpr (!Reduction::whole) {
      while (!under_way_.empty() && under_way_.front().work.poll()) finish_oldest();
    }
    // In the buckets' order, not in the order in which they fill: all ranks must begin the same operations.
    for (; next_ < buckets_.size() && missing_[next_] == 0; ++next_) {
      if (buckets_[next_].layout().count == 0) continue;
      if (under_way_.size() == most_under_way()) finish_oldest();
      under_way_.push_back({reduction_.begin(comm_, next_, buckets_[next_], backward_site), next_});
    }
    // Backward goes on after this; what the peers have posted meanwhile can be folded on the way.
    for (UnderWay& it : under_way_) it.work.poll();
  }

  void finish_oldest() {
    UnderWay& oldest = under_way_.front();
    oldest.work.wait();
    Bucket& bucket = buckets_[oldest.bucket];
    reduction_.finished(oldest.bucket, bucket);
    if (reduction_.releases()) {
      for (const std::size_t item : bucket.layout().items) parameters_[item].value.mutable_grad().reset();
      bucket.release();
    }
    under_way_.pop_front();
  }

  /// A gradient of this parameter has come.
  void require_in_graph(std::size_t index) {
    const bool known_absent = slots_[index].unreached || (reducing_ && stands_in(index));
    if (graph_ != Graph::fixed || (!known_absent && (reductions_ == 0 || use_.anywhere(index)))) return;
    detail::refuse_reached(parameters_[index].name, comm_.rank());
  }
  [[noreturn]] void refuse_unused() {
    std::vector<std::size_t> unused;
    for (std::size_t index = 0; index < parameters_.size(); ++index) {
      if (slots_[index].ready != backward_) unused.push_back(index);
    }
    detail::refuse_unused(unused, parameters_, detail::remedy_for_unused(graph_ == Graph::fixed), comm_.rank());
  }

  /// The order of rank 0's backward decides the buckets of all ranks from the next one on.
  void share_arrival() {
    arrival_.insert(arrival_.end(), absent_.begin(), absent_.end());
    std::vector<std::int64_t> order(arrival_.begin(), arrival_.end());
    broadcast(comm_, std::span<std::int64_t>(order), 0);
    arrival_on_rank_0_.assign(order.begin(), order.end());
    arrival_.clear();
    rebuilt_ = true;
  }

  Communicator<T>& comm_;
  BucketCaps caps_;
  Graph graph_;
  bool late_;  // do reductions wait until backward is over?
  Reduction reduction_;
  std::vector<NamedParameter> parameters_;
  std::vector<BucketItem> items_;
  std::vector<Slot> slots_;
  ParameterUse use_;
  BucketSet buckets_;
  std::vector<std::size_t> missing_;  // gradients that each bucket still waits for in this backward
  std::size_t next_ = 0;              // the first bucket whose reduction has not begun
  std::deque<UnderWay> under_way_;    // oldest first; declared after the buckets, so it goes first
  std::vector<std::size_t> arrival_;  // of this rank's first reduced backward; with a fixed graph, of its second
  std::vector<std::size_t> arrival_on_rank_0_;
  std::vector<std::size_t> absent_;  // fixed graph: what this rank's backwards do not reach
  std::vector<Kept> kept_;           // in this backward
  std::uint64_t backward_ = 0;
  std::uint64_t reductions_ = 0;  // backwards that were reduced
  bool rebuilt_;                  // is the order known? The buckets themselves change in the next begin()
  bool adding_up_ = false;        // did shards hold sums of this step when this backward began?
  bool reducing_ = false;
  bool active_ = false;
  bool sums_ = false;    // does the backward under way end with what earlier ones added up locally?
  bool learnt_ = false;  // fixed graph: has this rank had a backward that was reduced?
};

}  // namespace tandem
