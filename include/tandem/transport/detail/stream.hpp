// SPDX-License-Identifier: Apache-2.0
// Bytes through any pair of stream ends, piece by piece with a copy. Knows reserve / commit and peek / consume, and no
// transport.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "tandem/core/copy.hpp"

namespace tandem::detail {

/// Copies as much as fits now, slot by slot; returns the number of bytes taken.
template <class Out>
std::size_t write_some(Out& out, std::span<const std::byte> bytes) noexcept {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const auto slot = out.reserve();
    if (slot.empty()) break;
    const std::size_t part = std::min(slot.size(), bytes.size() - done);
    copy_bytes(slot.data(), bytes.data() + done, part);
    out.commit(part);
    done += part;
  }
  return done;
}

/// Copies out what has arrived, at most bytes.size(); returns the number of bytes copied.
template <class In>
std::size_t read_some(In& in, std::span<std::byte> bytes) noexcept {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const auto seen = in.peek();
    if (seen.empty()) break;
    const std::size_t part = std::min(seen.size(), bytes.size() - done);
    copy_bytes(bytes.data() + done, seen.data(), part);
    in.consume(part);
    done += part;
  }
  return done;
}

}  // namespace tandem::detail
