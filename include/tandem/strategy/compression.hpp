// SPDX-License-Identifier: Apache-2.0
// In which form gradients travel: as they are, or in 16 bits. Policies of strategies, and what they do to a bucket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "tandem/comm/communicator.hpp"
#include "tandem/core/dtype.hpp"
#include "tandem/reduce/functor.hpp"
#include "tandem/tensor/bucket.hpp"
#include "tandem/tensor/scalar_type.hpp"
#include "tandem/tensor/storage.hpp"
#include "tandem/tensor/torch.hpp"
#include "tandem/tensor/view.hpp"

namespace tandem {

namespace compress {
/// Every gradient times 1/N in its own dtype, then the sum: DDP without a hook.
struct none {
  static constexpr Dtype dtype = Dtype::opaque;
};
/// Cast to bfloat16, divided by N there, summed there, cast back: DDP with bf16_compress_hook. Half the bytes of
/// float32.
struct bf16 {
  static constexpr Dtype dtype = Dtype::bfloat16;
};
/// The same in float16: DDP with fp16_compress_hook. Gradients above 65,504 become infinite.
struct fp16 {
  static constexpr Dtype dtype = Dtype::float16;
};
}  // namespace compress

namespace detail {

/// What of each bucket travels, and the reduction that makes averages of it.
template <class Compression>
class GradientWire {
 public:
  static constexpr bool compresses = Compression::dtype != Dtype::opaque;
  /// The scale is a double: the reduction converts it to the type that computes, as PyTorch's mul with a number does.
  using Average = std::conditional_t<compresses, Sum, PreMulSum<double>>;

  static Average average(int ranks) {
    if constexpr (compresses)
      return {};
    else
      return {1.0 / ranks};
  }
  static constexpr Dtype dtype(Dtype bucket) noexcept { return compresses ? Compression::dtype : bucket; }

  /// Forgets all buckets; there are `buckets` from now on.
  void arrange(std::size_t buckets) {
    copies_.clear();
    copies_.resize(compresses ? buckets : 0);
  }
  /// The bucket's elements ready for the reduction, which takes place in them.
  template <class T>
  TensorView load(Communicator<T>& comm, std::size_t index, const Bucket& bucket) {
    if constexpr (compresses) {
      const c10::AutoGradMode no_grad(false);
      at::Tensor& copy = copies_[index];
      const auto count = static_cast<std::int64_t>(bucket.layout().count);
      if (!copy.defined()) copy = arena_empty(comm.arena(), {count}, scalar_type_of(Compression::dtype));
      copy.copy_(bucket.flat()).div_(comm.size());
      return {copy.data_ptr(), bucket.layout().count, Compression::dtype};
    }
    return bucket.elements();
  }
  /// `count` reduced elements from `begin` on, back in the bucket.
  void store(std::size_t index, const Bucket& bucket, std::size_t begin, std::size_t count) {
    if constexpr (compresses) {
      const c10::AutoGradMode no_grad(false);
      const auto first = static_cast<std::int64_t>(begin), length = static_cast<std::int64_t>(count);
      bucket.flat().narrow(0, first, length).copy_(copies_[index].narrow(0, first, length));
    }
  }
  /// The bucket's memory goes; so does its copy's.
  void release(std::size_t index) noexcept {
    if constexpr (compresses) copies_[index].reset();
  }

 private:
  std::vector<at::Tensor> copies_;  // by bucket
};

}  // namespace detail

}  // namespace tandem
