// SPDX-License-Identifier: Apache-2.0
// Flat gradients: one registered buffer, and a view into it for each parameter. Knows nothing of hooks or reductions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tandem/comm/arena.hpp"
#include "tandem/tensor/bucket_layout.hpp"
#include "tandem/tensor/scalar_type.hpp"
#include "tandem/tensor/storage.hpp"
#include "tandem/tensor/torch.hpp"
#include "tandem/tensor/view.hpp"

namespace tandem {

/// Whoever holds one of the views keeps the whole buffer alive: gradients kept from the last step survive new buckets.
class Bucket {
 public:
  /// `tensors` are all tensors that `layout` indexes; they give the shapes.
  Bucket(const std::shared_ptr<Arena>& arena, BucketLayout layout, std::span<const at::Tensor> tensors)
      : layout_(std::move(layout)),
        flat_(arena_empty(arena, {static_cast<std::int64_t>(layout_.count)}, scalar_type_of(layout_.dtype))) {
    for (std::size_t place = 0; place < layout_.items.size(); ++place) {
      views_.push_back(view_like(tensors[layout_.items[place]], layout_.offsets[place]));
    }
  }

  const BucketLayout& layout() const noexcept { return layout_; }
  const at::Tensor& flat() const noexcept { return flat_; }
  /// The memory of the tensor at `place` of layout().items, in that tensor's shape.
  const at::Tensor& view(std::size_t place) const { return views_[place]; }
  TensorView elements() const { return {flat_.data_ptr(), layout_.count, layout_.dtype}; }

 private:
  // The layout autograd wants of a gradient, and PyTorch's buckets have: the tensor's own strides when it fills its
  // memory without gaps (channels-last, transposed), row-major otherwise. With other strides AccumulateGrad would copy.
  at::Tensor view_like(const at::Tensor& tensor, std::size_t offset) const {
    const auto start = static_cast<std::int64_t>(offset);
    if (tensor.is_non_overlapping_and_dense()) return flat_.as_strided(tensor.sizes(), tensor.strides(), start);
    return flat_.narrow(0, start, tensor.numel()).view(tensor.sizes());
  }

  BucketLayout layout_;
  at::Tensor flat_;
  std::vector<at::Tensor> views_;
};

}  // namespace tandem
