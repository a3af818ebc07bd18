// SPDX-License-Identifier: Apache-2.0
// Gradient clipping by Python's formula, to the bit. Knows nothing of ranks: whole gradients only.
#pragma once

#include <optional>
#include <vector>

#include "tandem/tensor/torch.hpp"

namespace tandem {

/// torch.nn.utils.clip_grad_norm_ of Python: the norm of the vector of norms, then a multiplication by a reciprocal.
/// The C++ function of the same name divides instead, and gives other bits in a quarter of all cases at max_norm 0.7.
/// Returns the norm before clipping; 0 for no gradients.
inline double clip_gradients(const std::vector<at::Tensor>& gradients, double max_norm) {
  if (gradients.empty()) return 0.0;
  const c10::AutoGradMode no_grad(false);
  const auto norm_of = [](const at::Tensor& values) {
    return at::_ops::linalg_vector_norm::call(values, 2.0, std::nullopt, false, std::nullopt);
  };
  std::vector<at::Tensor> norms;
  norms.reserve(gradients.size());
  for (const at::Tensor& gradient : gradients) norms.push_back(norm_of(gradient));
  const at::Tensor total = norm_of(at::_ops::stack::call(norms, 0));
  const at::Tensor factor =
      at::_ops::clamp::call(total.add(1e-6).reciprocal().mul(max_norm), std::nullopt, at::Scalar(1.0));
  if (factor.item<double>() == 1.0) return total.item<double>();  // times one changes no bit: save the pass
  for (const at::Tensor& gradient : gradients) gradient.mul_(factor);
  return total.item<double>();
}

}  // namespace tandem
