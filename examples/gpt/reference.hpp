// SPDX-License-Identifier: Apache-2.0
// Data-parallel training by N ranks, emulated by one process in plain libtorch operations: what --verify holds the real
// run against. Written from the rules alone (docs/decisions/0003_order_of_addition.md) and must not use the library,
// not even its tables, or it would prove nothing.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "gpt/data.hpp"
#include "gpt/model.hpp"
#include "gpt/recipe.hpp"

namespace gpt {

/// The sum of one buffer per rank in the order in which gloo's ring adds: the buffer is cut into N chunks, and chunk c
/// is x[c-1], then x[c-2] + that, ..., at last x[c] + that (indices modulo N).
inline at::Tensor ring_sum(const std::vector<at::Tensor>& ranks) {
  const auto up = [](std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; };
  const std::int64_t n = static_cast<std::int64_t>(ranks.size()), count = ranks[0].numel();
  const std::int64_t element = ranks[0].element_size(), bytes = count * element, mebibyte = std::int64_t{1} << 20;
  const std::int64_t segments = up(std::max(up(bytes, mebibyte) / mebibyte, 2 * n), n);
  const std::int64_t segment_bytes = up(up(bytes, segments) / segments, element);
  const std::int64_t chunk = segments / n * segment_bytes / element;
  std::vector<at::Tensor> sums;
  for (std::int64_t c = 0; c < n; ++c) {
    const std::int64_t begin = std::min(count, c * chunk), end = std::min(count, begin + chunk);
    const auto part = [&](std::int64_t rank) { return ranks[static_cast<std::size_t>(rank % n)].slice(0, begin, end); };
    at::Tensor sum = part(c + n - 1);
    for (std::int64_t step = 2; step <= n; ++step) sum = part(c + 2 * n - step) + sum;
    sums.push_back(sum);
  }
  return at::cat(sums);
}

class Reference {
 public:
  /// Every step has `accumulate` micro-batches on each rank.
  Reference(Gpt model, int ranks, int accumulate, std::optional<double> largest_norm)
      : model_(std::move(model)),
        ranks_(static_cast<std::size_t>(ranks)),
        accumulate_(accumulate),
        largest_norm_(largest_norm),
        parameters_(model_.parameters()),
        optimizer_(parameters_) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      parameters_[i].register_hook([this, i](const at::Tensor&) { arrived_.push_back(i); });
    }
  }
  Reference(const Reference&) = delete;  // the hooks point here
  Reference& operator=(const Reference&) = delete;

  /// One step of all ranks; `batch(rank, index)` gives a micro-batch of each. Returns the mean loss.
  template <class BatchOf>
  double step(BatchOf batch, double learning_rate) {
    double sum = 0;
    std::vector<std::vector<at::Tensor>> gradients(ranks_);  // [rank][parameter], flat
    std::vector<std::size_t> arrived_on_rank_0;
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      for (at::Tensor& parameter : parameters_) parameter.mutable_grad() = at::Tensor();
      for (int index = 0; index < accumulate_; ++index) {
        const auto [tokens, next] = batch(static_cast<int>(rank), index);
        arrived_.clear();
        const at::Tensor loss = gpt::loss(model_.forward(tokens), next);
        (loss / accumulate_).backward();
        sum += loss.item<double>();
      }
      for (const at::Tensor& parameter : parameters_) gradients[rank].push_back(parameter.grad().flatten());
      if (rank == 0) arrived_on_rank_0 = arrived_;
    }
    const torch::NoGradGuard no_grad;
    for (const std::vector<std::size_t>& bucket : buckets_) average(bucket, gradients);
    // PyTorch's DDP: one bucket in the first step; from the second on, in the order in which gradients came in the
    // first.
    if (!rebuilt_) buckets_ = buckets_by_arrival(arrived_on_rank_0);
    rebuilt_ = true;
    if (largest_norm_) clip(parameters_, *largest_norm_);
    optimizer_.step(learning_rate);
    return sum / (static_cast<double>(ranks_) * accumulate_);
  }

  Gpt& model() { return model_; }

 private:
  using Buckets = std::vector<std::vector<std::size_t>>;

  static Buckets one_bucket(std::size_t parameters) {
    Buckets buckets(1, std::vector<std::size_t>(parameters));
    std::iota(buckets[0].begin(), buckets[0].end(), std::size_t{0});
    return buckets;
  }

  /// A bucket ends with the gradient that brings it to its cap: 1 MiB for the first, 25 MiB for the others.
  Buckets buckets_by_arrival(const std::vector<std::size_t>& arrived) const {
    Buckets buckets(1);
    std::size_t bytes = 0;
    for (const std::size_t i : arrived) {
      if (bytes >= (buckets.size() == 1 ? std::size_t{1} << 20 : std::size_t{25} << 20)) {
        buckets.emplace_back();
        bytes = 0;
      }
      buckets.back().push_back(i);
      bytes += parameters_[i].nbytes();
    }
    return buckets;
  }

  void average(const std::vector<std::size_t>& bucket, const std::vector<std::vector<at::Tensor>>& gradients) {
    std::vector<at::Tensor> flat;  // one buffer per rank
    for (const std::vector<at::Tensor>& of_rank : gradients) {
      std::vector<at::Tensor> members;
      for (const std::size_t i : bucket) members.push_back(of_rank[i]);
      flat.push_back(at::cat(members).mul_(1.0 / static_cast<double>(ranks_)));
    }
    const at::Tensor sum = ring_sum(flat);
    std::int64_t offset = 0;
    for (const std::size_t i : bucket) {
      at::Tensor& parameter = parameters_[i];
      parameter.mutable_grad() = sum.narrow(0, offset, parameter.numel()).clone().view_as(parameter);
      offset += parameter.numel();
    }
  }

  Gpt model_;
  std::size_t ranks_;
  int accumulate_;
  std::optional<double> largest_norm_;
  std::vector<at::Tensor> parameters_;
  PlainAdamW optimizer_;
  std::vector<std::size_t> arrived_;
  Buckets buckets_ = one_bucket(parameters_.size());
  bool rebuilt_ = false;
};

}  // namespace gpt
