// SPDX-License-Identifier: Apache-2.0
// Holds whatever optimizer a recipe makes. Asks of it only a step(); knows no optimizer.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <typeindex>
#include <typeinfo>
#include <utility>
#include <vector>

#include "tandem/core/error.hpp"
#include "tandem/plan/verdict.hpp"
#include "tandem/strategy/parameter.hpp"

namespace tandem::detail {

class OptimizerSlot {
 public:
  /// Calls the recipe with what this rank owns; the list may be empty.
  template <class Recipe>
  OptimizerSlot(Recipe& recipe, const std::vector<OwnedParameter>& owned) {
    using Result = RecipeResult<Recipe>;
    using Made = std::remove_cvref_t<typename Result::type>;
    std::shared_ptr<Made> made(new Made(recipe(list_of<typename Result::list>(owned))));
    if constexpr (Steps<Made>) {
      hold(std::move(made));
    } else {
      if (!*made) throw Error(ErrorKind::argument, "tandem: the optimizer recipe returned a null pointer");
      auto& pointee = **made;
      hold(std::shared_ptr<std::remove_reference_t<decltype(pointee)>>(made, &pointee));
    }
  }

  void step() { step_(); }

  /// The optimizer as the type the recipe made (or pointed to); nullptr when it is another type.
  template <class Optimizer>
  Optimizer* as() const noexcept {
    return type_ == typeid(Optimizer) ? static_cast<Optimizer*>(held_.get()) : nullptr;
  }

 private:
  template <class List>
  static List list_of(const std::vector<OwnedParameter>& owned) {
    if constexpr (std::is_same_v<List, std::vector<OwnedParameter>>) {
      return owned;
    } else {
      List values;
      for (const OwnedParameter& parameter : owned) values.push_back(parameter.value);
      return values;
    }
  }
  template <class Optimizer>
  void hold(std::shared_ptr<Optimizer> optimizer) {
    type_ = typeid(Optimizer);
    step_ = [it = optimizer.get()] { it->step(); };
    held_ = std::move(optimizer);
  }

  std::shared_ptr<void> held_;
  std::type_index type_{typeid(void)};
  std::function<void()> step_;
};

}  // namespace tandem::detail
