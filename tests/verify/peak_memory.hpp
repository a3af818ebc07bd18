// SPDX-License-Identifier: Apache-2.0
// The most memory that this process ever had resident.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace tandem::verify {

/// In bytes, pages that it shares with others included; 0 where the system does not tell.
inline std::uint64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::uint64_t kilobytes = 0;
    if (word == "VmHWM:" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

}  // namespace tandem::verify
