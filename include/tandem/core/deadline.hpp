// SPDX-License-Identifier: Apache-2.0
// A point in time after which a blocking call gives up. Knows nothing of what is being waited for.
#pragma once

#include <chrono>

#include "tandem/core/clock.hpp"

namespace tandem {

class Deadline {
 public:
  /// Gives up `span` from now; a span too long for the clock means never.
  static Deadline after(std::chrono::nanoseconds span) {
    const auto now = Clock::now();
    if (span >= Clock::time_point::max() - now) return never();
    return Deadline(now + span);
  }
  static constexpr Deadline never() noexcept { return Deadline(Clock::time_point::max()); }

  bool expired() const noexcept { return when_ != Clock::time_point::max() && Clock::now() >= when_; }
  /// Time left, never negative.
  std::chrono::nanoseconds remaining() const noexcept {
    if (when_ == Clock::time_point::max()) return std::chrono::nanoseconds::max();
    const auto left = when_ - Clock::now();
    return left.count() > 0 ? std::chrono::duration_cast<std::chrono::nanoseconds>(left) : std::chrono::nanoseconds(0);
  }

 private:
  explicit constexpr Deadline(Clock::time_point when) noexcept : when_(when) {}
  Clock::time_point when_;
};

}  // namespace tandem
