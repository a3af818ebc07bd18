// SPDX-License-Identifier: Apache-2.0
// Runs a model that is cut in units one unit after another, telling a schedule before and after each; and finds out
// which unit has which parameter.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tandem/core/error.hpp"
#include "tandem/strategy/options.hpp"
#include "tandem/strategy/parameter.hpp"
#include "tandem/strategy/units.hpp"
#include "tandem/tensor/torch.hpp"
#include "tandem/trainer/model_source.hpp"

namespace tandem::detail {

/// Throws Error(argument) naming a parameter that is in two units, or in none.
template <CutInUnits M>
UnitMap units_of(M& model, const std::vector<NamedParameter>& parameters) {
  UnitMap map;
  std::vector<std::vector<NamedParameter>> owned;
  visit_units(model, [&](auto&, auto& module) { owned.push_back(parameters_of(module)); });
  map.units = owned.size();
  for (const NamedParameter& parameter : parameters) {
    std::vector<std::size_t> in;
    for (std::size_t unit = 0; unit < owned.size(); ++unit) {
      const bool has = std::any_of(owned[unit].begin(), owned[unit].end(),
                                   [&](const NamedParameter& own) { return own.value.is_same(parameter.value); });
      if (has) in.push_back(unit);
    }
    if (in.size() != 1) {
      throw Error(ErrorKind::argument,
                  "tandem: parameter \"" + parameter.name + "\" is in " +
                      (in.empty() ? std::string("no unit")
                                  : "the units " + std::to_string(in[0]) + " and " + std::to_string(in[1])) +
                      " of the model; give every parameter one unit");
    }
    map.unit_of.push_back(in[0]);
  }
  return map;
}

/// For StrategyOptions::units; empty for a model that is not cut.
template <class M>
std::function<UnitMap()> unit_source(M& model, const std::vector<NamedParameter>& parameters) {
  if constexpr (CutInUnits<M>)
    return [&model, parameters] { return units_of(model, parameters); };
  else
    return {};
}

/// A rank that has run out of batches cannot gather what the others' graphs need. Throws Error(argument).
template <class Engine>
void require_whole_units(Engine& engine) {
  if constexpr (requires { engine.schedule(); }) {
    if (engine.schedule() == nullptr) return;
    throw Error(
        ErrorKind::argument,
        "tandem: uneven_inputs needs parameters that are whole on every rank, and here units are gathered as ranks "
        "run them; use Placement::shared, or Zero<2>",
        engine.replicas().rank());
  }
}

template <class M, class Schedule>
at::Tensor forward_by_units(M& model, Schedule& schedule, at::Tensor x) {
  std::size_t index = 0;
  visit_units(model, [&](auto& unit, auto&) {
    schedule.before_forward(index);
    x = unit.forward(x);
    schedule.after_forward(index, x);
    ++index;
  });
  return x;
}

/// Is a forward collective as things stand?
template <class Engine>
bool gathers_units(Engine& engine) noexcept {
  if constexpr (requires { engine.schedule(); }) return engine.schedule() != nullptr && !engine.schedule()->is_held();
  return false;
}

/// The model's output: unit by unit where the engine gathers units.
template <class M, class Engine, class... Inputs>
auto run_forward(M& model, Engine& engine, Inputs&&... inputs) {
  if constexpr (CutInUnits<M> && sizeof...(Inputs) == 1 && requires { engine.schedule(); }) {
    if (auto* const schedule = engine.schedule()) return forward_by_units(model, *schedule, inputs...);
  }
  return model.forward(std::forward<Inputs>(inputs)...);
}

}  // namespace tandem::detail
