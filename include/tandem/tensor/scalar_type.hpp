// SPDX-License-Identifier: Apache-2.0
// libtorch's element types against the library's own. Knows nothing of tensors' memory.
#pragma once

#include <optional>

#include "tandem/core/dtype.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem {

/// The library's name of a type; nothing for complex, quantized, 16-bit and wider unsigned integer, and 8-bit float
/// types.
constexpr std::optional<Dtype> dtype_of(at::ScalarType type) noexcept {
  switch (type) {
    case at::kFloat:
      return Dtype::float32;
    case at::kDouble:
      return Dtype::float64;
    case at::kHalf:
      return Dtype::float16;
    case at::kBFloat16:
      return Dtype::bfloat16;
    case at::kChar:
      return Dtype::int8;
    case at::kByte:
      return Dtype::uint8;
    case at::kInt:
      return Dtype::int32;
    case at::kLong:
      return Dtype::int64;
    case at::kBool:
      return Dtype::boolean;
    default:
      return std::nullopt;
  }
}

/// The counterpart; opaque has none and is never passed.
constexpr at::ScalarType scalar_type_of(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::float32:
      return at::kFloat;
    case Dtype::float64:
      return at::kDouble;
    case Dtype::float16:
      return at::kHalf;
    case Dtype::bfloat16:
      return at::kBFloat16;
    case Dtype::int8:
      return at::kChar;
    case Dtype::uint8:
      return at::kByte;
    case Dtype::int32:
      return at::kInt;
    case Dtype::int64:
      return at::kLong;
    case Dtype::boolean:
      return at::kBool;
    case Dtype::opaque:
      break;
  }
  return at::ScalarType::Undefined;
}

}  // namespace tandem
