// SPDX-License-Identifier: Apache-2.0
// How many threads run in this process besides the caller's: what fork would lose. Must not know why that matters.
#pragma once

#include <poll.h>

#include <filesystem>
#include <system_error>

#include "tandem/core/sanitized.hpp"

namespace tandem::detail {

inline int count_threads() {
  std::error_code fault;
  int count = 0;
  for (std::filesystem::directory_iterator at("/proc/self/task", fault), end; !fault && at != end;
       at.increment(fault)) {
    ++count;
  }
  return count;
}

/// How many threads run besides those of a sanitizer, after giving joined ones a moment: the kernel lists a thread a
/// little longer than join() waits for it.
inline int other_threads() {
  constexpr int own = thread_sanitized ? 3 : 1;  // ThreadSanitizer runs up to two itself, again in a forked process
  for (int attempt = 0; attempt < 50 && count_threads() > own; ++attempt) ::poll(nullptr, 0, 2);
  return count_threads() - own;
}

}  // namespace tandem::detail
