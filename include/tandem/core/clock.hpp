// SPDX-License-Identifier: Apache-2.0
// The one clock that deadlines use: monotonic, unaffected by a changed wall clock; and a cheaper counter beside it for
// records that every operation writes.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace tandem {

using Clock = std::chrono::steady_clock;

/// "0.5 s", "30 s": to a tenth; below that "20 ms".
inline std::string format_seconds(std::chrono::nanoseconds span) {
  if (span < std::chrono::milliseconds(100))
    return std::to_string(std::chrono::round<std::chrono::milliseconds>(span).count()) + " ms";
  const auto tenths = std::chrono::round<std::chrono::duration<long long, std::deci>>(span).count();
  return std::to_string(tenths / 10) + (tenths % 10 != 0 ? "." + std::to_string(tenths % 10) : "") + " s";
}

/// A counter of constant rate, read in a few nanoseconds (Clock::now() takes about 25). Its unit is only known by
/// reading it together with Clock twice.
inline std::uint64_t ticks() noexcept {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  std::uint64_t value;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#else
  return static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
#endif
}

}  // namespace tandem
