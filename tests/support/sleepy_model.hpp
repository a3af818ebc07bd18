// SPDX-License-Identifier: Apache-2.0
// A model whose backward sleeps at random, on every rank at other moments.
#pragma once

#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "support/free_model.hpp"

namespace tandem::test {

/// Twelve layers of mixed size for inputs of 16 columns, whose hooks sleep for random times, from seeds that differ by
/// rank: they come before the Trainer's, so a rank begins and polls reductions at moments that no other does.
inline Free sleepy(int rank, bool sleeps) {
  Free model{{}, [](const auto& p, const at::Tensor& x) {
               at::Tensor y = x;
               for (std::size_t i = 0; i + 1 < p.size(); i += 2) y = at::tanh(at::linear(y, p[i], p[i + 1]));
               return y.mean();
             }};
  std::int64_t width = 16;
  for (int i = 0; i < 12; ++i) {
    const std::int64_t next = i % 3 == 0 ? 64 : i % 3 == 1 ? 7 : 16;
    model.parameters.emplace_back("weight" + std::to_string(i), parameter(rank + i, {next, width}));
    model.parameters.emplace_back("bias" + std::to_string(i), parameter(rank + i, {next}));
    width = next;
  }
  if (!sleeps) return model;
  const auto random = std::make_shared<std::minstd_rand>(static_cast<unsigned>(1 + rank));
  for (const auto& it : model.parameters) {
    it.second.register_hook([random](const at::Tensor& gradient) {
      const auto draw = (*random)() % 8;
      if (draw < 3) std::this_thread::sleep_for(std::chrono::microseconds(150 * draw));
      return gradient;
    });
  }
  return model;
}

}  // namespace tandem::test
