// SPDX-License-Identifier: Apache-2.0
// Where a call stands in the user's program: carried by every collective, compared between ranks by its hash, and
// named in errors. Not std::source_location: clang 14 with libstdc++ 12 has none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tandem {

struct CallSite {
  const char* file = "";
  const char* function = "";
  int line = 0;

  /// The caller's own place when used as a default argument.
  static constexpr CallSite here(const char* file = __builtin_FILE(), const char* function = __builtin_FUNCTION(),
                                 int line = __builtin_LINE()) noexcept {
    return {file, function, line};
  }

  /// Equal in every process of one program, whatever its address layout. Looks at the line and the last eight
  /// characters of the file only: short enough that a compiler folds it to a constant, so a call pays nothing.
  constexpr std::uint32_t hash() const noexcept {
    std::uint32_t value = 2166136261U ^ static_cast<std::uint32_t>(line);
    const std::size_t length = __builtin_strlen(file);
    const std::size_t first = length > 8 ? length - 8 : 0;
    for (std::size_t i = first; i < length; ++i) {
      value = (value ^ static_cast<unsigned char>(file[i])) * 16777619U;
    }
    return (value ^ static_cast<std::uint32_t>(line)) * 16777619U;
  }

  /// "file.cpp:12 (function)".
  std::string text() const { return std::string(file) + ":" + std::to_string(line) + " (" + function + ")"; }
};

}  // namespace tandem
