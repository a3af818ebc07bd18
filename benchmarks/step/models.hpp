// SPDX-License-Identifier: Apache-2.0
// What the step benchmark trains: models behind one type, each with its loss, its optimizer and its batches. Knows no
// ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

namespace tandem::bench {

/// One type for all units and one for all models, so that a Trainer is compiled once for each strategy.
class Unit : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& input) = 0;
};

/// Its units one after another.
class Net final : public torch::nn::Module {
 public:
  explicit Net(std::vector<std::shared_ptr<Unit>> units) : units_(std::move(units)) {
    for (std::size_t i = 0; i < units_.size(); ++i) register_module("unit" + std::to_string(i), units_[i]);
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& unit : units_) x = unit->forward(x);
    return x;
  }
  template <class F>
  void visit_units(F f) {
    for (const auto& unit : units_) f(*unit);
  }

 private:
  std::vector<std::shared_ptr<Unit>> units_;
};

using Batch = std::pair<at::Tensor, at::Tensor>;  // input and target

struct Job {
  std::string name;
  std::int64_t batch = 0;
  std::function<std::shared_ptr<Net>()> make;
  std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> loss;
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)> optimizer;
  std::function<Batch()> draw;
};

/// By the names that --models takes.
std::vector<std::string> job_names();
Job job_named(const std::string& name);

/// A chain of square layers with AdamW.
Job chain_with_adamw(std::int64_t width, std::int64_t layers, std::int64_t batch);

}  // namespace tandem::bench
