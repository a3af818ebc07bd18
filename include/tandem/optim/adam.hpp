// SPDX-License-Identifier: Apache-2.0
// Adam and AdamW with the bits of PyTorch in Python, or of its C++. Knows no ranks: element by element, so a shard is
// updated as it would be in the whole.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "tandem/tensor/torch.hpp"

namespace tandem {

/// Whose arithmetic. They differ in 1.5 to 2.7 % of weights after 30 steps, for one reason: Python moves the mean by
/// m.lerp_(g, 1 - beta1), libtorch's C++ by m.mul_(beta1).add_(g, 1 - beta1).
namespace numerics {
struct python {};    ///< torch.optim of torch 2.11, the for-loop path (the default on the CPU; foreach equals it)
struct libtorch {};  ///< torch::optim of libtorch 2.11
}  // namespace numerics

/// The defaults are PyTorch's, but for the decay, whose default differs by optimizer.
struct AdamOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  bool amsgrad = false;
};

/// Parameters that share options.
struct AdamGroup {
  std::vector<at::Tensor> parameters;
  AdamOptions options{};
};

/// `decoupled`: decay shrinks the parameters (AdamW), else it is added to the gradients (Adam).
///
/// State per element: mean and mean square of the gradients (and the largest of these with amsgrad), in the parameters'
/// dtype; 8 bytes per float32 parameter that it is given.
template <class Numerics, bool decoupled>
class AdamOptimizer {
  static_assert(std::is_same_v<Numerics, numerics::python> || std::is_same_v<Numerics, numerics::libtorch>,
                "tandem: the arithmetic is numerics::python or numerics::libtorch; name one of them");

 public:
  explicit AdamOptimizer(std::vector<at::Tensor> parameters, AdamOptions options = defaults())
      : AdamOptimizer(std::vector<AdamGroup>{{std::move(parameters), options}}) {}
  explicit AdamOptimizer(std::vector<AdamGroup> groups) : groups_(std::move(groups)) {
    for (const AdamGroup& group : groups_) states_.emplace_back(group.parameters.size());
  }

  /// AdamW decays by 0.01 unless told otherwise, Adam not at all.
  static AdamOptions defaults() {
    AdamOptions options;
    if (decoupled) options.weight_decay = 1e-2;
    return options;
  }

  /// Updates every parameter that has a gradient, in place.
  void step() {
    const c10::AutoGradMode no_grad(false);
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      for (std::size_t i = 0; i < states_[group].size(); ++i) {
        at::Tensor& parameter = groups_[group].parameters[i];
        if (parameter.grad().defined()) update(parameter, states_[group][i], groups_[group].options);
      }
    }
  }
  void zero_grad() {
    for (AdamGroup& group : groups_) {
      for (at::Tensor& parameter : group.parameters) parameter.mutable_grad().reset();
    }
  }

  /// To change options between steps; the lists of parameters stay as they are.
  std::vector<AdamGroup>& groups() noexcept { return groups_; }
  /// Of all groups.
  void set_learning_rate(double rate) noexcept {
    for (AdamGroup& group : groups_) group.options.learning_rate = rate;
  }

 private:
  struct State {
    std::int64_t steps = 0;
    at::Tensor mean;
    at::Tensor square;
    at::Tensor largest;  // of the squares, with amsgrad
  };

  static void update(at::Tensor& parameter, State& state, const AdamOptions& options) {
    at::Tensor gradient = parameter.grad();
    if (state.steps++ == 0) {
      state.mean = zeros_like(parameter);
      state.square = zeros_like(parameter);
      if (options.amsgrad) state.largest = zeros_like(parameter);
    }
    if (options.weight_decay != 0.0) {
      if (decoupled)
        parameter.mul_(1.0 - options.learning_rate * options.weight_decay);
      else
        gradient = gradient.add(parameter, options.weight_decay);
    }
    if constexpr (std::is_same_v<Numerics, numerics::python>)
      state.mean.lerp_(gradient, 1.0 - options.beta1);
    else
      state.mean.mul_(options.beta1).add_(gradient, 1.0 - options.beta1);
    state.square.mul_(options.beta2).addcmul_(gradient, gradient, 1.0 - options.beta2);
    const auto steps = static_cast<double>(state.steps);
    const double step_size = options.learning_rate / (1.0 - std::pow(options.beta1, steps));
    const double correction = std::pow(1.0 - std::pow(options.beta2, steps), 0.5);
    const at::Tensor* square = &state.square;
    if (options.amsgrad) {
      state.largest.copy_(state.largest.maximum(state.square));
      square = &state.largest;
    }
    const at::Tensor denominator = square->sqrt().div(correction).add_(options.epsilon);
    parameter.addcdiv_(state.mean, denominator, -step_size);
  }
  static at::Tensor zeros_like(const at::Tensor& tensor) {
    at::Tensor result = tensor.detach().clone();  // with its strides
    result.zero_();
    return result;
  }

  std::vector<AdamGroup> groups_;
  std::vector<std::vector<State>> states_;
};

/// Adam with decoupled weight decay (Loshchilov and Hutter): torch.optim.AdamW.
template <class Numerics = numerics::python>
using AdamW = AdamOptimizer<Numerics, true>;
/// torch.optim.Adam.
template <class Numerics = numerics::python>
using Adam = AdamOptimizer<Numerics, false>;

}  // namespace tandem
