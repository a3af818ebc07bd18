// SPDX-License-Identifier: Apache-2.0
// Gives a fold the floating-point state the contract is written for: subnormals kept, rounding to nearest. An object
// linked with -ffast-math turns flush-to-zero on for the whole process, so the library cannot rely on the default.
#pragma once

#include <cstdint>

namespace tandem::detail {

/// While it lives, the thread keeps subnormals and rounds to nearest even. Reading the state costs about a nanosecond;
/// it is written only where it differs. The memory clobbers keep a fold's loads and stores, and with them its
/// arithmetic, inside.
class ExactFloats {
 public:
  ExactFloats(const ExactFloats&) = delete;
  ExactFloats& operator=(const ExactFloats&) = delete;

#if defined(__SSE__)
  ExactFloats() noexcept {
    asm volatile("stmxcsr %0" : "=m"(saved_) : : "memory");
    if ((saved_ & inexact) != 0) [[unlikely]]
      write(saved_ & ~inexact);
  }
  ~ExactFloats() {
    if ((saved_ & inexact) != 0) [[unlikely]]
      write(saved_);
  }

 private:
  static constexpr std::uint32_t inexact = 0x8000U | 0x0040U | 0x6000U;  // flush-to-zero, denormals-are-zero, rounding
  static void write(std::uint32_t state) noexcept { asm volatile("ldmxcsr %0" : : "m"(state) : "memory"); }
  std::uint32_t saved_ = 0;
#elif defined(__aarch64__)
  ExactFloats() noexcept {
    asm volatile("mrs %0, fpcr" : "=r"(saved_) : : "memory");
    if ((saved_ & inexact) != 0) [[unlikely]]
      write(saved_ & ~inexact);
  }
  ~ExactFloats() {
    if ((saved_ & inexact) != 0) [[unlikely]]
      write(saved_);
  }

 private:
  static constexpr std::uint64_t inexact = (1ULL << 24) | (3ULL << 22);  // FZ and the rounding mode
  static void write(std::uint64_t state) noexcept { asm volatile("msr fpcr, %0" : : "r"(state) : "memory"); }
  std::uint64_t saved_ = 0;
#else
  ExactFloats() noexcept {}  // user-provided, so that the object is never an unused variable
  ~ExactFloats() {}
#endif
};

}  // namespace tandem::detail
