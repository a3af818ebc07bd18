// SPDX-License-Identifier: Apache-2.0
// Bytes of one peer that arrived before they were asked for: two ranks that both send first must not wait for each
// other, so a rank that waits for room takes what comes in. Knows no messages.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace tandem {

class Inbox {
 public:
  bool empty() const noexcept { return read_ == bytes_.size(); }
  void put(std::span<const std::byte> bytes) {
    if (empty()) {
      bytes_.clear();
      read_ = 0;
    }
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  /// Moves out at most to.size() bytes, oldest first; returns how many.
  std::size_t take(std::span<std::byte> to) noexcept {
    const std::size_t count = std::min(to.size(), bytes_.size() - read_);
    if (count != 0) std::memcpy(to.data(), bytes_.data() + read_, count);
    read_ += count;
    if (empty()) {
      std::vector<std::byte>().swap(bytes_);  // what two ranks that sent first left behind may be large
      read_ = 0;
    } else if (read_ >= compaction && read_ * 2 >= bytes_.size()) {
      bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(read_));
      read_ = 0;
    }
    return count;
  }

 private:
  static constexpr std::size_t compaction = 1U << 20;
  std::vector<std::byte> bytes_;
  std::size_t read_ = 0;
};

}  // namespace tandem
