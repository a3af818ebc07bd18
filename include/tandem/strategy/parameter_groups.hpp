// SPDX-License-Identifier: Apache-2.0
// Parameter groups for optimizer recipes: by names and whole shapes, which shards keep. Knows no optimizer.
#pragma once

#include <vector>

#include "tandem/strategy/parameter.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem {

/// Parameters in two lists, each in registration order and each possibly empty on a rank.
struct ParameterGroups {
  std::vector<at::Tensor> chosen;
  std::vector<at::Tensor> others;
};

/// Those for which `choose(const OwnedParameter&)` is true, and the others.
template <class F>
ParameterGroups group_parameters(const std::vector<OwnedParameter>& owned, F choose) {
  ParameterGroups groups;
  for (const OwnedParameter& parameter : owned) {
    (choose(parameter) ? groups.chosen : groups.others).push_back(parameter.value);
  }
  return groups;
}

/// Is it a matrix or larger? Weight decay is usual for these only: biases and the weights of norms have one dimension.
inline bool is_matrix(const OwnedParameter& parameter) { return parameter.full_shape.size() >= 2; }

}  // namespace tandem
