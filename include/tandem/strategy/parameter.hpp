// SPDX-License-Identifier: Apache-2.0
// What a strategy is told of a model, and what it tells an optimizer. Knows no strategy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tandem/core/bytes.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem {

/// A parameter of the model under its full name ("blocks.0.mlp.weight").
struct NamedParameter {
  std::string name;
  at::Tensor value;
};

/// The part of a parameter that this rank owns, as its memory: one dimension.
struct Shard {
  std::size_t item;  ///< index of the parameter
  Range range;       ///< elements of it, counted in its memory
  at::Tensor value;
};

/// What an optimizer on this rank updates: a whole parameter, or the shard of it that this rank owns.
struct OwnedParameter {
  std::string name;
  at::Tensor value;
  std::vector<std::int64_t> full_shape;  ///< of the whole parameter, e.g. to decay matrices only
};

namespace detail {

/// Autograd refuses graphs of the old values from now on. An optimizer may have updated memory that autograd does not
/// connect with the parameters: shards, or, as libtorch's do, data().
inline void have_changed(const std::vector<NamedParameter>& parameters) {
  for (const NamedParameter& it : parameters) it.value.unsafeGetTensorImpl()->bump_version();
}

}  // namespace detail

/// Which part of the data a rank is given: batch `rank()` of `size()`.
class Coordinate {
 public:
  constexpr Coordinate(int rank, int size) noexcept : rank_(rank), size_(size) {}
  constexpr int rank() const noexcept { return rank_; }
  constexpr int size() const noexcept { return size_; }
  friend constexpr bool operator==(const Coordinate&, const Coordinate&) = default;

 private:
  int rank_;
  int size_;
};

}  // namespace tandem
