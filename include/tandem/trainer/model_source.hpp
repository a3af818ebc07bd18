// SPDX-License-Identifier: Apache-2.0
// Gets hold of a model however it is given: by value, by pointer, in a holder, or as a function that builds it; and
// reads its tensors. Knows no strategy.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tandem/core/error.hpp"
#include "tandem/plan/model_type.hpp"
#include "tandem/plan/verdict.hpp"
#include "tandem/strategy/parameter.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem::detail {

/// The module behind `given`; see gives_model for what is accepted. A function is called here, on every rank.
template <class M, class Given>
std::shared_ptr<M> module_from(Given&& given) {
  using Plain = std::remove_cvref_t<Given>;
  std::shared_ptr<M> module;
  if constexpr (std::convertible_to<Given&&, M>) {
    return std::make_shared<M>(std::forward<Given>(given));
  } else if constexpr (std::convertible_to<Given&&, std::shared_ptr<M>>) {
    module = std::forward<Given>(given);
  } else if constexpr (HoldsModule<Plain, M>) {
    module = given.ptr();
  } else {
    return module_from<M>(given());
  }
  if (!module) throw Error(ErrorKind::argument, "tandem: the model is a null pointer; build it first");
  return module;
}

template <class Entry>
NamedParameter named(Entry& entry) {
  if constexpr (requires { entry.key(); })
    return {entry.key(), entry.value()};
  else
    return {entry.first, entry.second};
}

/// Each tensor once, under its first name: tied weights are one parameter, as in Python. Undefined ones (a layer
/// without bias) are left out.
template <class List>
std::vector<NamedParameter> distinct(List&& list) {
  std::vector<NamedParameter> result;
  for (auto&& entry : list) {
    NamedParameter parameter = named(entry);
    if (!parameter.value.defined()) continue;
    const bool seen = std::any_of(result.begin(), result.end(),
                                  [&](const NamedParameter& other) { return other.value.is_same(parameter.value); });
    if (!seen) result.push_back(std::move(parameter));
  }
  return result;
}

template <class M>
std::vector<NamedParameter> parameters_of(M& module) {
  return distinct(module.named_parameters());
}
/// Buffers are optional: not every duck-typed model has the notion.
template <class M>
std::vector<NamedParameter> buffers_of(M& module) {
  if constexpr (requires { module.named_buffers(); })
    return distinct(module.named_buffers());
  else
    return {};
}

}  // namespace tandem::detail
