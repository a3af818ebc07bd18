// SPDX-License-Identifier: Apache-2.0
// Before the first step: are all ranks about to compute the same, and do they start from the same weights? Collective
// over the ranks that hold replicas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tandem/collective/broadcast.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/strategy/parameter.hpp"
#include "tandem/tensor/torch.hpp"
#include "tandem/tensor/view.hpp"
#include "tandem/trainer/agreement.hpp"

namespace tandem::detail {

/// "\"head.weight\" float32 [4, 5], strides [1, 4], frozen". Strides only where they say something.
inline std::string fact_of(const NamedParameter& parameter) {
  const at::Tensor& tensor = parameter.value;
  std::string text = "\"" + parameter.name + "\" " + text_of(tensor);
  if (tensor.layout() == at::kStrided && !tensor.is_contiguous()) text += ", strides " + text_of(tensor.strides());
  if (!tensor.device().is_cpu()) text += " on " + tensor.device().str();
  return text;
}

/// Throws on all ranks when anything differs that would make ranks compute different bits or exchange different
/// amounts: parameters (names, shapes, dtypes, order, layout, which are frozen), buffers, threads, CPU capability.
template <class T>
void check_start(Communicator<T>& replicas, const std::vector<NamedParameter>& parameters,
                 const std::vector<NamedParameter>& buffers, const std::vector<Fact>& options) {
  require_agreement(
      replicas,
      {{"the number of intra-op threads", std::to_string(at::get_num_threads())},
       {"ATen's CPU capability", at::get_cpu_capability()}},
      "results would differ in bits; set both alike on all ranks (ATEN_CPU_CAPABILITY, at::set_num_threads)");
  std::vector<Fact> facts;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    facts.push_back({"parameter " + std::to_string(i),
                     fact_of(parameters[i]) + (parameters[i].value.requires_grad() ? "" : ", frozen")});
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    facts.push_back({"buffer " + std::to_string(i), fact_of(buffers[i])});
  }
  require_agreement(replicas, facts, "build the same model on all ranks");
  require_agreement(replicas, options, "construct the Trainer alike on all ranks");
}

/// Every tensor becomes that of rank `root`, bit for bit, of whatever dtype; strides stay as they are. Leaves that
/// require grad stay leaves. Only after check_start: layouts are alike.
template <class T>
void copy_from_rank(Communicator<T>& replicas, int root, const std::vector<NamedParameter>& tensors) {
  const c10::AutoGradMode no_grad(false);
  for (const NamedParameter& each : tensors) {
    const at::Tensor& tensor = each.value;
    if (tensor.layout() != at::kStrided || !tensor.device().is_cpu()) {
      refuse_tensor("broadcast", "\"" + each.name + "\" is not a dense tensor on the CPU; move it there");
    }
    // Without gaps the memory is the tensor, in any order of its dimensions; with gaps a packed copy travels.
    const bool packed = tensor.is_non_overlapping_and_dense();
    const at::Tensor memory = packed ? tensor.detach() : tensor.detach().contiguous();
    broadcast(replicas, std::span(static_cast<std::byte*>(memory.data_ptr()), memory.nbytes()), root);
    if (packed)
      tensor.unsafeGetTensorImpl()->bump_version();
    else
      tensor.copy_(memory);
  }
}

}  // namespace tandem::detail
