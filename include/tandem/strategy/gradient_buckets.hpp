// SPDX-License-Identifier: Apache-2.0
// Averages gradients over ranks while backward computes them: hooks on the parameters fill buckets, a full bucket is
// reduced at once. Knows no model, no optimizer, and not who gets the averages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tandem/collective/broadcast.hpp"
#include "tandem/collective/work.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/call_site.hpp"
#include "tandem/core/dtype.hpp"
#include "tandem/core/error.hpp"
#include "tandem/strategy/gradient_reduction.hpp"
#include "tandem/strategy/parameter.hpp"
#include "tandem/tensor/bucket.hpp"
#include "tandem/tensor/bucket_layout.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem {

/// What the buckets see of parameters. Throws Error(argument) naming the first whose gradient cannot be averaged.
inline std::vector<BucketItem> gradient_items(const std::vector<NamedParameter>& parameters, int rank) {
  std::vector<BucketItem> items;
  for (const auto& [name, value] : parameters) {
    const auto dtype = dtype_of(value.scalar_type());
    if (!dtype || !value.device().is_cpu() || value.layout() != at::kStrided) {
      throw Error(ErrorKind::argument,
                  "tandem: parameter \"" + name + "\" is " + c10::toString(value.scalar_type()) + " on " +
                      value.device().str() + (value.layout() == at::kStrided ? "" : " and sparse") +
                      "; gradients are averaged for dense float32, float64, float16 and bfloat16 on the CPU only",
                  rank);
    }
    items.push_back({static_cast<std::size_t>(value.numel()), *dtype});
  }
  return items;
}

/// The arithmetic is that of torch.nn.parallel.DistributedDataParallel over gloo (see BucketCaps and
/// rebuilt_buckets for the layout): every gradient times 1/N in its dtype, then the contract's sum.
///
/// The hook of a parameter writes the gradient into its bucket and returns a fresh view of it, which autograd stores
/// as the parameter's gradient without a copy. So a gradient is touched once by its rank, and once by the reduction.
///
/// Between two calls of begin() nothing here runs: a backward that was not announced (autograd::grad for a penalty,
/// say) passes through the hooks unchanged.
/// `Reduction` is AllReduceGradients or of its shape.
template <class T, class Reduction>
class GradientBuckets {
 public:
  /// `parameters` all require grad and are the same on all ranks, `items` are their gradient_items(); `comm` must
  /// outlive this object.
  GradientBuckets(Communicator<T>& comm, std::vector<NamedParameter> parameters, std::vector<BucketItem> items,
                  BucketCaps caps, Reduction reduction)
      : comm_(comm),
        caps_(std::move(caps)),
        reduction_(std::move(reduction)),
        parameters_(std::move(parameters)),
        items_(std::move(items)) {
    for (const NamedParameter& parameter : parameters_) tensors_.push_back(parameter.value);
    slots_.resize(parameters_.size());
    lay_out(first_buckets(items_, caps_));
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
    if (!loss.requires_grad()) {
      if (parameters_.empty()) return;  // nothing to train: plain pass-through
      throw Error(ErrorKind::argument,
                  "tandem: the loss depends on no parameter that requires grad; compute it from the model's output "
                  "without detach() and outside no-grad scopes",
                  comm_.rank(), -1, "backward");
    }
    attempt([&] {
      begin(!locally);
      loss.backward();
      finish();
    });
  }
  /// Averages the gradients as they stand, without a backward: written by hand, or added up locally before.
  void reduce_standing() {
    attempt([&] {
      begin(true);
      const c10::AutoGradMode no_grad(false);
      for (std::size_t index = 0; index < parameters_.size(); ++index) {
        at::Tensor& gradient = parameters_[index].value.mutable_grad();
        if (!gradient.defined()) continue;  // named by finish()
        const at::Tensor& view = view_of(index);
        if (!same_memory(gradient, view)) view.copy_(gradient);
        gradient = view.alias();
        mark_ready(index);
      }
      finish();
    });
  }

  const std::vector<NamedParameter>& parameters() const noexcept { return parameters_; }
  /// The layout now in use.
  const std::vector<Bucket>& buckets() const noexcept { return buckets_; }
  const Reduction& reduction() const noexcept { return reduction_; }

 private:
  struct Slot {
    std::size_t bucket = 0;
    std::size_t place = 0;       // in the bucket
    std::uint64_t received = 0;  // the backward in which its gradient last came
    unsigned hook = 0;
  };
  struct UnderWay {
    Work work;
    std::size_t bucket;
  };

  // The user's call cannot be known inside a hook; this says more than the hook's own place would.
  static constexpr CallSite backward_site{"a gradient bucket", "Trainer::backward", 0};
  // Far below the communicator's limit, and more than a backward ever has in flight unless buckets are tiny.
  static constexpr std::size_t most_under_way = 16;

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
    if (!arrival_on_rank_0_.empty()) {
      lay_out(rebuilt_buckets(items_, std::exchange(arrival_on_rank_0_, {}), caps_));
    }
    under_way_.clear();  // only after a failure is anything left
    ++backward_;
    reducing_ = reduce;
    active_ = true;
    next_ = 0;
    missing_.clear();
    for (const Bucket& bucket : buckets_) missing_.push_back(bucket.layout().items.size());
  }

  /// After backward: waits for what is under way. Every gradient is then the average, the same bits on all ranks.
  /// Throws Error(argument) naming the parameters that took no part.
  void finish() {
    active_ = false;
    if (!reducing_) return;
    if (next_ < buckets_.size()) refuse_unused();
    while (!under_way_.empty()) finish_oldest();
    for (std::size_t index = 0; index < parameters_.size(); ++index) {
      at::Tensor& gradient = parameters_[index].value.mutable_grad();
      if constexpr (!Reduction::whole) {
        gradient.reset();  // this rank's own sum, or a part of the averages
      } else if (!gradient.defined() || !same_memory(gradient, view_of(index))) {
        throw Error(ErrorKind::argument,
                    "tandem: a hook on parameter \"" + parameters_[index].name +
                        "\" replaced its gradient after it was averaged; register hooks before the Trainer is made",
                    comm_.rank(), -1, "backward");
      }
    }
    if (!rebuilt_) share_arrival();
  }

  void lay_out(std::vector<BucketLayout> layouts) {
    buckets_.clear();
    for (BucketLayout& layout : reduction_.arrange(std::move(layouts))) {
      buckets_.emplace_back(comm_.arena(), std::move(layout), tensors_);
    }
    for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
      const auto& items = buckets_[bucket].layout().items;
      for (std::size_t place = 0; place < items.size(); ++place) {
        slots_[items[place]].bucket = bucket;
        slots_[items[place]].place = place;
      }
    }
  }
  /// A parameter's place in its bucket, which has memory from here on.
  const at::Tensor& view_of(std::size_t index) {
    const Slot& slot = slots_[index];
    buckets_[slot.bucket].allocate();
    return buckets_[slot.bucket].view(slot.place);
  }

  static bool same_memory(const at::Tensor& a, const at::Tensor& b) {
    return a.data_ptr() == b.data_ptr() && a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
           a.strides() == b.strides();
  }

  /// The hook. What it returns becomes the parameter's gradient.
  at::Tensor receive(std::size_t index, const at::Tensor& gradient) {
    if (!active_) return {};  // not ours: autograd goes on with the gradient as it is
    const c10::AutoGradMode no_grad(false);
    Slot& slot = slots_[index];
    if (slot.received == backward_) {
      throw Error(ErrorKind::argument,
                  "tandem: parameter \"" + parameters_[index].name +
                      "\" received a gradient twice in one backward; call Trainer::backward once per graph",
                  comm_.rank(), -1, "backward");
    }
    at::Tensor& kept = parameters_[index].value.mutable_grad();
    const at::Tensor& place = view_of(index);
    if (gradient.defined() && gradient.layout() != at::kStrided) {
      throw Error(ErrorKind::argument,
                  "tandem: the gradient of parameter \"" + parameters_[index].name +
                      "\" is sparse; build the layer with dense gradients (Embedding: sparse(false))",
                  comm_.rank(), -1, "backward");
    }
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
    mark_ready(index);
    return view;
  }

  void mark_ready(std::size_t index) {
    Slot& slot = slots_[index];
    slot.received = backward_;
    if (!reducing_) return;
    if (!rebuilt_) arrival_.push_back(index);
    --missing_[slot.bucket];
    // Before another begins: autograd has stored the gradients of these buckets by now, so their memory can go.
    if constexpr (!Reduction::whole) {
      while (!under_way_.empty() && under_way_.front().work.poll()) finish_oldest();
    }
    // In the buckets' order, not in the order in which they fill: all ranks must begin the same operations.
    for (; next_ < buckets_.size() && missing_[next_] == 0; ++next_) {
      if (buckets_[next_].layout().count == 0) continue;
      if (under_way_.size() == most_under_way) finish_oldest();
      under_way_.push_back({reduction_.begin(comm_, next_, buckets_[next_], backward_site), next_});
    }
    // Backward goes on after this; what the peers have posted meanwhile can be folded on the way.
    for (UnderWay& it : under_way_) it.work.poll();
  }

  void finish_oldest() {
    UnderWay& oldest = under_way_.front();
    oldest.work.wait();
    Bucket& bucket = buckets_[oldest.bucket];
    if (reduction_.finished(oldest.bucket, bucket)) {
      for (const std::size_t item : bucket.layout().items) parameters_[item].value.mutable_grad().reset();
      bucket.release();
    }
    under_way_.pop_front();
  }

  [[noreturn]] void refuse_unused() {
    std::string names;
    std::size_t count = 0;
    for (std::size_t index = 0; index < parameters_.size(); ++index) {
      if (slots_[index].received == backward_) continue;
      if (++count <= 5) names += (names.empty() ? "\"" : ", \"") + parameters_[index].name + "\"";
    }
    if (count > 5) names += " and " + std::to_string(count - 5) + " more";
    throw Error(ErrorKind::argument,
                "tandem: no gradient came for " + names + " on rank " + std::to_string(comm_.rank()) +
                    "; use every parameter in the loss, or freeze it with requires_grad_(false) on all ranks",
                comm_.rank(), -1, "backward");
  }

  /// The order of rank 0's first backward decides the buckets of all ranks from the next one on.
  void share_arrival() {
    std::vector<std::int64_t> order(arrival_.begin(), arrival_.end());
    broadcast(comm_, std::span<std::int64_t>(order), 0);
    arrival_on_rank_0_.assign(order.begin(), order.end());
    arrival_.clear();
    rebuilt_ = true;
  }

  Communicator<T>& comm_;
  BucketCaps caps_;
  Reduction reduction_;
  std::vector<NamedParameter> parameters_;
  std::vector<BucketItem> items_;
  std::vector<at::Tensor> tensors_;
  std::vector<Slot> slots_;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> missing_;  // gradients that each bucket still waits for in this backward
  std::size_t next_ = 0;              // the first bucket whose reduction has not begun
  std::deque<UnderWay> under_way_;    // oldest first; declared after the buckets, so it goes first
  std::vector<std::size_t> arrival_;  // of this rank's first reduced backward
  std::vector<std::size_t> arrival_on_rank_0_;
  std::uint64_t backward_ = 0;
  bool rebuilt_ = false;  // is the order known? The buckets themselves change in the next begin()
  bool reducing_ = false;
  bool active_ = false;
};

}  // namespace tandem
