// SPDX-License-Identifier: Apache-2.0
// How much more memory the control groups of this process (a container's limit) let it take. Linux charges shared
// memory to them, and answers an excess with SIGKILL: fallocate fails where the host is short, not where a group is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace tandem::detail {

/// A control group that counts memory, and how its version of the interface calls what it counts.
struct MemoryGroup {
  std::string folder;
  const char* limit;
  const char* usage;
  const char* reclaimable[3];  // of memory.stat: files' pages and the like, given back before anything is killed
};

/// This process's own group first, then those around it; what is not mounted is left out by whoever reads it.
inline std::vector<MemoryGroup> memory_groups() {
  std::vector<MemoryGroup> groups;
  std::ifstream memberships("/proc/self/cgroup");
  for (std::string line; std::getline(memberships, line);) {  // number:controllers:path
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::string controllers = line.substr(first, second - first + 1);
    controllers.front() = controllers.back() = ',';
    MemoryGroup group{};
    std::string root;
    if (controllers == ",,") {
      root = "/sys/fs/cgroup";
      group = {{}, "memory.max", "memory.current", {"inactive_file", "active_file", "slab_reclaimable"}};
    } else if (controllers.find(",memory,") != std::string::npos) {
      root = "/sys/fs/cgroup/memory";
      group = {{}, "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file", "total_active_file", ""}};
    } else {
      continue;
    }
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      if (path == "/") path.clear();
      group.folder = root + path;
      groups.push_back(group);
      if (path.find('/') == std::string::npos) break;
    }
  }
  return groups;
}

/// Bytes that this process may still take before the tightest of its groups is at its limit; all ones when none has
/// one. What other processes of the group take afterwards is not foreseen.
inline std::uint64_t memory_left_in_groups() {
  const auto number_in = [](const std::string& file) -> std::optional<std::uint64_t> {
    std::uint64_t number = 0;
    if (std::ifstream(file) >> number) return number;
    return std::nullopt;  // no such file, or "max"
  };
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (const MemoryGroup& group : memory_groups()) {
    const auto limit = number_in(group.folder + "/" + group.limit);
    const auto usage = number_in(group.folder + "/" + group.usage);
    if (!limit || !usage) continue;
    std::uint64_t reclaimable = 0;
    std::ifstream statistics(group.folder + "/memory.stat");
    std::uint64_t value = 0;
    for (std::string name; statistics >> name >> value;) {
      for (const char* const given_back : group.reclaimable) reclaimable += name == given_back ? value : 0;
    }
    const std::uint64_t taken = *usage - std::min(*usage, reclaimable);
    least = std::min(least, *limit - std::min(*limit, taken));
  }
  return least;
}

}  // namespace tandem::detail
