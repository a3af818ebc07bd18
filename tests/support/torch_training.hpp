// SPDX-License-Identifier: Apache-2.0
// What the tests below the waterline share: bit comparison of tensors, and a small model whose gradients arrive in an
// order of their own. Layers call at::linear: torch::nn::Linear takes another path than Python for some shapes.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace tandem::test {

/// Elements whose bits differ; all of them when shapes or dtypes do.
inline std::int64_t differing(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return -1;
  if (!a.defined()) return 0;
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return std::max(a.numel(), b.numel());
  const at::Tensor left = a.detach().contiguous();
  const at::Tensor right = b.detach().contiguous();
  const auto size = static_cast<std::size_t>(left.element_size());
  const auto* const x = static_cast<const char*>(left.data_ptr());
  const auto* const y = static_cast<const char*>(right.data_ptr());
  std::int64_t count = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(left.numel()); ++i) {
    count += std::memcmp(x + i * size, y + i * size, size) != 0 ? 1 : 0;
  }
  return count;
}
inline std::int64_t differing(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return -1;
  std::int64_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += std::abs(differing(a[i], b[i]));
  return count;
}

inline std::vector<at::Tensor> gradients(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> result;
  for (const auto& parameter : parameters) result.push_back(parameter.grad());
  return result;
}

/// 803,700 parameters. With the default caps the first bucket ends with late.weight, at 1,051,600 bytes: 3,024 bytes
/// over the cap, so that another cap gives other buckets.
struct WordNet : torch::nn::Module {
  torch::nn::Embedding embedding{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear in{nullptr}, middle{nullptr}, late{nullptr}, out{nullptr};

  explicit WordNet(std::uint64_t seed = 7) {
    torch::manual_seed(seed);
    // Not in the order of use: gradients then arrive in no order that could be guessed from the registration.
    middle = register_module("middle", torch::nn::Linear(700, 700));
    out = register_module("out", torch::nn::Linear(350, 50));
    embedding = register_module("embedding", torch::nn::Embedding(50, 64));
    late = register_module("late", torch::nn::Linear(700, 350));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({700})));
    in = register_module("in", torch::nn::Linear(64, 700));
  }
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = norm(apply(in, embedding(tokens)));
    x = torch::tanh(apply(middle, torch::gelu(x)));
    return apply(out, apply(late, x));  // [batch, length, 50]
  }
  static at::Tensor apply(torch::nn::Linear& layer, const at::Tensor& x) {
    return at::linear(x, layer->weight, layer->bias);
  }
};

/// Batch `number` of `rank`: the same for both sides of a comparison, another for every rank and step.
struct Batch {
  at::Tensor tokens, target;
  Batch(int rank, int number) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(100 * rank + number));
    tokens = at::randint(0, 50, {4, 9}, generator, at::kLong);
    target = at::randint(0, 50, {4, 9}, generator, at::kLong);
  }
};

inline at::Tensor word_loss(const at::Tensor& output, const at::Tensor& target) {
  return at::cross_entropy_loss(output.flatten(0, 1), target.flatten());
}

/// clip_grad_norm_ of Python's torch, written out a second time.
inline void clip_like_python(const std::vector<at::Tensor>& parameters, double max_norm) {
  torch::NoGradGuard no_grad;
  std::vector<at::Tensor> norms;
  for (const auto& parameter : parameters) {
    if (parameter.grad().defined()) norms.push_back(at::linalg_vector_norm(parameter.grad(), 2.0));
  }
  const at::Tensor total = at::linalg_vector_norm(at::stack(norms), 2.0);
  const at::Tensor factor = at::clamp((total + 1e-6).reciprocal() * max_norm, std::nullopt, 1.0);
  for (const auto& parameter : parameters) {
    if (parameter.grad().defined()) parameter.grad().mul_(factor);
  }
}

}  // namespace tandem::test
