// SPDX-License-Identifier: Apache-2.0
// Looks at a tensor's memory as a span, or says in one sentence why it cannot. Moves no data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tandem/core/dtype.hpp"
#include "tandem/core/error.hpp"
#include "tandem/tensor/scalar_type.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem {

/// A tensor's elements, lying one after another.
struct TensorView {
  void* data = nullptr;
  std::size_t count = 0;
  Dtype dtype = Dtype::float32;

  /// The elements as E, which must be the type of `dtype`.
  template <Element E>
  std::span<E> as() const noexcept {
    return {static_cast<E*>(data), count};
  }
  std::size_t bytes() const noexcept { return count * size_of(dtype); }
};

namespace detail {

inline std::string text_of(at::IntArrayRef values) {
  std::string text = "[";
  for (std::size_t i = 0; i < values.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  return text + "]";
}

/// "float32", or libtorch's own name of a type that has none here.
inline std::string text_of(at::ScalarType type) {
  const auto dtype = dtype_of(type);
  return dtype ? name_of(*dtype) : c10::toString(type);
}
/// "float32 [2, 3]".
inline std::string text_of(const at::Tensor& tensor) {
  return text_of(tensor.scalar_type()) + " " + text_of(tensor.sizes());
}

[[noreturn]] inline void refuse_tensor(const char* verb, const std::string& problem) {
  throw Error(ErrorKind::argument, "tandem: " + std::string(verb) + ": " + problem, -1, -1, verb);
}

/// `reduction` is empty where elements are only moved.
[[noreturn]] inline void refuse_dtype(const char* verb, const char* argument, at::ScalarType type,
                                      std::string_view reduction) {
  const char* const advice = c10::isComplexType(type) ? "pass at::view_as_real(tensor)"
                             : c10::isQIntType(type)  ? "pass tensor.dequantize()"
                                                      : "convert it with tensor.to()";
  refuse_tensor(verb, std::string(argument) + " has dtype " + text_of(type) + ", which is not supported" +
                          (reduction.empty() ? "" : " for " + std::string(reduction)) + "; " + advice);
}

}  // namespace detail

/// The tensor's memory. Throws Error(argument) that names the verb, the argument and the problem when the tensor is
/// undefined, sparse, not on the CPU, not contiguous, a lazy conjugate or negation, an inference tensor, or of a dtype
/// that is not supported (for the `reduction` that is named). Reads nothing, so it is safe on a leaf that requires
/// grad.
inline TensorView view_of(const at::Tensor& tensor, const char* verb, const char* argument = "the tensor",
                          std::string_view reduction = {}) {
  const std::string name(argument);
  if (!tensor.defined()) detail::refuse_tensor(verb, name + " is undefined; give it a value first");
  if (tensor.layout() != at::kStrided) {
    detail::refuse_tensor(verb, name + " is sparse; pass tensor.to_dense()");
  }
  if (!tensor.device().is_cpu()) {
    detail::refuse_tensor(
        verb, name + " is on " + tensor.device().str() + " and this transport moves host memory; pass tensor.cpu()");
  }
  const auto dtype = dtype_of(tensor.scalar_type());
  if (!dtype) detail::refuse_dtype(verb, argument, tensor.scalar_type(), reduction);
  if (!tensor.is_contiguous()) {
    detail::refuse_tensor(verb, name + " is not contiguous (sizes " + detail::text_of(tensor.sizes()) + ", strides " +
                                    detail::text_of(tensor.strides()) + "); pass tensor.contiguous()");
  }
  if (tensor.is_neg()) detail::refuse_tensor(verb, name + " is a lazy negation; pass tensor.resolve_neg()");
  if (tensor.is_inference() && !c10::InferenceMode::is_enabled()) {
    detail::refuse_tensor(verb, name + " is an inference tensor outside InferenceMode; pass tensor.clone()");
  }
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), *dtype};
}

/// As view_of, for memory that the verb writes: autograd is told, so that a backward which needed the old values
/// says so instead of computing with the new ones.
inline TensorView writable_view_of(const at::Tensor& tensor, const char* verb, const char* argument = "the tensor",
                                   std::string_view reduction = {}) {
  const TensorView view = view_of(tensor, verb, argument, reduction);
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  return view;
}

}  // namespace tandem
