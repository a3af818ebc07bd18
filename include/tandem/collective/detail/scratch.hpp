// SPDX-License-Identifier: Apache-2.0
// Room for elements that a collective holds between two of its steps. Knows no collective.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "tandem/core/bytes.hpp"

namespace tandem::detail {

/// Bytes, since elements need neither a default constructor nor to be what std::vector takes them for (bool).
template <class E>
class Scratch {
 public:
  explicit Scratch(std::size_t count)
      : memory_(static_cast<E*>(
            std::aligned_alloc(alignment, std::max(round_up(count * sizeof(E), alignment), alignment)))) {
    if (memory_ == nullptr) throw std::bad_alloc();
  }
  E* data() noexcept { return memory_.get(); }
  /// Where element 0 of a buffer would be of which this holds what starts at `begin`: for steps that are told ranges of
  /// the whole, and touch only this one.
  E* as_if_from(std::size_t begin) noexcept { return element_zero(data(), begin); }
  static E* element_zero(E* part, std::size_t begin) noexcept {
    return reinterpret_cast<E*>(reinterpret_cast<std::uintptr_t>(part) - begin * sizeof(E));
  }

 private:
  static constexpr std::size_t alignment = std::max(alignof(E), cache_line_bytes);
  struct Free {
    void operator()(E* memory) const noexcept { std::free(memory); }
  };
  std::unique_ptr<E, Free> memory_;
};

}  // namespace tandem::detail
