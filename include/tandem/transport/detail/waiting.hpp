// SPDX-License-Identifier: Apache-2.0
// Sleeping on a 64-bit word in shared memory until its one writer changes it. Knows nothing of what the word means.
//
// The writer pays one load of a line it owns, no fence: the sleeper issues the fence on every processor (membarrier)
// between announcing itself and looking at the word for the last time. Where membarrier is missing, a wake-up may be
// lost and costs one slice (the caller never sleeps longer than a slice at a time).
#pragma once

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <climits>
#include <cstdint>

namespace tandem::detail {

/// Once per process, before the first sleep of any peer.
inline void register_sleeping() noexcept { ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0); }

inline std::uint32_t* futex_word(const std::atomic<std::uint64_t>& word) noexcept {
  // The low half of the word is what the kernel compares.
  constexpr std::size_t low = std::endian::native == std::endian::little ? 0 : 1;
  return reinterpret_cast<std::uint32_t*>(const_cast<std::atomic<std::uint64_t>*>(&word)) + low;
}

/// Sleeps while `word` holds `seen`, at most `span`. `sleepers` belongs to the word's writer and is counted up
/// meanwhile.
inline void sleep_on(const std::atomic<std::uint64_t>& word, std::uint64_t seen, std::atomic<std::uint32_t>& sleepers,
                     std::chrono::nanoseconds span) noexcept {
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  ::syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
  if (word.load(std::memory_order_seq_cst) == seen) {
    timespec limit{};
    limit.tv_sec = static_cast<time_t>(span.count() / 1000000000);
    limit.tv_nsec = static_cast<long>(span.count() % 1000000000);
    ::syscall(SYS_futex, futex_word(word), FUTEX_WAIT, static_cast<std::uint32_t>(seen), &limit, nullptr, 0);
  }
  sleepers.fetch_sub(1, std::memory_order_relaxed);
}

inline void wake_all(const std::atomic<std::uint64_t>& word) noexcept {
  ::syscall(SYS_futex, futex_word(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

inline void nap(std::chrono::nanoseconds span) noexcept {
  timespec limit{};
  limit.tv_sec = static_cast<time_t>(span.count() / 1000000000);
  limit.tv_nsec = static_cast<long>(span.count() % 1000000000);
  ::clock_nanosleep(CLOCK_MONOTONIC, 0, &limit, nullptr);
}

}  // namespace tandem::detail
