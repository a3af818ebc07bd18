// SPDX-License-Identifier: Apache-2.0
// Reads environment variables, with one sentence for a value that cannot be. Decides nothing about their meaning.
#pragma once

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "tandem/core/error.hpp"

namespace tandem {

/// The variable's text; empty when unset or set to nothing (shells cannot tell the two apart in practice).
inline std::optional<std::string> environment(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

/// A whole number from the environment. Throws Error(environment) naming the variable when it is none or out of range.
inline std::optional<std::int64_t> environment_integer(const char* name, std::int64_t least, std::int64_t most) {
  const auto text = environment(name);
  if (!text) return std::nullopt;
  std::int64_t value = 0;
  const char* const end = text->data() + text->size();
  const auto [stop, fault] = std::from_chars(text->data(), end, value);
  if (fault != std::errc() || stop != end || value < least || value > most) {
    throw Error(ErrorKind::environment, "tandem: " + std::string(name) + "=\"" + *text +
                                            "\" is not a whole number from " + std::to_string(least) + " to " +
                                            std::to_string(most));
  }
  return value;
}

}  // namespace tandem
