// SPDX-License-Identifier: Apache-2.0
// A data-parallel training step of tandem's Trainer against the same step by PyTorch's own c10d::Reducer over gloo and
// against the step without any communication: one run, by turns, and the weights of both must end equal in every bit.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <iomanip>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "examples/gpt/model.hpp"
#include "harness/statistics.hpp"
#include "harness/team.hpp"
#include "tandem/comm/spawn.hpp"
#include "tandem/tandem.hpp"
#include "tests/support/c10d_oracle.hpp"

namespace tandem::bench {
namespace {

struct Options {
  int ranks = 2;
  int steps = 15;
  int warm_up = 4;  // the second step lays the buckets out anew
  bool pin = false;
  std::vector<std::string> models;
  std::string json;
};

/// A chain of square layers, as in many a recommendation model: the work per parameter is set by the batch alone.
class Mlp : public torch::nn::Module {
 public:
  Mlp(std::int64_t width, std::int64_t layers) {
    for (std::int64_t i = 0; i < layers; ++i) {
      layers_.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(width, width)));
    }
  }
  at::Tensor forward(at::Tensor x) {  // [batch, width]
    for (const auto& layer : layers_) x = at::relu(at::linear(x, layer->weight, layer->bias));
    return x;
  }

 private:
  std::vector<torch::nn::Linear> layers_;
};

/// What a case trains: how the model is made, its loss, its optimizer, its batches.
template <class Module>
struct Job {
  std::string name;
  std::int64_t batch;
  std::function<std::shared_ptr<Module>()> make;
  std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> loss;
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)> optimizer;
  std::function<std::pair<at::Tensor, at::Tensor>()> draw;
};

struct Result {
  std::string peer;
  double median_ms = 0;
  double p99_ms = 0;
  std::uint64_t differing = 0;
};

std::uint64_t differing_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto x = a[i].detach().contiguous().view(at::kInt);
    const auto y = b[i].detach().contiguous().view(at::kInt);
    count += static_cast<std::uint64_t>(x.ne(y).sum().item<std::int64_t>());
  }
  return count;
}

template <class Module>
std::vector<Result> run(Team& team, Communicator<ShmRing>& world, tandem_oracle::GlooGroup& group,
                        const Options& options, const Job<Module>& job) {
  const auto fresh = [&] {
    torch::manual_seed(7);
    return job.make();
  };
  const auto ours = fresh();
  const auto theirs = fresh();
  const auto alone = fresh();
  const auto parameters_of = [](const std::shared_ptr<Module>& module) { return module->parameters(); };

  Trainer<Module, Ddp<>, ShmRing> trainer(world, ours, job.loss,
                                          [&](std::vector<at::Tensor> owned) { return job.optimizer(owned); });
  tandem_oracle::ReducerOracle reducer(group, parameters_of(theirs));
  const auto their_optimizer = job.optimizer(parameters_of(theirs));
  const auto lone_optimizer = job.optimizer(parameters_of(alone));

  torch::manual_seed(100 + static_cast<std::uint64_t>(team.rank()));  // every rank has its own data
  std::vector<std::pair<at::Tensor, at::Tensor>> batches;
  for (int i = 0; i < 3; ++i) batches.push_back(job.draw());

  using Batch = std::pair<at::Tensor, at::Tensor>;
  const auto plain_step = [&](Module& module, torch::optim::Optimizer& optimizer, tandem_oracle::ReducerOracle* reduce,
                              const Batch& batch) {
    if (reduce != nullptr) reduce->before_forward();
    const auto loss = job.loss(module.forward(batch.first), batch.second);
    if (reduce != nullptr) reduce->before_backward();
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
  };
  const std::vector<std::pair<std::string, std::function<void(const Batch&)>>> peers = {
      {"tandem", [&](const Batch& batch) { trainer.step(batch.first, batch.second); }},
      {"c10d", [&](const Batch& batch) { plain_step(*theirs, *their_optimizer, &reducer, batch); }},
      {"alone", [&](const Batch& batch) { plain_step(*alone, *lone_optimizer, nullptr, batch); }},
  };

  using Timer = std::chrono::steady_clock;
  double* const samples = team.samples(team.rank());
  const auto steps = static_cast<std::size_t>(options.steps);
  for (int step = -options.warm_up; step < options.steps; ++step) {
    const Batch& batch = batches[static_cast<std::size_t>(step + options.warm_up) % batches.size()];
    for (std::size_t turn = 0; turn < peers.size(); ++turn) {
      const std::size_t peer =
          (turn + static_cast<std::size_t>(step + options.warm_up)) % peers.size();  // each goes first
      team.align();
      const auto start = Timer::now();
      peers[peer].second(batch);
      const double seconds = std::chrono::duration<double>(Timer::now() - start).count();
      team.align();
      if (step >= 0) samples[peer * steps + static_cast<std::size_t>(step)] = seconds;
    }
  }
  team.tally(team.rank()) = differing_bits(trainer.model().parameters(), parameters_of(theirs));
  team.align();
  std::vector<Result> results;
  for (std::size_t peer = 0; peer < peers.size(); ++peer) {
    std::vector<double> times(steps, 0.0);
    for (int rank = 0; rank < team.ranks(); ++rank) {
      for (std::size_t i = 0; i < steps; ++i) times[i] = std::max(times[i], team.samples(rank)[peer * steps + i]);
    }
    results.push_back({peers[peer].first, median(times) * 1e3, percentile(times, 0.99) * 1e3, 0});
  }
  for (int rank = 0; rank < team.ranks(); ++rank) results[0].differing += team.tally(rank);
  team.align();
  return results;
}

std::unique_ptr<torch::optim::Optimizer> sgd(std::vector<at::Tensor> owned) {
  return std::make_unique<torch::optim::SGD>(std::move(owned), torch::optim::SGDOptions(1e-3));
}
std::unique_ptr<torch::optim::Optimizer> adamw(std::vector<at::Tensor> owned) {
  return std::make_unique<torch::optim::AdamW>(std::move(owned), torch::optim::AdamWOptions(1e-3));
}

Job<Mlp> mlp(std::int64_t width, std::int64_t layers, std::int64_t batch) {
  return {"mlp-" + std::to_string(width) + "x" + std::to_string(layers),
          batch,
          [=] { return std::make_shared<Mlp>(width, layers); },
          [](const at::Tensor& output, const at::Tensor& target) { return at::mse_loss(output, target); },
          sgd,
          [=] {
            return std::pair{torch::randn({batch, width}), torch::randn({batch, width})};
          }};
}

Job<gpt::Gpt> small_gpt(std::int64_t batch) {
  const gpt::Shape shape{65, 64, 128, 4, 4};
  return {
      "gpt-small",
      batch,
      [=] { return std::make_shared<gpt::Gpt>(shape); },
      [](const at::Tensor& output, const at::Tensor& target) { return gpt::loss(output, target); },
      adamw,
      [=] {
        const auto text = torch::randint(shape.vocabulary, {batch, shape.context + 1}, at::kLong);
        return std::pair{text.narrow(1, 0, shape.context).contiguous(), text.narrow(1, 1, shape.context).contiguous()};
      }};
}

/// Every case by the name that --models takes.
template <class F>
void each_job(F&& visit) {
  visit("mlp-16.8M-b16", [] { return mlp(1024, 16, 16); });
  visit("mlp-16.8M-b512", [] { return mlp(1024, 16, 512); });
  visit("mlp-2.1M-b64", [] { return mlp(1024, 2, 64); });
  visit("mlp-1.05M-b1024", [] { return mlp(1024, 1, 1024); });
  visit("mlp-0.01M-b16", [] { return mlp(64, 2, 16); });
  visit("gpt-small-b16", [] { return small_gpt(16); });
}

int rank_main(const Options& options, Team& team, const std::string& store_file) {
  at::set_num_threads(1);
  at::set_num_interop_threads(1);
  tandem_oracle::GlooGroup group(store_file, team.rank(), team.ranks(), std::chrono::minutes(5));
  if (options.pin) team.pin();
  auto world = join<ShmRing>();
  std::ofstream json;
  if (team.rank() == 0 && !options.json.empty()) {
    json.open(options.json);
    if (!json) {
      std::cerr << "step: cannot write " << options.json << '\n';
      return 2;
    }
  }
  std::uint64_t differing = 0;
  each_job([&](const std::string& name, const auto& make_job) {
    if (std::find(options.models.begin(), options.models.end(), name) == options.models.end()) return;
    const auto job = make_job();
    std::int64_t parameters = 0;
    for (const auto& parameter : job.make()->parameters()) parameters += parameter.numel();
    const auto results = run(team, world, group, options, job);
    differing += results[0].differing;
    if (team.rank() != 0) return;
    const double tandem_ms = results[0].median_ms;
    const double alone_ms = results.back().median_ms;
    std::cout << std::fixed << std::setprecision(2) << name << " (" << parameters << " parameters, " << team.ranks()
              << " ranks):";
    for (const auto& result : results) {
      std::cout << "  " << result.peer << ' ' << result.median_ms << " ms";
      nlohmann::ordered_json line;
      line["peer"] = result.peer;
      line["model"] = job.name;
      line["parameters"] = parameters;
      line["batch"] = job.batch;
      line["ranks"] = team.ranks();
      line["median_ms"] = result.median_ms;
      line["p99_ms"] = result.p99_ms;
      line["exposed_ms"] = result.median_ms - alone_ms;
      line["ratio"] = tandem_ms > 0 ? result.median_ms / tandem_ms : 0.0;
      line["weights_differing"] = results[0].differing;
      if (json.is_open()) json << line.dump() << '\n' << std::flush;
    }
    std::cout << "  c10d/tandem " << results[1].median_ms / tandem_ms << "  weights differing " << results[0].differing
              << std::endl;
  });
  if (team.rank() == 0 && differing > 0) std::cerr << "step: " << differing << " weights differ\n";
  return differing > 0 ? 1 : 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  using namespace tandem::bench;
  Options options;
  std::vector<std::string> names;
  each_job([&](const std::string& name, const auto&) { names.push_back(name); });
  CLI::App app{"A data-parallel training step: tandem against c10d::Reducer over gloo, and without communication."};
  app.add_option("--ranks", options.ranks, "ranks, forked by this program")->check(CLI::Range(2, 8));
  app.add_option("--steps", options.steps, "timed steps")->check(CLI::Range(1, 10000));
  app.add_option("--warm-up", options.warm_up, "steps before")->check(CLI::Range(0, 1000));
  app.add_option("--models", options.models, "cases to run; all unless given")
      ->delimiter(',')
      ->check(CLI::IsMember(names));
  app.add_option("--json", options.json, "write one JSON object per line and peer");
  app.add_flag("--pin", options.pin, "bind every rank to a processor");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& fault) {
    return app.exit(fault) == 0 ? 0 : 2;
  }
  if (options.models.empty()) options.models = names;

  Team team(options.ranks);
  const tandem_oracle::StoreFile store;
  return tandem::spawn(options.ranks, [&] {
    team.enter(tandem::identity_from_environment().rank);
    return rank_main(options, team, store.path());
  });
}
