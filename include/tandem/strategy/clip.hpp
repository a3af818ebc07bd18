// SPDX-License-Identifier: Apache-2.0
// Gradient clipping by the norm of all gradients: by Python's formula to the bit, for whole gradients; and quickly, for
// gradients of which every rank has a part.
#pragma once

#include <cmath>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tandem/collective/all_reduce.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/bytes.hpp"
#include "tandem/reduce/functor.hpp"
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

/// Some of `gradients`, which all ranks have alike, so that every one is some rank's and all ranks have about as many
/// elements.
inline std::vector<at::Tensor> share_of(const std::vector<at::Tensor>& gradients, int rank, int ranks) {
  std::size_t all = 0;
  for (const at::Tensor& gradient : gradients) all += static_cast<std::size_t>(gradient.numel());
  const Range mine = slice_of(all, ranks, rank);
  std::vector<at::Tensor> share;
  std::size_t at = 0;
  for (const at::Tensor& gradient : gradients) {
    if (at >= mine.begin && at < mine.end) share.push_back(gradient);
    at += static_cast<std::size_t>(gradient.numel());
  }
  return share;
}

/// Scales `scaled` so that the norm of all ranks' `measured` together is at most `limit`; that norm before, the same
/// on all ranks. Collective; 8 bytes. Not the bits of clip_gradients: squares are summed in float64 in another order.
template <class T>
double clip_fast(Communicator<T>& comm, const std::vector<at::Tensor>& measured, const std::vector<at::Tensor>& scaled,
                 double limit) {
  const c10::AutoGradMode no_grad(false);
  double squares = 0.0;
  for (const at::Tensor& gradient : measured) {
    const double norm = gradient_norm(gradient).template item<double>();
    squares += norm * norm;
  }
  all_reduce(comm, std::span<double>(&squares, 1), Sum{});
  const double norm = std::sqrt(squares);
  // Not "factor < 1": a norm that is no number makes all gradients so, as in PyTorch.
  if (const double factor = limit / (norm + 1e-6); !(factor >= 1.0)) {
    for (const at::Tensor& gradient : scaled) gradient.mul_(factor);
  }
  return norm;
}

}  // namespace tandem
