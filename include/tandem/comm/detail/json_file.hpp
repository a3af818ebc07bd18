// SPDX-License-Identifier: Apache-2.0
// Writes JSON into an open file from wherever a process happens to be, a signal handler included: asks for no memory,
// takes no lock, calls nothing but write(2). Knows no records, and nothing of commas: its caller writes them.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace tandem::detail {

class JsonFile {
 public:
  explicit JsonFile(int descriptor) noexcept : descriptor_(descriptor) {}
  JsonFile(const JsonFile&) = delete;
  JsonFile& operator=(const JsonFile&) = delete;

  /// As it is: brackets, commas, keys.
  JsonFile& raw(std::string_view text) noexcept {
    while (!text.empty()) {
      if (held_ == buffer_.size()) flush();
      const std::size_t part = std::min(text.size(), buffer_.size() - held_);
      std::memcpy(buffer_.data() + held_, text.data(), part);
      held_ += part;
      text.remove_prefix(part);
    }
    return *this;
  }
  JsonFile& number(std::integral auto value) noexcept {
    std::array<char, 24> digits;
    const char* const end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    return raw({digits.data(), static_cast<std::size_t>(end - digits.data())});
  }
  /// In seconds, to a microsecond.
  JsonFile& seconds(std::uint64_t microseconds) noexcept {
    number(microseconds / 1'000'000).raw(".");
    for (std::uint64_t digit = 100'000; digit != 0; digit /= 10) number(microseconds / digit % 10);
    return *this;
  }
  /// Part of a text between quotation marks, which the caller writes.
  JsonFile& escaped(std::string_view text) noexcept {
    constexpr std::string_view hex = "0123456789abcdef";
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        raw("\\").raw({&c, 1});
      } else if (byte < 0x20) {
        raw("\\u00").raw(hex.substr(byte >> 4, 1)).raw(hex.substr(byte & 15, 1));
      } else {
        raw({&c, 1});
      }
    }
    return *this;
  }
  JsonFile& text(std::string_view words) noexcept { return raw("\"").escaped(words).raw("\""); }

  /// Gives the kernel what is held; false when it did not take all that was ever written.
  bool flush() noexcept {
    std::size_t at = 0;
    while (at < held_ && whole_) {
      const ssize_t count = ::write(descriptor_, buffer_.data() + at, held_ - at);
      if (count > 0) {
        at += static_cast<std::size_t>(count);
      } else if (count == 0 || errno != EINTR) {
        whole_ = false;
      }
    }
    held_ = 0;
    return whole_;
  }

 private:
  int descriptor_;
  bool whole_ = true;
  std::size_t held_ = 0;
  std::array<char, 2048> buffer_;  // a signal's stack may be a small one
};

}  // namespace tandem::detail
