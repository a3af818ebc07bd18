// SPDX-License-Identifier: Apache-2.0
// What a strategy is: a small type that names its degree and its reference, and an engine that does the work on each
// rank. Knows no particular strategy.
#pragma once

#include <concepts>
#include <string>
#include <vector>

#include "tandem/comm/communicator.hpp"
#include "tandem/strategy/options.hpp"
#include "tandem/strategy/parameter.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem {

/// A type that says which ranks do what. `reference` names the program whose bits it gives.
template <class S>
concept Strategy = requires {
  { S::degree } -> std::convertible_to<int>;
  { S::name } -> std::convertible_to<const char*>;
  { S::reference } -> std::convertible_to<const char*>;
};

/// The work of a strategy on one rank, over transport T. A Trainer makes it from the world (a collective call), checks
/// and equalises the model over replicas(), and then hands the trainable parameters over with adopt().
template <class E, class T>
concept StrategyEngine = std::constructible_from < E,
        Communicator<T>
&, int > &&requires(E& engine, const E& view, std::vector<NamedParameter> parameters, const StrategyOptions& options,
                    const at::Tensor& loss, bool locally, double limit, clip method, AfterUpdate after_update) {
  { engine.replicas() } -> std::same_as<Communicator<T>&>;
  { view.data() } -> std::same_as<Coordinate>;
  engine.adopt(parameters, options);
  { view.owned() } -> std::same_as<std::vector<OwnedParameter>>;
  engine.backward(loss, locally);
  engine.reduce_gradients();
  engine.reduce_nothing();  // a rank without a batch takes part in the others' averages
  { engine.clip_norm(limit, method) } -> std::convertible_to<double>;
  engine.before_update();             // everybody may change what it owns now
  engine.after_update(after_update);  // everybody has; gradients go or stay
};

}  // namespace tandem
