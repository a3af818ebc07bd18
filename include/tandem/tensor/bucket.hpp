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

/// The elements of `flat`, of one dimension, from `offset` on in the shape of `tensor`. As autograd wants a gradient,
/// and as PyTorch's buckets have it: in the tensor's own strides when it fills its memory without gaps (channels-last,
/// transposed), row-major otherwise. With other strides AccumulateGrad would copy.
inline at::Tensor view_like(const at::Tensor& tensor, const at::Tensor& flat, std::size_t offset) {
  const auto start = static_cast<std::int64_t>(offset);
  if (tensor.is_non_overlapping_and_dense())
    return flat.as_strided(tensor.sizes(), tensor.strides(), flat.storage_offset() + start);
  return flat.narrow(0, start, tensor.numel()).view(tensor.sizes());
}

/// Whoever holds one of the views keeps the whole buffer alive: gradients kept from the last step survive new buckets.
class Bucket {
 public:
  /// `tensors` are all tensors that `layout` indexes; they give the shapes. There is no memory yet.
  Bucket(std::shared_ptr<Arena> arena, BucketLayout layout, std::span<const at::Tensor> tensors)
      : arena_(std::move(arena)), layout_(std::move(layout)) {
    for (const std::size_t item : layout_.items) tensors_.push_back(tensors[item]);
  }

  const BucketLayout& layout() const noexcept { return layout_; }
  bool has_memory() const noexcept { return flat_.defined(); }
  /// From here on flat(), view() and elements() are there. Does nothing when they are.
  void allocate() {
    if (has_memory()) return;
    flat_ = arena_empty(arena_, {static_cast<std::int64_t>(layout_.count)}, scalar_type_of(layout_.dtype));
    for (std::size_t place = 0; place < tensors_.size(); ++place) {
      views_.push_back(view_like(tensors_[place], flat_, layout_.offsets[place]));
    }
  }
  /// Lets the memory go, as soon as nobody else holds a view.
  void release() noexcept {
    views_.clear();
    flat_.reset();
  }

  const at::Tensor& flat() const noexcept { return flat_; }
  /// The memory of the tensor at `place` of layout().items, in that tensor's shape.
  const at::Tensor& view(std::size_t place) const { return views_[place]; }
  TensorView elements() const { return {flat_.data_ptr(), layout_.count, layout_.dtype}; }

 private:
  std::shared_ptr<Arena> arena_;
  BucketLayout layout_;
  std::vector<at::Tensor> tensors_;
  at::Tensor flat_;
  std::vector<at::Tensor> views_;
};

}  // namespace tandem
