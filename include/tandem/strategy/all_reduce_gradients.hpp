// SPDX-License-Identifier: Apache-2.0
// What DDP does with a full bucket of gradients: every rank gets all averages. Knows no hooks and no parameters' use.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tandem/collective/async.hpp"
#include "tandem/collective/work.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/call_site.hpp"
#include "tandem/strategy/compression.hpp"
#include "tandem/tensor/bucket.hpp"
#include "tandem/tensor/bucket_layout.hpp"
#include "tandem/tensor/detail/arguments.hpp"
#include "tandem/tensor/view.hpp"

namespace tandem {

/// The averages come to lie in the bucket itself.
template <class Compression>
class AllReduceGradients {
 public:
  /// Do all parameters' gradients hold averages afterwards, on every rank?
  static constexpr bool whole = true;

  /// How buckets of these layouts are to be reduced: whole, as they lie.
  std::vector<BucketLayout> arrange(std::vector<BucketLayout> layouts, std::span<const std::size_t>) {
    wire_.arrange(layouts.size());
    return layouts;
  }
  template <class T>
  Work begin(Communicator<T>& comm, std::size_t index, const Bucket& bucket, CallSite site) {
    const TensorView view = wire_.load(comm, index, bucket);
    Work work;
    detail::visit_reducible<typename Wire::Average>(view.dtype, "backward", [&](auto element) {
      work = all_reduce_async(comm, view.template as<decltype(element)>(), Wire::average(comm.size()), {}, site);
    });
    return work;
  }
  /// Does a bucket's memory go once it is reduced?
  static constexpr bool releases() noexcept { return false; }
  /// The work of a bucket is done.
  void finished(std::size_t index, const Bucket& bucket) { wire_.store(index, bucket, 0, bucket.layout().count); }

 private:
  using Wire = detail::GradientWire<Compression>;

  Wire wire_;
};

}  // namespace tandem
