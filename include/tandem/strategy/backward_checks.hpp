// SPDX-License-Identifier: Apache-2.0
// What is refused in a backward whose gradients are to be averaged, in words. Knows no strategy.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tandem/core/error.hpp"
#include "tandem/strategy/parameter.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem::detail {

[[noreturn]] inline void refuse_backward(const std::string& what, int rank) {
  throw Error(ErrorKind::argument, "tandem: " + what, rank, -1, "backward");
}

inline void require_graph(const at::Tensor& loss, int rank) {
  if (loss.requires_grad()) return;
  refuse_backward(
      "the loss depends on no parameter that requires grad; compute it from the model's output without detach() and "
      "outside no-grad scopes",
      rank);
}
inline void require_dense(const at::Tensor& gradient, const std::string& name, int rank) {
  if (!gradient.defined() || gradient.layout() == at::kStrided) return;
  refuse_backward("the gradient of parameter \"" + name +
                      "\" is sparse; build the layer with dense gradients (Embedding: sparse(false))",
                  rank);
}
inline void require_first(bool first, const std::string& name, int rank) {
  if (first) return;
  refuse_backward(
      "parameter \"" + name + "\" received a gradient twice in one backward; call Trainer::backward once per graph",
      rank);
}
inline const char* remedy_for_unused(bool static_graph) noexcept {
  return static_graph ? "with static_graph every step must reach the parameters that the first reached, so use "
                        "unused_parameters::find"
                      : "use every parameter in the loss, freeze it with requires_grad_(false) on all ranks, or set "
                        "TrainerOptions::unused to unused_parameters::find";
}
/// Names the first five of the parameters of which no gradient came. `unused` are their places in `parameters`, all
/// that are trained, counted from 0 as PyTorch counts them.
[[noreturn]] inline void refuse_unused(const std::vector<std::size_t>& unused,
                                       const std::vector<NamedParameter>& parameters, const std::string& remedy,
                                       int rank) {
  const std::string total = std::to_string(parameters.size());
  std::string names;
  for (std::size_t i = 0; i < unused.size() && i < 5; ++i)
    names += "parameter " + std::to_string(unused[i]) + " of " + total + ", \"" + parameters[unused[i]].name + "\", ";
  if (unused.size() > 5) names += "and " + std::to_string(unused.size() - 5) + " more ";
  refuse_backward(names + "got no gradient on rank " + std::to_string(rank) + "; " + remedy, rank);
}
/// With static_graph, where the first step had none.
[[noreturn]] inline void refuse_reached(const std::string& name, int rank) {
  refuse_backward("parameter \"" + name +
                      "\" received a gradient, but none in the first step; with static_graph every step must reach the "
                      "same parameters, so use unused_parameters::find",
                  rank);
}

}  // namespace tandem::detail
