// SPDX-License-Identifier: Apache-2.0
// What is done to averaged gradients before an optimizer sees them, element by element: so a shard is treated as it
// would be in the whole.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "tandem/collective/all_reduce.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/reduce/functor.hpp"
#include "tandem/strategy/parameter.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem::detail {

/// torch.nn.utils.clip_grad_value_.
inline void clip_values(const std::vector<OwnedParameter>& owned, double limit) {
  const c10::AutoGradMode no_grad(false);
  for (const OwnedParameter& parameter : owned) {
    if (parameter.value.grad().defined()) parameter.value.grad().clamp_(-limit, limit);
  }
}

/// Is every element of all ranks' gradients a finite number? Collective, the same answer on all ranks; one byte.
template <class T>
bool all_finite(Communicator<T>& comm, const std::vector<OwnedParameter>& owned) {
  const c10::AutoGradMode no_grad(false);
  std::uint8_t found = 0;
  for (const OwnedParameter& parameter : owned) {
    const at::Tensor& gradient = parameter.value.grad();
    if (found != 0 || !gradient.defined() || gradient.numel() == 0) continue;
    // The largest magnitude, in one pass without a copy; by ATen, which our users' -ffast-math does not touch.
    const at::Tensor largest = at::_ops::linalg_vector_norm::call(gradient, std::numeric_limits<double>::infinity(),
                                                                  std::nullopt, false, std::nullopt);
    found = largest.sub(largest).eq(0).template item<bool>() ? 0 : 1;  // infinite or no number: the difference is none
  }
  all_reduce(comm, std::span<std::uint8_t>(&found, 1), Max{});
  return found == 0;
}

}  // namespace tandem::detail
