// SPDX-License-Identifier: Apache-2.0
// What memory a process has, by the kernel's own account. Knows nothing of who uses it.
#pragma once

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

namespace tandem::bench {

/// Proportional set sizes in bytes: a page that k processes have counts a k-th in each. Pages of files are left out:
/// they are those of libraries, shared with whatever else runs on the machine.
struct Footprint {
  double anonymous = 0;  ///< malloc, stacks, private mappings
  double shared = 0;     ///< memory that ranks share

  double sum() const noexcept { return anonymous + shared; }
  friend Footprint operator-(const Footprint& a, const Footprint& b) noexcept {
    return {a.anonymous - b.anonymous, a.shared - b.shared};
  }
};

inline Footprint footprint() {
  std::ifstream file("/proc/self/smaps_rollup");
  Footprint found;
  int lines = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    double kilobytes = 0;
    words >> key >> kilobytes;
    if (key == "Pss_Anon:" || key == "Pss_Shmem:") ++lines;
    if (key == "Pss_Anon:") found.anonymous = kilobytes * 1024;
    if (key == "Pss_Shmem:") found.shared = kilobytes * 1024;
  }
  if (lines != 2) throw std::runtime_error("step: the kernel does not tell Pss_Anon and Pss_Shmem (Linux 5.4 does)");
  return found;
}

}  // namespace tandem::bench
