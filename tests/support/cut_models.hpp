// SPDX-License-Identifier: Apache-2.0
// Parts of models that are cut in units. Layers call at::linear: torch::nn::Linear takes another path than Python for
// some shapes.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace tandem::test {

struct Affine : torch::nn::Module {
  at::Tensor weight, bias;
  Affine(std::int64_t in, std::int64_t out) {
    const torch::nn::Linear made(in, out);
    weight = register_parameter("weight", made->weight.detach().clone());
    bias = register_parameter("bias", made->bias.detach().clone());
  }
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight, bias); }
};
struct Squash : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return torch::tanh(x); }
};
/// Its parameter is a number.
struct Scale : torch::nn::Module {
  at::Tensor factor = register_parameter("factor", at::full({}, 1.5));
  at::Tensor forward(const at::Tensor& x) { return x * factor; }
};

}  // namespace tandem::test
