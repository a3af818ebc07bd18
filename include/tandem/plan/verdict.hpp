// SPDX-License-Identifier: Apache-2.0
// Finds the first fault in the types of a training program, at compile time. Says nothing itself: fault.hpp has the
// sentences, check.hpp makes them errors.
#pragma once

#include <concepts>
#include <iterator>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "tandem/plan/fault.hpp"
#include "tandem/plan/model_type.hpp"
#include "tandem/strategy/concepts.hpp"
#include "tandem/strategy/parameter.hpp"
#include "tandem/strategy/units.hpp"
#include "tandem/tensor/torch.hpp"
#include "tandem/transport/concepts.hpp"

namespace tandem {

namespace detail {

template <class S, class T>
concept HasEngine = requires {
  typename S::template Engine<T>;
}
&&StrategyEngine<typename S::template Engine<T>, T>;

template <class S>
concept NeedsWindowsOrUnits = requires {
  requires S::needs_windows_or_units;
};

/// A torch::nn::ModuleHolder, or a class of the same shape.
template <class S>
concept NeedsUnits = requires {
  requires S::needs_units;
};

template <class Given, class M>
concept HoldsModule = requires(Given& given) {
  { given.ptr() } -> std::convertible_to<std::shared_ptr<M>>;
};

/// Is a Given something that the module M can be had from?
template <class M, class Given>
consteval bool gives_model() {
  using Plain = std::remove_cvref_t<Given>;
  if constexpr (std::convertible_to<Given, M>)
    return true;
  else if constexpr (std::convertible_to<Given, std::shared_ptr<M>> || HoldsModule<Plain, M>)
    return true;
  else if constexpr (std::is_invocable_v<Plain&>)
    return gives_model<M, std::invoke_result_t<Plain&>>();
  else
    return false;
}

/// What an optimizer recipe returns; void when it cannot be called. A tensor list first: a generic lambda takes both.
template <class Recipe>
struct RecipeResult {
  using type = void;
  static constexpr bool callable = false;
};
template <class Recipe>
requires std::invocable<Recipe&, std::vector<at::Tensor>>
struct RecipeResult<Recipe> {
  using type = std::invoke_result_t<Recipe&, std::vector<at::Tensor>>;
  using list = std::vector<at::Tensor>;
  static constexpr bool callable = true;
};
template <class Recipe>
requires(!std::invocable<Recipe&, std::vector<at::Tensor>> &&
         std::invocable<Recipe&, std::vector<OwnedParameter>>) struct RecipeResult<Recipe> {
  using type = std::invoke_result_t<Recipe&, std::vector<OwnedParameter>>;
  using list = std::vector<OwnedParameter>;
  static constexpr bool callable = true;
};

template <class O>
concept Steps = requires(O& optimizer) {
  optimizer.step();
};
template <class O>
concept PointsToSteps = requires(O& optimizer) {
  { *optimizer } -> Steps;
};

}  // namespace detail

/// The first thing that is wrong with Trainer<Model, Strategy, Transport>, or Fault::none.
template <class M, class S, class T>
consteval Fault first_fault() {
  if constexpr (!std::is_class_v<M> || std::is_const_v<M>)
    return Fault::model_not_a_value;
  else if constexpr (!detail::has_forward<Module<M>>())
    return Fault::model_without_forward;
  else if constexpr (!requires(Module<M> & module) { module.named_parameters(); }) {
    return Fault::model_without_named_parameters;
  } else if constexpr (!ModelType<M>)
    return Fault::parameters_without_names;
  else if constexpr (Transport<S> && Strategy<T>)
    return Fault::strategy_and_transport_swapped;
  else if constexpr (!Strategy<S>)
    return Fault::not_a_strategy;
  else if constexpr (S::degree < 0)
    return Fault::negative_degree;
  else if constexpr (!Transport<T>)
    return Fault::not_a_transport;
  else if constexpr (!ControlTransport<T>)
    return Fault::transport_without_control;
  else if constexpr (detail::NeedsWindowsOrUnits<S> && !T::has_windows && !CutInUnits<Module<M>>)
    return Fault::strategy_without_windows;
  else if constexpr (detail::NeedsUnits<S> && !CutInUnits<Module<M>>)
    return Fault::model_not_cut;
  else if constexpr (!detail::HasEngine<S, T>)
    return Fault::strategy_without_engine;
  else
    return Fault::none;
}

/// The first thing that is wrong with what a Trainer<M, ...> is constructed from, or Fault::none.
template <class M, class Given, class Loss, class Recipe>
consteval Fault first_argument_fault() {
  using Optimizer = typename detail::RecipeResult<Recipe>::type;
  if constexpr (!detail::gives_model<Module<M>, Given>())
    return Fault::model_not_given;
  else if constexpr (!std::is_invocable_r_v<at::Tensor, Loss&, const Output<M>&, const at::Tensor&>) {
    return Fault::loss_without_scalar;
  } else if constexpr (!detail::RecipeResult<Recipe>::callable)
    return Fault::recipe_not_callable;
  else if constexpr (std::is_void_v<Optimizer>)
    return Fault::optimizer_without_step;
  else if constexpr (!detail::Steps<Optimizer> && !detail::PointsToSteps<Optimizer>)
    return Fault::optimizer_without_step;
  else
    return Fault::none;
}

/// The first thing that is wrong with a call of forward on M with these inputs, or Fault::none.
template <class M, class... Inputs>
consteval Fault first_input_fault() {
  if constexpr (!requires(Module<M> & module, Inputs && ... inputs) {
                  module.forward(std::forward<Inputs>(inputs)...);
                }) {
    return Fault::inputs_without_forward;
  } else
    return Fault::none;
}

}  // namespace tandem
