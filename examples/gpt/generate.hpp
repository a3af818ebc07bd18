// SPDX-License-Identifier: Apache-2.0
// Lets a trained model write, one character after the other.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gpt/model.hpp"
#include "gpt/text.hpp"

namespace gpt {

/// `count` characters, drawn from the model's own predictions. A temperature below 1 prefers what it is sure of.
inline std::string generate(Gpt& model, const Vocabulary& vocabulary, std::int64_t context, int count,
                            std::uint64_t seed) {
  constexpr double temperature = 0.8;
  const torch::NoGradGuard no_grad;
  auto random = torch::make_generator<at::CPUGeneratorImpl>(seed);
  std::vector<std::int64_t> numbers{0};  // the lowest character, a line break in most texts, stands for "begin"
  while (static_cast<int>(numbers.size()) <= count) {
    const auto length = std::min(static_cast<std::int64_t>(numbers.size()), context);
    const at::Tensor seen =
        at::tensor(at::ArrayRef(numbers).slice(numbers.size() - static_cast<std::size_t>(length)), at::kLong);
    const at::Tensor logits = model.forward(seen.unsqueeze(0)).select(1, length - 1);  // [1, vocabulary]
    numbers.push_back(at::multinomial(at::softmax(logits / temperature, 1), 1, false, random).item<std::int64_t>());
  }
  return vocabulary.decode(std::span(numbers).subspan(1));
}

}  // namespace gpt
