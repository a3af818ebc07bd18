// SPDX-License-Identifier: Apache-2.0
// What a process holds of the system, for tests that nothing is left behind.
#pragma once

#include <dirent.h>

#include <cstddef>
#include <fstream>
#include <set>
#include <string>

namespace tandem::test {

inline std::set<std::string> entries(const char* folder) {
  std::set<std::string> names;
  if (DIR* const directory = ::opendir(folder)) {
    while (const dirent* const entry = ::readdir(directory)) names.insert(entry->d_name);
    ::closedir(directory);
  }
  return names;
}
inline std::size_t open_descriptors() { return entries("/proc/self/fd").size(); }

struct Mappings {
  int windows = 0;  // of this library's shared memory
  int all = 0;
  std::size_t pages = 0;  // virtual
};
inline Mappings mappings() {
  Mappings found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line); ++found.all) {
    found.windows += line.find("memfd:tandem") != std::string::npos ? 1 : 0;
  }
  std::ifstream("/proc/self/statm") >> found.pages;
  return found;
}

}  // namespace tandem::test
