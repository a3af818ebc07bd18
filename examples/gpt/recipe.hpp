// SPDX-License-Identifier: Apache-2.0
// How weights follow from gradients: clipping and AdamW, the same for every way of training here.
#pragma once

#include <torch/torch.h>

#include <utility>
#include <vector>

namespace gpt {

inline constexpr double largest_gradient_norm = 1.0;

inline torch::optim::AdamW adamw(std::vector<at::Tensor> parameters) {
  return torch::optim::AdamW(std::move(parameters), torch::optim::AdamWOptions().betas({0.9, 0.99}).weight_decay(0.01));
}

inline void set_learning_rate(torch::optim::AdamW& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

/// What clip_grad_norm_ does in Python. The C++ function of that name divides where Python multiplies by a reciprocal,
/// and gives other bits. A Trainer is told the norm and needs none of this.
inline void clip(const std::vector<at::Tensor>& parameters) {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> norms;
  for (const at::Tensor& parameter : parameters) norms.push_back(at::linalg_vector_norm(parameter.grad(), 2));
  const at::Tensor total = at::linalg_vector_norm(at::stack(norms), 2);
  const at::Tensor factor = at::clamp((total + 1e-6).reciprocal() * largest_gradient_norm, std::nullopt, 1.0);
  for (const at::Tensor& parameter : parameters) parameter.grad().mul_(factor);
}

}  // namespace gpt
