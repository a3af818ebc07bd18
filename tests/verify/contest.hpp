// SPDX-License-Identifier: Apache-2.0
// One mode of training against PyTorch's own C++ (c10d::Reducer over gloo), in the same processes on the same batches:
// how many losses and weights differ, what was moved, what memory it took.
#pragma once

#include <torch/torch.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "examples/gpt/model.hpp"
#include "support/c10d_oracle.hpp"
#include "support/torch_training.hpp"
#include "tandem/tandem.hpp"
#include "verify/peak_memory.hpp"

namespace tandem::verify {

/// What a mode asks of both sides.
struct Terms {
  int steps = 20;
  int micro_batches = 1;
  double clip_norm = 0.7;  // at 0.5 and 1.0 a wrong formula would not show
  TrainerOptions ours{};
  tandem_oracle::ReducerOptions theirs{};
};

/// Of all ranks together, but for the peak: that of the rank with the largest.
struct Outcome {
  std::int64_t losses_differing = 0;
  std::int64_t weights_differing = 0;
  std::int64_t weights = 0;
  std::int64_t bytes_predicted = 0;
  std::int64_t bytes_measured = 0;
  std::int64_t peak_bytes = 0;
};

inline constexpr gpt::Shape shape{65, 32, 128, 4, 4};  // vocabulary, context, width, layers, heads
inline constexpr std::int64_t rows = 4;

inline gpt::Gpt model() {
  torch::manual_seed(7);
  return gpt::Gpt(shape);
}
inline torch::optim::AdamW optimizer(std::vector<at::Tensor> owned) {
  return torch::optim::AdamW(std::move(owned), torch::optim::AdamWOptions(1e-3).weight_decay(0.01));
}
/// Tokens and what follows them: the same for both sides, others for every rank and number.
inline std::pair<at::Tensor, at::Tensor> batch(int rank, int number) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(1000 * rank + number + 1));
  const at::Tensor text = at::randint(0, shape.vocabulary, {rows, shape.context + 1}, generator, at::kLong);
  return {text.narrow(1, 0, shape.context).contiguous(), text.narrow(1, 1, shape.context).contiguous()};
}

/// Calls backward(loss / K, is it the last?) for each micro-batch of a step; the losses before.
template <class Forward, class Backward>
std::vector<double> micro_batches(const Terms& terms, int rank, int step, Forward forward, Backward backward) {
  std::vector<double> losses;
  for (int k = 0; k < terms.micro_batches; ++k) {
    const auto [tokens, next] = batch(rank, step * terms.micro_batches + k);
    const at::Tensor loss = gpt::loss(forward(tokens, k), next);
    losses.push_back(loss.item<double>());
    backward(terms.micro_batches == 1 ? loss : loss / terms.micro_batches, k);
  }
  return losses;
}

/// All losses of a training by c10d::Reducer, and its weights.
inline std::pair<std::vector<double>, std::vector<at::Tensor>> by_reducer(const Terms& terms, const std::string& store,
                                                                          int rank, int ranks) {
  const tandem_oracle::GlooGroup group(store, rank, ranks, std::chrono::minutes(5));
  gpt::Gpt peer = model();
  const std::vector<at::Tensor> parameters = peer.parameters();
  tandem_oracle::ReducerOracle reducer(group, parameters, terms.theirs);
  auto steps = optimizer(parameters);
  std::vector<double> losses;
  for (int step = 0; step < terms.steps; ++step) {
    const auto is_last = [&](int k) { return k + 1 == terms.micro_batches; };
    const auto some = micro_batches(
        terms, rank, step,
        [&](const at::Tensor& tokens, int k) {
          if (is_last(k)) reducer.before_forward();
          return peer.forward(tokens);
        },
        [&](const at::Tensor& loss, int k) {
          if (is_last(k)) reducer.before_backward(loss);
          loss.backward();
          if (is_last(k)) reducer.after_backward();
        });
    losses.insert(losses.end(), some.begin(), some.end());
    test::clip_like_python(parameters, terms.clip_norm);
    steps.step();
    steps.zero_grad();
  }
  group.group()->barrier()->wait();
  return {losses, parameters};
}

/// Collective over `ranks` processes; the same on all of them.
template <class Strategy, class T>
Outcome compete(const Terms& terms, const std::string& store, int ranks) {
  at::set_num_threads(1);
  auto world = join<T>();
  TrainerOptions options = terms.ours;
  options.clip_norm = terms.clip_norm;
  Trainer<gpt::Gpt, Strategy, T> trainer{world, model(), gpt::loss, optimizer, options};
  std::vector<double> losses;
  for (int step = 0; step < terms.steps; ++step) {
    const auto some = micro_batches(
        terms, world.rank(), step, [&](const at::Tensor& tokens, int) { return trainer.forward(tokens); },
        [&](const at::Tensor& loss, int k) {
          if (k + 1 == terms.micro_batches) return trainer.backward(loss);
          const auto locally = trainer.accumulate();
          trainer.backward(loss);
        });
    losses.insert(losses.end(), some.begin(), some.end());
    trainer.update();
  }
  Outcome outcome;
  outcome.peak_bytes = static_cast<std::int64_t>(peak_resident_bytes());
  outcome.bytes_predicted = static_cast<std::int64_t>(trainer.ledger().predicted);
  outcome.bytes_measured = static_cast<std::int64_t>(trainer.ledger().measured);

  const auto [their_losses, their_weights] = by_reducer(terms, store, world.rank(), ranks);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    outcome.losses_differing +=
        std::bit_cast<std::uint64_t>(losses[i]) != std::bit_cast<std::uint64_t>(their_losses[i]) ? 1 : 0;
  }
  const auto whole = trainer.unshard();
  outcome.weights_differing = test::differing(trainer.model().parameters(), their_weights);
  for (const at::Tensor& weight : their_weights) outcome.weights += weight.numel();

  all_reduce(world, std::span<std::int64_t>(&outcome.peak_bytes, 1), Max{});
  for (std::int64_t* sum : {&outcome.losses_differing, &outcome.weights_differing, &outcome.weights,
                            &outcome.bytes_predicted, &outcome.bytes_measured}) {
    all_reduce(world, std::span<std::int64_t>(sum, 1), Sum{});
  }
  return outcome;
}

}  // namespace tandem::verify
