// SPDX-License-Identifier: Apache-2.0
// Everything that can be wrong with a Trainer's types, each with one sentence: what is wrong; what to change.
// Finds no fault itself (verdict.hpp does), and knows no tensor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tandem {

// One table, so that the enumeration, the sentences and the static_asserts cannot disagree: a static_assert takes only
// a literal. The macro ends with this file.
#define TANDEM_FAULT_TABLE(FAULT)                                                                                      \
  FAULT(model_not_a_value,                                                                                             \
        "tandem: the model type is a reference, a raw pointer, an array or const; name the model's class itself")      \
  FAULT(model_without_forward,                                                                                         \
        "tandem: the model has no public forward(); give it one that takes a batch and returns the output")            \
  FAULT(                                                                                                               \
      model_without_named_parameters,                                                                                  \
      "tandem: the model has no named_parameters(); derive it from torch::nn::Module or return (name, tensor) pairs")  \
  FAULT(parameters_without_names,                                                                                      \
        "tandem: named_parameters() does not give pairs of a name and an at::Tensor; return key()/value() or "         \
        "first/second of those types")                                                                                 \
  FAULT(strategy_and_transport_swapped,                                                                                \
        "tandem: the strategy and the transport have changed places; write Trainer<Model, Strategy, Transport>")       \
  FAULT(not_a_strategy,                                                                                                \
        "tandem: the second argument is not a strategy; use tandem::Ddp<> or a type that models tandem::Strategy")     \
  FAULT(strategy_without_engine,                                                                                       \
        "tandem: the strategy has no engine for this transport; give it an Engine<Transport> that models "             \
        "tandem::StrategyEngine")                                                                                      \
  FAULT(                                                                                                               \
      negative_degree,                                                                                                 \
      "tandem: the strategy asks for fewer than 0 ranks; give a positive degree, or 0 for what the world leaves over") \
  FAULT(not_a_transport,                                                                                               \
        "tandem: the third argument is not a transport; use tandem::ShmRing, tandem::Tcp or a type that models "       \
        "tandem::Transport")                                                                                           \
  FAULT(transport_without_control,                                                                                     \
        "tandem: the transport moves bytes but cannot keep its ranks in step; use tandem::ShmRing, tandem::Tcp or a "  \
        "type that models tandem::ControlTransport")                                                                   \
  FAULT(strategy_without_windows,                                                                                      \
        "tandem: Zero<3> needs ranks that map each other's memory, or a model that is cut in units; use "              \
        "tandem::ShmRing, or give the model as torch::nn::Sequential or tandem::Stages")                               \
  FAULT(model_not_cut,                                                                                                 \
        "tandem: this strategy gathers one unit of the model after another, and the model is not cut; give it as "     \
        "torch::nn::Sequential or tandem::Stages, or with visit_units()")                                              \
  FAULT(model_not_given,                                                                                               \
        "tandem: what is given as the model neither is one nor makes one; pass the model, a pointer to it, or a "      \
        "function without arguments that returns it")                                                                  \
  FAULT(loss_without_scalar,                                                                                           \
        "tandem: loss(output, target) does not give an at::Tensor for the model's output; take what forward() "        \
        "returns and return the mean loss")                                                                            \
  FAULT(recipe_not_callable,                                                                                           \
        "tandem: the optimizer recipe takes neither std::vector<at::Tensor> nor std::vector<tandem::OwnedParameter>; " \
        "let it take one of them by value")                                                                            \
  FAULT(optimizer_without_step,                                                                                        \
        "tandem: the recipe returns nothing with a step(); return the optimizer, by value or in a std::unique_ptr")    \
  FAULT(inputs_without_forward,                                                                                        \
        "tandem: the model's forward() does not take these inputs; pass what it takes, then the target")

#define TANDEM_FAULT_NAME(name, sentence) name,
enum class Fault : std::uint8_t { none, TANDEM_FAULT_TABLE(TANDEM_FAULT_NAME) };
#undef TANDEM_FAULT_NAME

/// Every Fault but none.
#define TANDEM_FAULT_VALUE(name, sentence) Fault::name,
inline constexpr std::array all_faults{TANDEM_FAULT_TABLE(TANDEM_FAULT_VALUE)};
#undef TANDEM_FAULT_VALUE

/// "model_without_forward".
constexpr const char* name_of(Fault fault) noexcept {
#define TANDEM_FAULT_CASE(name, sentence) \
  case Fault::name:                       \
    return #name;
  switch (fault) {
    case Fault::none:
      break;
      TANDEM_FAULT_TABLE(TANDEM_FAULT_CASE)
  }
#undef TANDEM_FAULT_CASE
  return "none";
}

/// What the compiler says: one sentence.
constexpr const char* sentence_of(Fault fault) noexcept {
#define TANDEM_FAULT_CASE(name, sentence) \
  case Fault::name:                       \
    return sentence;
  switch (fault) {
    case Fault::none:
      break;
      TANDEM_FAULT_TABLE(TANDEM_FAULT_CASE)
  }
#undef TANDEM_FAULT_CASE
  return "";
}

namespace detail {

/// Is nothing wrong? Fails to compile, with exactly one error, when `found` is a fault. A function and not a class:
/// clang takes a class whose static_assert failed for invalid, and says so again at every use of its members.
template <Fault found>
constexpr bool report() {
#define TANDEM_FAULT_ASSERT(name, sentence) static_assert(found != Fault::name, sentence);
  TANDEM_FAULT_TABLE(TANDEM_FAULT_ASSERT)
#undef TANDEM_FAULT_ASSERT
  return found == Fault::none;
}

}  // namespace detail

#undef TANDEM_FAULT_TABLE

}  // namespace tandem
