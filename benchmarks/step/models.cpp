// SPDX-License-Identifier: Apache-2.0
#include "step/models.hpp"

#include <stdexcept>

#include "examples/gpt/model.hpp"

namespace tandem::bench {
namespace {

class SquareLayer final : public Unit {
 public:
  explicit SquareLayer(std::int64_t width) : linear_(register_module("linear", torch::nn::Linear(width, width))) {}
  at::Tensor forward(const at::Tensor& x) override {  // [batch, width], in and out
    return at::relu(at::linear(x, linear_->weight, linear_->bias));
  }

 private:
  torch::nn::Linear linear_;
};

/// A chain of square layers, as in many a recommendation model: the work per parameter is set by the batch alone.
std::shared_ptr<Net> make_chain(std::int64_t width, std::int64_t layers) {
  std::vector<std::shared_ptr<Unit>> units;
  for (std::int64_t i = 0; i < layers; ++i) units.push_back(std::make_shared<SquareLayer>(width));
  return std::make_shared<Net>(std::move(units));
}

template <class Part>
class UnitOf final : public Unit {
 public:
  explicit UnitOf(const gpt::Shape& shape) : part_(register_module("part", std::make_shared<Part>(shape))) {}
  at::Tensor forward(const at::Tensor& x) override { return part_->forward(x); }

 private:
  std::shared_ptr<Part> part_;
};

std::shared_ptr<Net> make_gpt(const gpt::Shape& shape) {
  std::vector<std::shared_ptr<Unit>> units{std::make_shared<UnitOf<gpt::Embeddings>>(shape)};
  for (std::int64_t i = 0; i < shape.layers; ++i) units.push_back(std::make_shared<UnitOf<gpt::Block>>(shape));
  units.push_back(std::make_shared<UnitOf<gpt::Head>>(shape));
  return std::make_shared<Net>(std::move(units));
}

std::unique_ptr<torch::optim::Optimizer> sgd(std::vector<at::Tensor> owned) {
  return std::make_unique<torch::optim::SGD>(std::move(owned), torch::optim::SGDOptions(1e-3));
}
std::unique_ptr<torch::optim::Optimizer> adamw(std::vector<at::Tensor> owned) {
  return std::make_unique<torch::optim::AdamW>(std::move(owned), torch::optim::AdamWOptions(1e-3));
}

Job mlp(std::int64_t width, std::int64_t layers, std::int64_t batch) {
  return {"mlp-" + std::to_string(width) + "x" + std::to_string(layers),
          batch,
          [=] { return make_chain(width, layers); },
          [](const at::Tensor& output, const at::Tensor& target) { return at::mse_loss(output, target); },
          sgd,
          [=] {
            return Batch{torch::randn({batch, width}), torch::randn({batch, width})};
          }};
}

Job small_gpt(std::int64_t batch) {
  const gpt::Shape shape{65, 64, 128, 4, 4};
  return {"gpt-small",
          batch,
          [=] { return make_gpt(shape); },
          [](const at::Tensor& output, const at::Tensor& target) { return gpt::loss(output, target); },
          adamw,
          [=] {
            const auto text = torch::randint(shape.vocabulary, {batch, shape.context + 1}, at::kLong);
            return Batch{text.narrow(1, 0, shape.context).contiguous(), text.narrow(1, 1, shape.context).contiguous()};
          }};
}

struct NamedJob {
  const char* name;
  Job (*make)();
};
constexpr NamedJob jobs[] = {
    {"mlp-16.8M-b16", [] { return mlp(1024, 16, 16); }}, {"mlp-16.8M-b512", [] { return mlp(1024, 16, 512); }},
    {"mlp-2.1M-b64", [] { return mlp(1024, 2, 64); }},   {"mlp-1.05M-b1024", [] { return mlp(1024, 1, 1024); }},
    {"mlp-0.01M-b16", [] { return mlp(64, 2, 16); }},    {"gpt-small-b16", [] { return small_gpt(16); }},
};

}  // namespace

std::vector<std::string> job_names() {
  std::vector<std::string> names;
  for (const NamedJob& job : jobs) names.emplace_back(job.name);
  return names;
}

Job job_named(const std::string& name) {
  for (const NamedJob& job : jobs) {
    if (job.name == name) return job.make();
  }
  throw std::invalid_argument("step: no model is called " + name);
}

Job chain_with_adamw(std::int64_t width, std::int64_t layers, std::int64_t batch) {
  Job job = mlp(width, layers, batch);
  job.optimizer = adamw;
  return job;
}

}  // namespace tandem::bench
