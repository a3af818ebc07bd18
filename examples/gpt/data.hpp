// SPDX-License-Identifier: Apache-2.0
// Windows of text as tensors. Which windows is schedule.hpp's affair.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <span>
#include <vector>

namespace gpt {

struct Batch {
  at::Tensor tokens;  // [rows, context]
  at::Tensor next;    // [rows, context], the same shifted by one: what the model is to guess
};

/// How many windows of `context` characters, each with the one after it, begin in a text.
inline std::size_t places(std::span<const std::int32_t> text, std::int64_t context) {
  return text.size() - static_cast<std::size_t>(context);
}

/// One window for each of `starts`.
inline Batch windows(std::span<const std::int32_t> text, const std::vector<std::size_t>& starts, std::int64_t context) {
  const auto rows = static_cast<std::int64_t>(starts.size());
  Batch batch{at::empty({rows, context}, at::kLong), at::empty({rows, context}, at::kLong)};
  auto tokens = batch.tokens.accessor<std::int64_t, 2>();
  auto next = batch.next.accessor<std::int64_t, 2>();
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto window = text.subspan(starts[static_cast<std::size_t>(row)], static_cast<std::size_t>(context) + 1);
    for (std::int64_t i = 0; i < context; ++i) {
      tokens[row][i] = window[static_cast<std::size_t>(i)];
      next[row][i] = window[static_cast<std::size_t>(i) + 1];
    }
  }
  return batch;
}

}  // namespace gpt
