// SPDX-License-Identifier: Apache-2.0
// How a waiting loop gives the processor away: a few pauses, then yields, then it says that sleeping is due.
// Knows nothing of what is waited for, nor how to sleep on it.
#pragma once

#include <sched.h>

#include <chrono>

#include "tandem/core/clock.hpp"

namespace tandem {

/// Tells the core that this is a spin loop; costs tens of cycles and frees the sibling thread.
inline void cpu_relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#else
  asm volatile("" ::: "memory");
#endif
}

/// Measured with 4 ranks on 2 cores at 1 KB: 4.4 us when yielding at once, 108 us with 2,000 pauses first. So pauses
/// are few, and none at all when ranks outnumber processors. Yields end by number or by time, whichever comes first: on
/// a busy host each may last several ms (2,000 of them took 11 s), and until they end nobody looks at the deadline.
class Backoff {
 public:
  explicit constexpr Backoff(int pauses, int yields = 2000) noexcept : pauses_(pauses), yields_(yields) {}

  /// Waits a moment. True when the loop has waited long enough that it should look at its deadline, at its peers'
  /// health, and then sleep; true on every call from then on.
  bool wait() noexcept {
    if (turn_ < pauses_) {
      ++turn_;
      cpu_relax();
      return false;
    }
    if (turn_ < pauses_ + yields_) {
      ++turn_;
      sched_yield();
      // Often at first: on an overloaded host a single yield may take 50 ms.
      const int yielded = turn_ - pauses_;
      if (yielded % 16 != 0 && (yielded & (yielded - 1)) != 0) return false;
      const auto now = Clock::now();
      if (end_ == Clock::time_point{}) end_ = now + longest;
      if (now >= end_) turn_ = pauses_ + yields_;
      return false;
    }
    return true;
  }

 private:
  static constexpr std::chrono::milliseconds longest{10};

  int pauses_;
  int yields_;
  int turn_ = 0;
  Clock::time_point end_{};
};

}  // namespace tandem
