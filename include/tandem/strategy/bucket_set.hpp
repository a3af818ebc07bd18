// SPDX-License-Identifier: Apache-2.0
// The buckets of a model's gradients, and where in them each parameter's gradient lies. Knows no hooks or reductions.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tandem/comm/arena.hpp"
#include "tandem/core/dtype.hpp"
#include "tandem/core/error.hpp"
#include "tandem/strategy/parameter.hpp"
#include "tandem/tensor/bucket.hpp"
#include "tandem/tensor/bucket_layout.hpp"
#include "tandem/tensor/scalar_type.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem {

/// What the buckets see of parameters. Throws Error(argument) naming the first whose gradient cannot be averaged.
inline std::vector<BucketItem> gradient_items(const std::vector<NamedParameter>& parameters, int rank) {
  std::vector<BucketItem> items;
  for (const auto& [name, value] : parameters) {
    const auto dtype = dtype_of(value.scalar_type());
    if (!dtype || !value.device().is_cpu() || value.layout() != at::kStrided) {
      throw Error(ErrorKind::argument,
                  "tandem: parameter \"" + name + "\" is " + c10::toString(value.scalar_type()) + " on " +
                      value.device().str() + (value.layout() == at::kStrided ? "" : " and sparse") +
                      "; gradients are averaged for dense float32, float64, float16 and bfloat16 on the CPU only",
                  rank);
    }
    items.push_back({static_cast<std::size_t>(value.numel()), *dtype});
  }
  return items;
}

class BucketSet {
 public:
  BucketSet(std::shared_ptr<Arena> arena, const std::vector<NamedParameter>& parameters) : arena_(std::move(arena)) {
    for (const NamedParameter& parameter : parameters) tensors_.push_back(parameter.value);
    places_.resize(tensors_.size());
  }

  /// Other buckets from now on, without memory.
  void lay_out(std::vector<BucketLayout> layouts) {
    buckets_.clear();
    for (BucketLayout& layout : layouts) buckets_.emplace_back(arena_, std::move(layout), tensors_);
    for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
      const auto& items = buckets_[bucket].layout().items;
      for (std::size_t place = 0; place < items.size(); ++place) places_[items[place]] = {bucket, place};
    }
  }

  const std::vector<Bucket>& all() const noexcept { return buckets_; }
  Bucket& operator[](std::size_t bucket) { return buckets_[bucket]; }
  std::size_t size() const noexcept { return buckets_.size(); }
  /// The bucket of a parameter.
  std::size_t bucket_of(std::size_t index) const noexcept { return places_[index].bucket; }
  /// A parameter's place in its bucket, which has memory from here on.
  const at::Tensor& view_of(std::size_t index) {
    const Place& place = places_[index];
    buckets_[place.bucket].allocate();
    return buckets_[place.bucket].view(place.at);
  }

 private:
  struct Place {
    std::size_t bucket = 0;
    std::size_t at = 0;  // in the bucket
  };
  std::shared_ptr<Arena> arena_;
  std::vector<at::Tensor> tensors_;
  std::vector<Place> places_;  // by parameter
  std::vector<Bucket> buckets_;
};

}  // namespace tandem
