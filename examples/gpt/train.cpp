// SPDX-License-Identifier: Apache-2.0
// One rank's training run: by a tandem::Trainer over the other ranks, or alone in plain libtorch; then what is reported
// of it. See train.hpp.
#include "gpt/train.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gpt/data.hpp"
#include "gpt/generate.hpp"
#include "gpt/model.hpp"
#include "gpt/recipe.hpp"
#include "gpt/reference.hpp"
#include "gpt/report.hpp"
#include "gpt/safetensors.hpp"
#include "gpt/schedule.hpp"
#include "tandem/tandem.hpp"
#include "tandem/transport/tcp.hpp"

namespace gpt {
namespace {

constexpr int sample_length = 300;

/// The same weights in every process that is given the same seed.
Gpt build_model(const Options& options, const Corpus& corpus) {
  torch::manual_seed(options.seed);
  const Preset& preset = options.preset;
  return Gpt({corpus.vocabulary.size(), preset.context, preset.width, preset.layers, preset.heads});
}

tandem::AdamW<> adamw(std::vector<at::Tensor> owned) {
  tandem::AdamOptions options;
  options.beta1 = mean_decay;
  options.beta2 = square_decay;
  options.weight_decay = weight_decay;
  return tandem::AdamW<>(std::move(owned), options);
}

/// Down to a tenth of the preset's.
tandem::WarmUpCosine learning_rate(const Options& options) {
  const double peak = options.preset.learning_rate;
  return {.peak = peak, .warm_up = options.steps / 20, .steps = options.steps, .floor = 0.1 * peak};
}

std::optional<double> largest_norm(const Options& options) {
  return options.clip > 0 ? std::optional(options.clip) : std::nullopt;
}

/// Micro-batch `index` of a step.
Batch training_batch(const Options& options, const Corpus& corpus, int step, int index, int rank) {
  const std::size_t choices = places(corpus.training, options.preset.context);
  const std::int64_t number = batch_number(step, options.accumulate, index);
  std::vector<std::size_t> starts;
  for (int row = 0; row < options.preset.batch; ++row) {
    starts.push_back(window_start(options.seed, number, rank, row, choices));
  }
  return windows(corpus.training, starts, options.preset.context);
}

/// The held-out windows of one rank out of `size`, in batches; together the ranks have each window once.
std::vector<Batch> held_out_batches(const Options& options, const Corpus& corpus, int rank, int size) {
  constexpr std::size_t rows = 32;
  const int count = options.preset.held_out_windows;
  const std::size_t choices = places(corpus.held_out, options.preset.context);
  std::vector<std::size_t> starts;
  std::vector<Batch> batches;
  for (int index = rank; index < count; index += size) {
    starts.push_back(spread_start(index, count, choices));
    if (starts.size() < rows && index + size < count) continue;
    batches.push_back(windows(corpus.held_out, starts, options.preset.context));
    starts.clear();
  }
  return batches;
}

struct Losses {
  std::vector<double> of_steps;  // this rank's
  double shown = 0;              // the ranks' mean over the last steps (see Progress)
};

/// Runs all steps. `step(index)` trains once and gives this rank's loss; `mean(x)` averages a number over the ranks.
template <class Step, class Mean>
Losses run_steps(int steps, Progress& progress, Step step, Mean mean) {
  Losses losses;
  double sum = 0;
  int count = 0;
  for (int done = 1; done <= steps; ++done) {
    losses.of_steps.push_back(step(done - 1));
    sum += losses.of_steps.back();
    ++count;
    if (!progress.due(done)) continue;
    losses.shown = mean(sum / count);
    progress.show(done, losses.shown);
    sum = count = 0;
  }
  return losses;
}

std::int64_t tokens_per_step(const Options& options) {
  return std::int64_t{options.ranks} * options.accumulate * options.preset.batch * options.preset.context;
}

void note_speed(const Options& options, const Progress& progress, Report& report) {
  report.seconds = progress.seconds();
  report.tokens_per_second = static_cast<double>(options.steps * tokens_per_step(options)) / report.seconds;
}

/// All weights of a model, in the order in which it names them.
std::vector<float> weights(const Gpt& model) {
  std::vector<float> all;
  for (const at::Tensor& parameter : model.parameters()) {
    const at::Tensor dense = parameter.detach().contiguous();
    all.insert(all.end(), dense.data_ptr<float>(), dense.data_ptr<float>() + dense.numel());
  }
  return all;
}

void write_weights(const std::string& path, const Gpt& model) {
  std::vector<at::Tensor> dense;
  std::vector<NamedWeights> named;
  for (const auto& parameter : model.named_parameters()) {
    const at::Tensor& values = dense.emplace_back(parameter.value().detach().contiguous());
    named.push_back(
        {parameter.key(), values.sizes().vec(), {values.data_ptr<float>(), static_cast<std::size_t>(values.numel())}});
  }
  write_safetensors(path, named);
}

/// `copies` holds the weights of one rank after the other. How many weights have another value, to the bit, on any
/// rank?
std::int64_t count_differing(const std::vector<float>& expected, const std::vector<float>& copies) {
  std::int64_t differing = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    bool same = true;
    for (std::size_t j = i; j < copies.size(); j += expected.size()) {
      same = same && std::memcmp(&copies[j], &expected[i], sizeof(float)) == 0;
    }
    differing += same ? 0 : 1;
  }
  return differing;
}

/// Repeats the run in this process alone, for all ranks.
std::int64_t verify(const Options& options, const Corpus& corpus, const std::vector<float>& weights_of_ranks) {
  std::cout << "verifying: the same training in one process that emulates " << options.ranks
            << (options.ranks == 1 ? " rank" : " ranks") << std::endl;
  Reference reference(build_model(options, corpus), options.ranks, options.accumulate, largest_norm(options));
  const auto rate = learning_rate(options);
  Progress progress(options.steps, tokens_per_step(options), true);
  const auto step = [&](int number) {
    const auto batch = [&](int rank, int index) { return training_batch(options, corpus, number, index, rank); };
    return reference.step(batch, rate.at(number));
  };
  run_steps(options.steps, progress, step, [](double loss) { return loss; });
  return count_differing(weights(reference.model()), weights_of_ranks);
}

/// What remains to be done with a trained model, by rank 0 alone. `weights_of_ranks` is used with --verify only.
void conclude(const Options& options, const Corpus& corpus, Gpt& model, const std::vector<float>& weights_of_ranks,
              Report& report) {
  const std::vector<float> own = weights(model);
  report.parameters = static_cast<std::int64_t>(own.size());
  Sha256 digest;
  digest.update(std::as_bytes(std::span(own)));
  report.weights_sha256 = digest.finish();
  if (!options.weights.empty()) write_weights(options.weights, model);
  report.sample = generate(model, corpus.vocabulary, options.preset.context, sample_length, options.seed);
  if (options.verify) report.weights_differing = verify(options, corpus, weights_of_ranks);
  print(options, report);
  if (!options.json.empty()) write_json(options, report);
}

/// Data-parallel training: the same on every rank.
template <class Strategy, class Transport>
int train_parallel(const Options& options, const Corpus& corpus) {
  tandem::JoinOptions how;
  how.notice = [](const std::string& text) { std::cerr << "train: " << text << std::endl; };
  auto world = tandem::join<Transport>(how);
  tandem::TrainerOptions recipe;
  recipe.clip_norm = largest_norm(options);
  tandem::Trainer<Gpt, Strategy, Transport> trainer{world, build_model(options, corpus), loss, adamw, recipe};

  const int rank = trainer.data().rank(), size = trainer.data().size();
  const auto rate = learning_rate(options);
  const auto mean = [&](double value) {
    tandem::all_reduce(world, std::span(&value, 1), tandem::Avg{});
    return value;
  };
  Report report;
  Progress progress(options.steps, tokens_per_step(options), rank == 0);
  // With one batch to a step this is trainer.step(tokens, next).
  const auto step = [&](int number) {
    double sum = 0;
    for (int index = 0; index < options.accumulate; ++index) {
      const auto [tokens, next] = training_batch(options, corpus, number, index, rank);
      const at::Tensor batch_loss = loss(trainer.forward(tokens), next);
      const auto backward = [&] { trainer.backward(batch_loss / options.accumulate); };
      if (index + 1 < options.accumulate) {
        const auto here_alone = trainer.accumulate();
        backward();
      } else {
        backward();
      }
      sum += batch_loss.template item<double>();
    }
    trainer.template optimizer<tandem::AdamW<>>().set_learning_rate(rate.at(number));
    trainer.update();
    return sum / options.accumulate;
  };
  Losses losses = run_steps(options.steps, progress, step, mean);
  note_speed(options, progress, report);
  tandem::all_reduce(world, std::span(losses.of_steps), tandem::Avg{});
  report.loss = losses.shown;
  report.losses = std::move(losses.of_steps);

  const auto whole = trainer.unshard();  // evaluating and saving are each rank's own affair
  std::array<double, 2> held_out{};      // sum of losses, and of how many windows
  for (const auto& [tokens, next] : held_out_batches(options, corpus, rank, size)) {
    held_out[0] += trainer.evaluate(tokens, next) * static_cast<double>(tokens.size(0));
    held_out[1] += static_cast<double>(tokens.size(0));
  }
  tandem::all_reduce(world, std::span<double>(held_out), tandem::Sum{});
  report.held_out_loss = held_out[0] / held_out[1];

  std::array<std::int64_t, 2> bytes{static_cast<std::int64_t>(trainer.ledger().predicted),
                                    static_cast<std::int64_t>(trainer.ledger().measured)};
  tandem::all_reduce(world, std::span<std::int64_t>(bytes), tandem::Sum{});
  report.bytes_predicted = static_cast<std::uint64_t>(bytes[0]);
  report.bytes_measured = static_cast<std::uint64_t>(bytes[1]);

  std::vector<float> weights_of_ranks;
  if (options.verify) {
    const std::vector<float> own = weights(trainer.model());
    weights_of_ranks.resize(own.size() * static_cast<std::size_t>(size));
    tandem::all_gather(world, std::span(own), std::span(weights_of_ranks));
  }
  // The other ranks may leave: rank 0 calls no collective any more, however long it verifies.
  if (rank == 0) conclude(options, corpus, trainer.model(), weights_of_ranks, report);
  return 0;
}

/// The same training by one process without tandem: what a step costs without it.
int train_single(const Options& options, const Corpus& corpus) {
  Gpt model = build_model(options, corpus);
  const std::vector<at::Tensor> parameters = model.parameters();
  PlainAdamW optimizer(parameters);
  const auto rate = learning_rate(options);
  Report report;
  Progress progress(options.steps, tokens_per_step(options), true);
  const auto step = [&](int number) {
    double sum = 0;
    model.zero_grad();
    for (int index = 0; index < options.accumulate; ++index) {
      const auto [tokens, next] = training_batch(options, corpus, number, index, 0);
      const at::Tensor batch_loss = loss(model.forward(tokens), next);
      (batch_loss / options.accumulate).backward();
      sum += batch_loss.item<double>();
    }
    if (largest_norm(options)) clip(parameters, options.clip);
    optimizer.step(rate.at(number));
    return sum / options.accumulate;
  };
  Losses losses = run_steps(options.steps, progress, step, [](double value) { return value; });
  note_speed(options, progress, report);
  report.loss = losses.shown;
  report.losses = std::move(losses.of_steps);

  const torch::NoGradGuard no_grad;
  double sum = 0;
  for (const auto& [tokens, next] : held_out_batches(options, corpus, 0, 1)) {
    sum += loss(model.forward(tokens), next).item<double>() * static_cast<double>(tokens.size(0));
  }
  report.held_out_loss = sum / options.preset.held_out_windows;
  const torch::AutoGradMode with_grad(true);  // verifying trains again
  conclude(options, corpus, model, weights(model), report);
  return 0;
}

}  // namespace

int train(const Options& options, const Corpus& corpus) {
  // One thread on every rank, and in the process that verifies them: with another number libtorch rounds differently.
  at::set_num_threads(1);
  const auto parallel = [&]<class Strategy>(Strategy) {
    return options.transport == "tcp" ? train_parallel<Strategy, tandem::Tcp>(options, corpus)
                                      : train_parallel<Strategy, tandem::ShmRing>(options, corpus);
  };
  switch (options.strategy) {
    case Strategy::single:
      return train_single(options, corpus);
    case Strategy::ddp:
      return parallel(tandem::Ddp<>{});
    case Strategy::zero1:
      return parallel(tandem::Zero<1>{});
    case Strategy::zero2:
      return parallel(tandem::Zero<2>{});
    case Strategy::zero3:
      return parallel(tandem::Zero<3>{});
    case Strategy::fsdp2:
      return parallel(tandem::Zero<3, tandem::reference::fsdp2>{});
  }
  return 1;
}

}  // namespace gpt
