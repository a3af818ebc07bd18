// SPDX-License-Identifier: Apache-2.0
// Gradient clipping by Python's formula, to the bit. Knows nothing of ranks: whole gradients only.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "tandem/tensor/torch.hpp"

namespace tandem {

/// The norm of one gradient, as a tensor.
inline at::Tensor gradient_norm(const at::Tensor& gradient) {
  return at::_ops::linalg_vector_norm::call(gradient, 2.0, std::nullopt, false, std::nullopt);
}

/// What all gradients together are scaled with, by their norms in the parameters' order.
struct ClipScale {
  double norm = 0.0;  ///< of all gradients, before
  at::Tensor factor;  ///< undefined when it is one: times one changes no bit
};
inline ClipScale clip_scale(const std::vector<at::Tensor>& norms, double max_norm) {
  if (norms.empty()) return {};
  const at::Tensor total = gradient_norm(at::_ops::stack::call(norms, 0));
  at::Tensor factor = at::_ops::clamp::call(total.add(1e-6).reciprocal().mul(max_norm), std::nullopt, at::Scalar(1.0));
  if (factor.item<double>() == 1.0) factor.reset();
  return {total.item<double>(), std::move(factor)};
}

/// torch.nn.utils.clip_grad_norm_ of Python: the norm of the vector of norms, then a multiplication by a reciprocal.
/// The C++ function of the same name divides instead, and gives other bits in a quarter of all cases at max_norm 0.7.
/// Returns the norm before clipping; 0 for no gradients.
inline double clip_gradients(const std::vector<at::Tensor>& gradients, double max_norm) {
  const c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor> norms;
  norms.reserve(gradients.size());
  for (const at::Tensor& gradient : gradients) norms.push_back(gradient_norm(gradient));
  const ClipScale scale = clip_scale(norms, max_norm);
  if (scale.factor.defined()) {
    for (const at::Tensor& gradient : gradients) gradient.mul_(scale.factor);
  }
  return scale.norm;
}

}  // namespace tandem
