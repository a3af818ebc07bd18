// SPDX-License-Identifier: Apache-2.0
// A type's name as the compiler spells it, and a number made of it: how the processes of one program agree on which of
// a user's types they mean. Stable within one build, which is all that a program's ranks share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tandem::detail {

template <class Type>
constexpr std::string_view type_name() {
  const std::string_view text = __PRETTY_FUNCTION__;
  const std::size_t begin = text.find("Type = ") + 7;
  const std::size_t semicolon = text.find("; std::string_view", begin);  // g++ adds its own aliases
  return text.substr(begin, (semicolon == std::string_view::npos ? text.rfind(']') : semicolon) - begin);
}

template <class Type>
consteval std::uint32_t type_hash() {
  std::uint32_t hash = 2166136261U;  // FNV-1a
  for (const char c : type_name<Type>()) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  return hash;
}

}  // namespace tandem::detail
