// SPDX-License-Identifier: Apache-2.0
// The fold's kernels for each instruction set and the choice among them at run time, so that a program built for plain
// x86-64 still uses AVX2 where the machine has it. Every one gives the same bits; only speed depends on the choice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "tandem/core/dtype.hpp"
#include "tandem/reduce/functor.hpp"

namespace tandem::detail {

/// The type that arithmetic on T is done in.
template <class T>
struct ComputeOf {
  using type = T;
};
template <class T>
requires is_integer<T>
struct ComputeOf<T> {
  using type = std::make_unsigned_t<T>;
};
template <class T>
requires is_16_bit_float<T>
struct ComputeOf<T> {
  using type = float;
};
template <>
struct ComputeOf<bool> {
  using type = std::uint8_t;
};
template <class T>
using Compute = typename ComputeOf<T>::type;

/// The functor whose kernel serves Op on T. On bool extremes and bits are what the logical functors compute, and those
/// make every byte 0 or 1, whatever came in.
template <class T, class Op>
struct KernelOf {
  using type = Op;
};
template <class Op>
requires(is_any_of<Op, Min, BitAnd>) struct KernelOf<bool, Op> {
  using type = LogicalAnd;
};
template <class Op>
requires(is_any_of<Op, Max, BitOr>) struct KernelOf<bool, Op> {
  using type = LogicalOr;
};
template <>
struct KernelOf<bool, BitXor> {
  using type = LogicalXor;
};

/// Run-time values of a functor, as scalars.
template <class T>
struct Parameters {
  Compute<T> first_factor = 1;  // 1 when the first source is a partial result
  Compute<T> factor = 1;
  Compute<T> divisor = 1;
  bool divides = false;
};

/// One call's memory. sources[0] starts the fold.
template <class T>
struct Job {
  const T* const* sources;
  int source_count;
  T* const* destinations;
  int destination_count;
  std::size_t count;
};

}  // namespace tandem::detail

// Only the instruction set that will mostly run gets a loop per number of sources: compile time is every user's.
#if defined(__x86_64__)
#define TANDEM_KERNEL_NAMESPACE wide
#define TANDEM_KERNEL_TARGET __attribute__((target("avx2,f16c")))
#define TANDEM_KERNEL_BYTES 32
#define TANDEM_KERNEL_WIDE 1
#define TANDEM_KERNEL_FIXED 1
#include "tandem/reduce/detail/kernels.inc"
#undef TANDEM_KERNEL_NAMESPACE
#undef TANDEM_KERNEL_TARGET
#undef TANDEM_KERNEL_BYTES
#undef TANDEM_KERNEL_WIDE
#undef TANDEM_KERNEL_FIXED
#define TANDEM_KERNEL_FIXED 0
#else
#define TANDEM_KERNEL_FIXED 1
#endif
#define TANDEM_KERNEL_NAMESPACE portable
#define TANDEM_KERNEL_TARGET
#define TANDEM_KERNEL_BYTES 16
#define TANDEM_KERNEL_WIDE 0
#include "tandem/reduce/detail/kernels.inc"
#undef TANDEM_KERNEL_NAMESPACE
#undef TANDEM_KERNEL_TARGET
#undef TANDEM_KERNEL_BYTES
#undef TANDEM_KERNEL_WIDE
#undef TANDEM_KERNEL_FIXED

namespace tandem::detail {

#if defined(__x86_64__)
/// Whether this machine, and its operating system, run the wide kernels. Asked once.
inline bool runs_wide_kernels() noexcept {
#if defined(__AVX2__) && defined(__F16C__)
  return true;  // the whole program already needs them
#else
  static const bool yes = [] {
    unsigned eax = 1, ebx = 0, ecx = 0, edx = 0;
    asm volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    const bool f16c = (ecx & (1U << 29)) != 0;  // clang 14 cannot be asked for it by name
    return f16c && __builtin_cpu_supports("avx2") != 0;
  }();
  return yes;
#endif
}
#endif

template <class T, class Op>
inline void fold_job(const Parameters<T>& parameters, const Job<T>& job) {
#if defined(__x86_64__)
  // Less than a wide vector is served better by a narrow one than lane by lane.
  if (job.count >= wide::Format<T>::lanes && runs_wide_kernels()) return wide::fold_job<T, Op>(parameters, job);
#endif
  portable::fold_job<T, Op>(parameters, job);
}

}  // namespace tandem::detail
