// SPDX-License-Identifier: Apache-2.0
// Element types on the wire and their C++ counterparts. float16 and bfloat16 are plain 16-bit storage here; their
// arithmetic (rounding after every addition) belongs to reduce/. Knows no tensor library.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tandem {

/// IEEE binary16, storage only; bit-compatible with c10::Half.
struct Float16 {
  std::uint16_t bits = 0;
  friend constexpr bool operator==(Float16, Float16) = default;  // compares bits, as every check here does
};
/// bfloat16, storage only; bit-compatible with c10::BFloat16.
struct BFloat16 {
  std::uint16_t bits = 0;
  friend constexpr bool operator==(BFloat16, BFloat16) = default;
};
static_assert(sizeof(Float16) == 2 && sizeof(BFloat16) == 2);

/// `boolean` is one byte an element, 0 or 1.
enum class Dtype : std::uint8_t { float32, float64, float16, bfloat16, int8, uint8, int32, int64, boolean, opaque };
static_assert(sizeof(bool) == 1);

constexpr const char* name_of(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::float32:
      return "float32";
    case Dtype::float64:
      return "float64";
    case Dtype::float16:
      return "float16";
    case Dtype::bfloat16:
      return "bfloat16";
    case Dtype::int8:
      return "int8";
    case Dtype::uint8:
      return "uint8";
    case Dtype::int32:
      return "int32";
    case Dtype::int64:
      return "int64";
    case Dtype::boolean:
      return "bool";
    case Dtype::opaque:
      return "opaque";
  }
  return "?";
}

/// Bytes of one element; 0 for opaque, whose size only the C++ type knows.
constexpr std::size_t size_of(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::float64:
    case Dtype::int64:
      return 8;
    case Dtype::float32:
    case Dtype::int32:
      return 4;
    case Dtype::float16:
    case Dtype::bfloat16:
      return 2;
    case Dtype::int8:
    case Dtype::uint8:
    case Dtype::boolean:
      return 1;
    case Dtype::opaque:
      return 0;
  }
  return 0;
}

/// The Dtype of a C++ element type; opaque for a user's own trivially copyable struct.
template <class T>
constexpr Dtype dtype_of() noexcept {
  if constexpr (std::is_same_v<T, float>)
    return Dtype::float32;
  else if constexpr (std::is_same_v<T, double>)
    return Dtype::float64;
  else if constexpr (std::is_same_v<T, Float16>)
    return Dtype::float16;
  else if constexpr (std::is_same_v<T, BFloat16>)
    return Dtype::bfloat16;
  else if constexpr (std::is_same_v<T, bool>)
    return Dtype::boolean;
  else if constexpr (std::is_integral_v<T> && sizeof(T) == 1 && std::is_signed_v<T>)
    return Dtype::int8;
  else if constexpr (std::is_integral_v<T> && sizeof(T) == 1)
    return Dtype::uint8;
  else if constexpr (std::is_integral_v<T> && sizeof(T) == 4 && std::is_signed_v<T>)
    return Dtype::int32;
  else if constexpr (std::is_integral_v<T> && sizeof(T) == 8 && std::is_signed_v<T>)
    return Dtype::int64;
  else
    return Dtype::opaque;
}

/// What collectives move: bytes that may be copied as they are.
template <class T>
concept Element = std::is_trivially_copyable_v<T> && !std::is_const_v<T> && !std::is_pointer_v<T>;

/// Calls f(T{}) with the C++ type of a run-time dtype. opaque has no type here and is never passed.
template <class F>
constexpr decltype(auto) visit_dtype(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::float64:
      return f(double{});
    case Dtype::float16:
      return f(Float16{});
    case Dtype::bfloat16:
      return f(BFloat16{});
    case Dtype::int8:
      return f(std::int8_t{});
    case Dtype::uint8:
      return f(std::uint8_t{});
    case Dtype::int32:
      return f(std::int32_t{});
    case Dtype::int64:
      return f(std::int64_t{});
    case Dtype::boolean:
      return f(bool{});
    case Dtype::float32:
    case Dtype::opaque:
      break;
  }
  return f(float{});
}

}  // namespace tandem
