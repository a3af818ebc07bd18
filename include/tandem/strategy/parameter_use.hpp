// SPDX-License-Identifier: Apache-2.0
// Which parameters the backwards of a step reached: on this rank, and on any. Knows no tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tandem/collective/all_reduce.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/call_site.hpp"
#include "tandem/reduce/functor.hpp"

namespace tandem {

class ParameterUse {
 public:
  /// Until ranks have shared what they know, every parameter counts as reached.
  explicit ParameterUse(std::size_t parameters) : here_(parameters, 0), anywhere_(parameters, 1) {}

  void reached(std::size_t index) noexcept { here_[index] = 1; }
  /// On this rank, since ranks last shared what they know.
  bool here(std::size_t index) const noexcept { return here_[index] != 0; }
  /// On any rank, when they last shared it.
  bool anywhere(std::size_t index) const noexcept { return anywhere_[index] != 0; }

  /// Collective; one byte per parameter. With `in_addition`, what was reached anywhere before still counts.
  template <class T>
  void share(Communicator<T>& comm, bool in_addition, CallSite site) {
    if (!in_addition) anywhere_.assign(anywhere_.size(), 0);
    for (std::size_t index = 0; index < here_.size(); ++index) anywhere_[index] |= here_[index];
    if (!anywhere_.empty()) all_reduce(comm, std::span<std::uint8_t>(anywhere_), Max{}, {}, site);
    here_.assign(here_.size(), 0);
  }

 private:
  std::vector<std::uint8_t> here_;
  std::vector<std::uint8_t> anywhere_;
};

}  // namespace tandem
