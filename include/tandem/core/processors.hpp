// SPDX-License-Identifier: Apache-2.0
// How many processors this process may run on.
#pragma once

#include <sched.h>

namespace tandem {

/// By affinity (taskset, cpusets, containers); at least 1.
inline int allowed_processors() noexcept {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace tandem
