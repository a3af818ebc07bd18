// SPDX-License-Identifier: Apache-2.0
// What all ranks of a job must get together, computed by plain libtorch in one process: every rank's gradients from the
// same weights, averaged as the contract says, then one update.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "support/free_model.hpp"
#include "support/torch_training.hpp"
#include "tandem/tandem.hpp"

namespace tandem::test {

/// The contract in one process: every rank's gradients, packed by `layouts`, times 1/N, folded in gloo's order.
inline std::vector<at::Tensor> averaged(const std::vector<BucketLayout>& layouts,
                                        const std::vector<std::vector<at::Tensor>>& by_rank) {
  torch::NoGradGuard no_grad;
  const auto ranks = static_cast<int>(by_rank.size());
  std::vector<at::Tensor> result(by_rank[0].size());
  for (const auto& layout : layouts) {
    std::vector<at::Tensor> flat;
    for (const auto& gradients : by_rank) {
      std::vector<at::Tensor> pieces;
      for (const std::size_t item : layout.items) {
        // In memory order, as the bucket holds them.
        const at::Tensor& gradient = gradients[item];
        pieces.push_back(gradient.is_non_overlapping_and_dense() ? gradient.as_strided({gradient.numel()}, {1})
                                                                 : gradient.flatten());
      }
      flat.push_back(at::cat(pieces) * (1.0 / ranks));
    }
    const auto table = GlooRing::table(layout.count, static_cast<std::size_t>(flat[0].element_size()), ranks);
    at::Tensor sum = at::empty_like(flat[0]);
    for (int chunk = 0; chunk < ranks; ++chunk) {
      const auto range = table.chunk(chunk);
      const auto part = [&](int rank) {
        return flat[static_cast<std::size_t>(rank)].slice(0, static_cast<std::int64_t>(range.begin),
                                                          static_cast<std::int64_t>(range.end));
      };
      at::Tensor accumulated = part((chunk + ranks - 1) % ranks).clone();
      for (int k = 2; k <= ranks; ++k) accumulated = part((chunk + 2 * ranks - k) % ranks) + accumulated;
      sum.slice(0, static_cast<std::int64_t>(range.begin), static_cast<std::int64_t>(range.end)).copy_(accumulated);
    }
    for (std::size_t place = 0; place < layout.items.size(); ++place) {
      const at::Tensor& like = by_rank[0][layout.items[place]];
      const auto offset = static_cast<std::int64_t>(layout.offsets[place]);
      result[layout.items[place]] = like.is_non_overlapping_and_dense()
                                        ? sum.as_strided(like.sizes(), like.strides(), offset).clone()
                                        : sum.slice(0, offset, offset + like.numel()).view(like.sizes()).clone();
    }
  }
  return result;
}

/// The layouts of a Ddp Trainer's buckets: that these are PyTorch's is for the comparison with c10d::Reducer to say.
template <class Trainer>
std::vector<BucketLayout> layouts_of(Trainer& trainer) {
  std::vector<BucketLayout> layouts;
  for (const auto& bucket : trainer.engine().buckets()) layouts.push_back(bucket.layout());
  return layouts;
}

/// Any optimizer behind one type, so that a test of many instantiates one Trainer for each strategy.
struct AnyOptimizer {
  std::function<void()> update;
  void step() { update(); }
};
template <class Optimizer>
AnyOptimizer any(Optimizer optimizer) {
  const auto held = std::make_shared<Optimizer>(std::move(optimizer));
  return {[held] { held->step(); }};
}
/// Makes an optimizer from named parameters, whole ones or shards.
using Recipe = std::function<AnyOptimizer(std::vector<OwnedParameter>)>;

inline std::vector<at::Tensor> values_of(const std::vector<OwnedParameter>& owned) {
  std::vector<at::Tensor> values;
  for (const auto& it : owned) values.push_back(it.value);
  return values;
}
inline Recipe plain_sgd(double rate) {
  return [rate](const std::vector<OwnedParameter>& owned) { return any(torch::optim::SGD(values_of(owned), rate)); };
}
inline Recipe momentum_sgd() {
  return [](const std::vector<OwnedParameter>& owned) {
    return any(torch::optim::SGD(values_of(owned), torch::optim::SGDOptions(0.1).momentum(0.9)));
  };
}

/// What a model trains: each tensor that requires grad, once.
inline std::vector<NamedParameter> trained(const Free& model) {
  std::vector<NamedParameter> result;
  for (const auto& [name, value] : model.parameters) {
    bool seen = !value.requires_grad();
    for (const auto& other : result) seen = seen || other.value.is_same(value);
    if (!seen) result.push_back({name, value});
  }
  return result;
}
inline std::vector<at::Tensor> weights(const Free& model) {
  std::vector<at::Tensor> result;
  for (const auto& it : trained(model)) result.push_back(it.value);
  return result;
}
inline std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const auto& it : tensors) result.push_back(it.detach().clone());
  return result;
}

class OneProcess {
 public:
  OneProcess(Free model, const Recipe& recipe) : model_(std::move(model)) {
    std::vector<OwnedParameter> all;
    for (const auto& [name, value] : trained(model_)) all.push_back({name, value, value.sizes().vec()});
    optimizer_ = recipe(all);
  }

  const Free& model() const noexcept { return model_; }
  std::vector<at::Tensor> weights() const { return test::weights(model_); }

  /// Gradients of every rank: run(model, rank) calls backward, once or several times.
  template <class Run>
  std::vector<std::vector<at::Tensor>> gradients_of(int ranks, Run run) {
    std::vector<std::vector<at::Tensor>> by_rank;
    for (int rank = 0; rank < ranks; ++rank) {
      release();
      run(model_, rank);
      by_rank.push_back(gradients(weights()));
    }
    return by_rank;
  }
  /// Makes every gradient the average. Added rank by rank: with two ranks there is but one order, and with more it is
  /// the contract's only where numbers add without rounding.
  template <class Run>
  void backward(int ranks, Run run) {
    const auto by_rank = gradients_of(ranks, run);
    std::vector<at::Tensor> averages;
    for (std::size_t i = 0; i < by_rank[0].size(); ++i) {
      averages.push_back(by_rank[0][i] * (1.0 / ranks));
      for (std::size_t rank = 1; rank < by_rank.size(); ++rank) averages[i] += by_rank[rank][i] * (1.0 / ranks);
    }
    set(averages);
  }
  void set(const std::vector<at::Tensor>& averages) {
    const auto all = weights();
    for (std::size_t i = 0; i < all.size(); ++i) all[i].mutable_grad() = averages[i];
  }
  void update() {
    optimizer_.step();
    release();
  }

 private:
  void release() {
    for (const auto& weight : weights()) weight.mutable_grad().reset();
  }

  Free model_;
  AnyOptimizer optimizer_;
};

/// One instantiation for each strategy, whatever the optimizer.
template <class Strategy>
using FreeTrainer = Trainer<Free, Strategy, ShmRing>;
template <class Strategy>
FreeTrainer<Strategy> trainer_of(Communicator<ShmRing>& world, Free model, const Recipe& recipe,
                                 TrainerOptions options = {}) {
  return FreeTrainer<Strategy>(world, std::move(model), mean_loss, recipe, std::move(options));
}

/// f<Strategy>() for every strategy of data parallelism.
template <class F>
void for_each_strategy(F f) {
  f.template operator()<Ddp<>>();
  f.template operator()<Zero<1>>();
  f.template operator()<Zero<2>>();
  f.template operator()<Zero<3>>();
}

/// Elements in which `mine` differs from rank 0's.
template <class T>
std::int64_t differing_from_rank_0(Communicator<T>& world, const at::Tensor& mine) {
  const at::Tensor root = mine.detach().clone();
  broadcast(world, root, 0);
  return differing(mine, root);
}

}  // namespace tandem::test
