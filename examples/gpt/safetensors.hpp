// SPDX-License-Identifier: Apache-2.0
// Trained weights as a file that others can read: https://huggingface.co/docs/safetensors. Knows nothing of tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace gpt {

struct NamedWeights {
  std::string name;
  std::vector<std::int64_t> shape;
  std::span<const float> values;  ///< as many as the shape says, the last dimension's neighbours beside each other
};

/// A file of that name has all the weights, or is what it was before. Throws InputError when it cannot be written.
void write_safetensors(const std::string& path, const std::vector<NamedWeights>& weights);

}  // namespace gpt
