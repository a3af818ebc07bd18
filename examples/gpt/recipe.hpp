// SPDX-License-Identifier: Apache-2.0
// How weights follow from gradients, in plain libtorch operations: clipping and AdamW as PyTorch computes them in
// Python. Both C++ functions of these names give other bits. A Trainer has its own and needs none of this but the
// constants; this is for training without tandem, and for what tandem is held against.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace gpt {

inline constexpr double mean_decay = 0.9;     // "beta 1"
inline constexpr double square_decay = 0.99;  // "beta 2"
inline constexpr double weight_decay = 0.01;

/// torch.optim.AdamW in Python. torch::optim::AdamW moves the mean by mul_ and add_, where Python calls lerp_.
class PlainAdamW {
 public:
  explicit PlainAdamW(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {
    for (const at::Tensor& parameter : parameters_) {
      means_.push_back(at::zeros_like(parameter));
      squares_.push_back(at::zeros_like(parameter));
    }
  }

  void step(double learning_rate) {
    const torch::NoGradGuard no_grad;
    ++steps_;
    const double mean_weight = 1 - std::pow(mean_decay, steps_), square_weight = 1 - std::pow(square_decay, steps_);
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor& gradient = parameters_[i].grad();
      parameters_[i].mul_(1 - learning_rate * weight_decay);
      means_[i].lerp_(gradient, 1 - mean_decay);
      squares_[i].mul_(square_decay).addcmul_(gradient, gradient, 1 - square_decay);
      const at::Tensor root = (squares_[i].sqrt() / std::pow(square_weight, 0.5)).add_(1e-8);
      parameters_[i].addcdiv_(means_[i], root, -(learning_rate / mean_weight));
    }
  }

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> means_;
  std::vector<at::Tensor> squares_;
  int steps_ = 0;
};

/// torch.nn.utils.clip_grad_norm_ in Python: it multiplies by a reciprocal, where the C++ function divides.
inline void clip(const std::vector<at::Tensor>& parameters, double largest_norm) {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> norms;
  for (const at::Tensor& parameter : parameters) norms.push_back(at::linalg_vector_norm(parameter.grad(), 2));
  const at::Tensor total = at::linalg_vector_norm(at::stack(norms), 2);
  const at::Tensor factor = at::clamp((total + 1e-6).reciprocal() * largest_norm, std::nullopt, 1.0);
  for (const at::Tensor& parameter : parameters) parameter.grad().mul_(factor);
}

}  // namespace gpt
