// SPDX-License-Identifier: Apache-2.0
// A model that runs as a row of units, each from one tensor to the next: where a strategy may cut it. Knows no
// strategy.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tandem/tensor/torch.hpp"

namespace tandem {

namespace detail {

/// torch::nn::Sequential, without being named: a row of holders of modules.
template <class M>
concept RowOfModules = requires(M& model, const at::Tensor& x) {
  { (*model.begin()).forward(x) } -> std::convertible_to<at::Tensor>;
  (*model.begin()).ptr()->named_parameters();
  { model.begin() != model.end() } -> std::convertible_to<bool>;
};

struct AnyVisitor {
  template <class U>
  void operator()(U&) const {}
};

}  // namespace detail

/// Has model.visit_units(f), which calls f(unit) for each unit in the order in which data runs through them, each with
/// forward(tensor) and named_parameters(); or is a torch::nn::Sequential. Its own forward() is theirs one after
/// another.
template <class M>
concept CutInUnits = detail::RowOfModules<M> || requires(M& model) {
  model.visit_units(detail::AnyVisitor{});
};

/// f(unit, its module) for each unit. The unit has forward(tensor), the module named_parameters().
template <CutInUnits M, class F>
void visit_units(M& model, F f) {
  if constexpr (requires { model.visit_units(detail::AnyVisitor{}); }) {
    model.visit_units([&](auto& unit) { f(unit, unit); });
  } else {
    for (auto& unit : model) f(unit, *unit.ptr());
  }
}

/// A model cut in its type: each part has forward(tensor) and named_parameters(), and the model runs them one after
/// another. Parameters are called "0.weight", "1.bias", ..., as in torch::nn::Sequential.
template <class... Parts>
class Stages {
  static_assert(sizeof...(Parts) > 0, "tandem: Stages has no part; name at least one");

 public:
  explicit Stages(std::shared_ptr<Parts>... parts) : parts_(std::move(parts)...) {}

  at::Tensor forward(at::Tensor x) {
    visit_units([&](auto& part) { x = part.forward(x); });
    return x;
  }
  template <class F>
  void visit_units(F f) {
    std::apply([&](auto&... part) { (f(*part), ...); }, parts_);
  }
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() {
    return collect([](auto& part) { return part.named_parameters(); });
  }
  std::vector<std::pair<std::string, at::Tensor>> named_buffers() {
    return collect([](auto& part) {
      if constexpr (requires { part.named_buffers(); })
        return part.named_buffers();
      else
        return std::vector<std::pair<std::string, at::Tensor>>();
    });
  }
  bool is_training() const noexcept { return training_; }
  /// Of all parts that have modes.
  void train(bool on = true) {
    training_ = on;
    visit_units([&](auto& part) {
      if constexpr (requires { part.train(on); }) part.train(on);
    });
  }

 private:
  template <class F>
  std::vector<std::pair<std::string, at::Tensor>> collect(F list_of) {
    std::vector<std::pair<std::string, at::Tensor>> all;
    std::size_t index = 0;
    visit_units([&](auto& part) {
      for (auto&& entry : list_of(part)) {
        if constexpr (requires { entry.key(); })
          all.emplace_back(std::to_string(index) + "." + entry.key(), entry.value());
        else
          all.emplace_back(std::to_string(index) + "." + entry.first, entry.second);
      }
      ++index;
    });
    return all;
  }

  std::tuple<std::shared_ptr<Parts>...> parts_;
  bool training_ = true;
};

}  // namespace tandem
