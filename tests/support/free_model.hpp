// SPDX-License-Identifier: Apache-2.0
// A model of any parameters and any forward, and data for it that differ by rank and step.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tandem::test {

using Parameters = std::vector<std::pair<std::string, at::Tensor>>;

/// A model of free parameters and a free forward: duck-typed, no torch::nn::Module.
struct Free {
  Parameters parameters;
  std::function<at::Tensor(const std::vector<at::Tensor>&, const at::Tensor&)> compute;
  Parameters buffers{};

  const Parameters& named_parameters() const { return parameters; }
  const Parameters& named_buffers() const { return buffers; }
  at::Tensor forward(const at::Tensor& x) const {
    std::vector<at::Tensor> values;
    for (const auto& [name, value] : parameters) values.push_back(value);
    return compute(values, x);
  }
};

inline at::Tensor mean_loss(const at::Tensor& output, const at::Tensor&) { return output.to(at::kDouble).mean(); }

inline std::unique_ptr<torch::optim::Optimizer> sgd(const std::vector<at::Tensor>& parameters) {
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
}

inline at::Tensor input_of(int rank, int step, at::IntArrayRef sizes) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(1000 * rank + step + 1));
  return at::randn(sizes, generator);
}

/// A parameter with numbers that differ by element and by rank, so that only a real broadcast makes them equal.
inline at::Tensor parameter(int rank, at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  return input_of(rank, 500 + static_cast<int>(c10::multiply_integers(sizes)), sizes).to(type).set_requires_grad(true);
}

}  // namespace tandem::test
