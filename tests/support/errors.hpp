// SPDX-License-Identifier: Apache-2.0
// Errors that a test expects: caught, and looked at by their words.
#pragma once

#include <optional>
#include <string>

#include "tandem/core/error.hpp"

namespace tandem::test {

/// What the call throws, or nothing when it returns. Other exceptions pass through.
template <class Call>
std::optional<Error> error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}
inline bool says(const Error& error, const std::string& text) {
  return std::string(error.what()).find(text) != std::string::npos;
}

}  // namespace tandem::test
