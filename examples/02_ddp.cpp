// SPDX-License-Identifier: Apache-2.0
// Data-parallel training: two processes fit one network to a sine, each on its own batches, and hold the same weights.
#include <torch/torch.h>

#include <cstdio>
#include <iostream>
#include <numbers>
#include <string>
#include <vector>

#include "tandem/tandem.hpp"

struct Net : torch::nn::Module {
  torch::nn::Linear hidden{register_module("hidden", torch::nn::Linear(1, 32))};
  torch::nn::Linear output{register_module("output", torch::nn::Linear(32, 1))};

  at::Tensor forward(const at::Tensor& x) { return output(at::tanh(hidden(x))); }
};

int fit() {
  auto world = tandem::join<tandem::ShmRing>();
  auto loss = [](const at::Tensor& output, const at::Tensor& target) { return at::mse_loss(output, target); };
  auto adamw = [](std::vector<at::Tensor> owned) { return torch::optim::AdamW(owned, 1e-2); };

  // Wherever the weights start, all ranks start with those of rank 0.
  tandem::Trainer<Net, tandem::Ddp<>, tandem::ShmRing> trainer{world, Net{}, loss, adamw};

  // Each rank draws points of its own: the batch of a step is that of all ranks together.
  torch::manual_seed(100 + trainer.data().rank());
  double first = 0, last = 0;
  for (int step = 0; step < 400; ++step) {
    const at::Tensor x = (torch::rand({64, 1}) * 2 - 1) * std::numbers::pi;
    last = trainer.step(x, at::sin(x));
    if (step == 0) first = last;
  }
  if (trainer.data().rank() == 0) {
    std::printf("mean squared error %.4f, then %.4f; %llu bytes moved, as predicted\n", first, last,
                static_cast<unsigned long long>(trainer.ledger().measured));
  }

  // The ranks agree to the last bit, as they do after every step.
  at::Tensor highest = trainer.model().hidden->weight.detach().clone(), lowest = highest.clone();
  tandem::all_reduce(world, highest, tandem::Max{});
  tandem::all_reduce(world, lowest, tandem::Min{});
  return last < first / 20 && at::equal(highest, lowest) && trainer.ledger().balanced() ? 0 : 1;
}

int main() {
  return tandem::spawn(2, fit, {.notice = [](const std::string& text) { std::cerr << text << std::endl; }});
}
