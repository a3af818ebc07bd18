// SPDX-License-Identifier: Apache-2.0
// Adam and AdamW against libtorch's own, and by Python's formula; shards against the whole; learning rates.
#include <torch/torch.h>

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "support/torch_training.hpp"
#include "tandem/optim/adam.hpp"
#include "tandem/optim/schedule.hpp"

namespace {

using namespace tandem;
using test::differing;

at::Tensor values(int number, at::IntArrayRef sizes) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(number + 1));
  return at::randn(sizes, generator);
}
std::vector<at::Tensor> parameters() {
  std::vector<at::Tensor> list{values(0, {37, 11}), values(1, {1003}), values(2, {11, 37}).t()};
  for (at::Tensor& it : list) it.set_requires_grad(true);
  return list;
}
void give_gradients(const std::vector<at::Tensor>& list, int step) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    at::Tensor parameter = list[i];
    parameter.mutable_grad() = values(100 * (step + 1) + static_cast<int>(i), parameter.sizes()) * std::pow(0.1, i);
  }
}

constexpr int steps = 30;

template <class Ours, class Theirs>
std::int64_t against(Ours&& ours_of, Theirs&& theirs_of) {
  const auto a = parameters(), b = parameters();
  auto ours = ours_of(a);
  auto theirs = theirs_of(b);
  for (int step = 0; step < steps; ++step) {
    give_gradients(a, step);
    give_gradients(b, step);
    ours.step();
    theirs.step();
  }
  return differing(a, b);
}

/// torch/optim/adam.py, _single_tensor_adam, written down once more in functional form.
class PythonAdam {
 public:
  PythonAdam(std::vector<at::Tensor> list, AdamOptions options, bool decoupled)
      : list_(std::move(list)), options_(options), decoupled_(decoupled) {
    for (const at::Tensor& it : list_) {
      mean_.push_back(at::zeros_like(it));
      square_.push_back(at::zeros_like(it));
      largest_.push_back(at::zeros_like(it));
    }
  }
  void step() {
    torch::NoGradGuard no_grad;
    ++t_;
    for (std::size_t i = 0; i < list_.size(); ++i) {
      at::Tensor g = list_[i].grad();
      const double lr = options_.learning_rate, decay = options_.weight_decay;
      if (decay != 0 && decoupled_) list_[i].copy_(list_[i] * (1 - lr * decay));
      if (decay != 0 && !decoupled_) g = at::add(g, list_[i], decay);
      mean_[i] = at::lerp(mean_[i], g, 1 - options_.beta1);
      square_[i] = at::addcmul(square_[i] * options_.beta2, g, g, 1 - options_.beta2);
      largest_[i] = at::maximum(largest_[i], square_[i]);
      const double first = 1 - std::pow(options_.beta1, t_), second = 1 - std::pow(options_.beta2, t_);
      const at::Tensor root = at::sqrt(options_.amsgrad ? largest_[i] : square_[i]);
      const at::Tensor denominator = root / std::pow(second, 0.5) + options_.epsilon;
      list_[i].copy_(at::addcdiv(list_[i], mean_[i], denominator, -(lr / first)));
    }
  }

 private:
  std::vector<at::Tensor> list_, mean_, square_, largest_;
  AdamOptions options_;
  bool decoupled_;
  double t_ = 0;
};

}  // namespace

TEST_CASE("with libtorch's arithmetic: no bit differs from torch::optim") {
  torch::set_num_threads(1);
  for (const bool amsgrad : {false, true}) {
    for (const double decay : {0.0, 0.1}) {
      const AdamOptions options{.learning_rate = 2e-3, .beta1 = 0.8, .weight_decay = decay, .amsgrad = amsgrad};
      CHECK(against([&](const auto& list) { return AdamW<numerics::libtorch>(list, options); },
                    [&](const auto& list) {
                      return torch::optim::AdamW(
                          list,
                          torch::optim::AdamWOptions(2e-3).betas({0.8, 0.999}).weight_decay(decay).amsgrad(amsgrad));
                    }) == 0);
      CHECK(against([&](const auto& list) { return Adam<numerics::libtorch>(list, options); },
                    [&](const auto& list) {
                      return torch::optim::Adam(
                          list,
                          torch::optim::AdamOptions(2e-3).betas({0.8, 0.999}).weight_decay(decay).amsgrad(amsgrad));
                    }) == 0);
    }
  }
}

TEST_CASE("with Python's arithmetic: its formula's bits, which are not those of C++") {
  torch::set_num_threads(1);
  for (const bool amsgrad : {false, true}) {
    const AdamOptions options{.learning_rate = 2e-3, .weight_decay = 0.1, .amsgrad = amsgrad};
    CHECK(against([&](const auto& list) { return AdamW<>(list, options); },
                  [&](const auto& list) { return PythonAdam(list, options, true); }) == 0);
    CHECK(against([&](const auto& list) { return Adam<>(list, options); },
                  [&](const auto& list) { return PythonAdam(list, options, false); }) == 0);
    CHECK(against([&](const auto& list) { return AdamW<>(list, options); },
                  [&](const auto& list) { return AdamW<numerics::libtorch>(list, options); }) > 0);
  }
}

TEST_CASE("parts are updated as the whole is, and a parameter without a gradient stays") {
  const auto whole = parameters();
  at::Tensor flat = whole[1].detach().clone();
  std::vector<at::Tensor> parts{flat.narrow(0, 0, 301), flat.narrow(0, 301, 1), flat.narrow(0, 302, 701)};
  AdamW<> one(whole);
  AdamW<> cut(parts);
  for (int step = 0; step < steps; ++step) {
    give_gradients(whole, step);
    const at::Tensor gradient = whole[1].grad();
    std::int64_t at = 0;
    for (at::Tensor& part : parts) {
      part.mutable_grad() = gradient.narrow(0, at, part.numel());
      at += part.numel();
    }
    one.step();
    cut.step();
  }
  CHECK(differing(whole[1], flat) == 0);
  const at::Tensor before = whole[0].detach().clone();
  one.zero_grad();
  one.step();
  CHECK(differing(whole[0], before) == 0);
}

TEST_CASE("groups have options of their own, which may change from step to step") {
  auto a = parameters();
  AdamW<> grouped({{{a[0]}, {.learning_rate = 1e-2}}, {{a[1], a[2]}, {.learning_rate = 1e-3, .weight_decay = 0.5}}});
  auto b = parameters();
  AdamW<> first({b[0]}, {.learning_rate = 1e-2});
  AdamW<> rest({b[1], b[2]}, {.learning_rate = 1e-3, .weight_decay = 0.5});
  for (int step = 0; step < 4; ++step) {
    give_gradients(a, step);
    give_gradients(b, step);
    if (step == 2) {
      grouped.set_learning_rate(5e-3);
      first.set_learning_rate(5e-3);
      rest.set_learning_rate(5e-3);
    }
    grouped.step();
    first.step();
    rest.step();
  }
  CHECK(differing(a, b) == 0);
}

TEST_CASE("learning rates") {
  const WarmUpCosine cosine{.peak = 1.0, .warm_up = 4, .steps = 104, .floor = 0.1};
  CHECK(cosine.at(0) == 0.25);
  CHECK(cosine.at(3) == 1.0);
  CHECK(cosine.at(4) == 1.0);
  CHECK(cosine.at(54) == doctest::Approx(0.55));
  CHECK(cosine.at(104) == doctest::Approx(0.1));
  CHECK(cosine.at(1000) == cosine.at(104));
  for (int step = 4; step < 104; ++step) CHECK(cosine.at(step + 1) < cosine.at(step));
  CHECK(WarmUpCosine{.peak = 2e-3, .warm_up = 0, .steps = 1}.at(0) == 2e-3);  // a run of one step has a rate
  CHECK(WarmUpCosine{.peak = 2e-3, .warm_up = 1, .steps = 1}.at(0) == 2e-3);
  const WarmUpLinear linear{.peak = 1.0, .warm_up = 0, .steps = 10};
  CHECK(linear.at(0) == 1.0);
  CHECK(linear.at(5) == doctest::Approx(0.5));
  CHECK(linear.at(10) == 0.0);
  const StepDecay decay{.start = 0.8, .every = 3, .factor = 0.5};
  CHECK(decay.at(2) == 0.8);
  CHECK(decay.at(3) == 0.4);
  CHECK(decay.at(6) == 0.2);
  // As StepLR, which multiplies the last rate: 0.001 * pow(0.1, 2) has other bits.
  const StepDecay tenths{.start = 1e-3, .every = 2, .factor = 0.1};
  double expected = 1e-3;
  for (int step = 0; step < 20; step += 2, expected *= 0.1) {
    CHECK(tenths.at(step) == expected);
    CHECK(tenths.at(step + 1) == expected);
  }
  CHECK(StepDecay{}.at(2) != 1e-3 * std::pow(0.1, 2));
}
