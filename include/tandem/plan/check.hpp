// SPDX-License-Identifier: Apache-2.0
// Turns the first fault of a Trainer's types into exactly one compile-time error, with one sentence.
#pragma once

#include "tandem/plan/fault.hpp"
#include "tandem/plan/verdict.hpp"

namespace tandem {

/// Instantiating it is the check; `sound` lets what depends on it stay quiet after the one error.
template <class M, class S, class T>
struct Check {
  static constexpr bool sound = detail::report<first_fault<M, S, T>()>();
};
template <class M, class Given, class Loss, class Recipe>
struct CheckArguments {
  static constexpr bool sound = detail::report<first_argument_fault<M, Given, Loss, Recipe>()>();
};
template <class M, class... Inputs>
struct CheckInputs {
  static constexpr bool sound = detail::report<first_input_fault<M, Inputs...>()>();
};

}  // namespace tandem
