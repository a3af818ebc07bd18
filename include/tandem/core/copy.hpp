// SPDX-License-Identifier: Apache-2.0
// Copies between memory that several processors use, and who is left with its cache lines. Not std::memcpy, which is
// "rep movsb" from a few KB on with many processors: several times slower where lines come from another core's cache
// (Zen 3, 256 KB just written by another core: 89 us against 19 us), and slower below that, too (Sapphire Rapids, an
// all_gather of 1 KB by 2 ranks: 0.79 us against 0.6). See docs/decisions/0006.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tandem/core/bytes.hpp"
#include "tandem/core/sanitized.hpp"

namespace tandem {

namespace detail {
using CopyBlock __attribute__((vector_size(16), aligned(1), may_alias)) = unsigned char;
}

/// For memory that this core goes on using: the destination ends up in its cache.
inline void copy_bytes(void* to, const void* from, std::size_t bytes) noexcept {
  auto* d = static_cast<unsigned char*>(to);
  const auto* s = static_cast<const unsigned char*>(from);
  constexpr std::size_t small = 128;
  if (bytes > small) {
    for (; bytes >= 4 * sizeof(detail::CopyBlock); bytes -= 64, d += 64, s += 64) {
      // Not auto: deduction drops the alignment of 1, and g++ then stores with instructions that fault.
      const detail::CopyBlock* const in = reinterpret_cast<const detail::CopyBlock*>(s);
      detail::CopyBlock* const out = reinterpret_cast<detail::CopyBlock*>(d);
      const detail::CopyBlock a = in[0], b = in[1], c = in[2], e = in[3];
      out[0] = a;
      out[1] = b;
      out[2] = c;
      out[3] = e;
    }
  }
  if (bytes != 0) std::memcpy(d, s, bytes);
}

/// For memory that another core has read and is to read again. Intel's string move takes a line for itself without
/// reading it first: the copy is no faster, but the loads that follow are (Sapphire Rapids, 4 ranks that share 2 cores,
/// an all-reduce of 256 KB: 146 us, so 106). Short copies lose by it. AMD's was not measured.
inline void copy_for_others(void* to, const void* from, std::size_t bytes) noexcept {
#if defined(__x86_64__)
  constexpr std::size_t long_enough = 8192;
  if (bytes >= long_enough && !detail::address_sanitized &&
      !detail::thread_sanitized) {  // which do not see into assembly
    static const bool pays = (__builtin_cpu_init(), __builtin_cpu_is("intel") != 0);
    if (pays) {
      asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
      return;
    }
  }
#endif
  copy_bytes(to, from, bytes);
}

#if defined(__SSE2__)
namespace detail {
/// A function of its own: inlined, its tail makes g++ warn of arrays that are too short to come here.
[[gnu::noinline]] inline void copy_past_caches(unsigned char* d, const unsigned char* s, std::size_t bytes) noexcept {
  using Vector __attribute__((vector_size(16))) = long long;
  const std::size_t head = (sizeof(Vector) - reinterpret_cast<std::uintptr_t>(d) % sizeof(Vector)) % sizeof(Vector);
  std::memcpy(d, s, head);
  d += head, s += head, bytes -= head;
  for (; bytes >= 4 * sizeof(Vector); bytes -= 64, d += 64, s += 64) {
    Vector parts[4];
    std::memcpy(parts, s, sizeof parts);
    for (int k = 0; k < 4; ++k) {
#if defined(__clang__)
      __builtin_nontemporal_store(parts[k], reinterpret_cast<Vector*>(d) + k);
#else
      __builtin_ia32_movntdq(reinterpret_cast<Vector*>(d) + k, parts[k]);
#endif
    }
  }
  std::memcpy(d, s, bytes);
  __builtin_ia32_sfence();  // these stores are ordered by nothing else, not even by a release store
}
}  // namespace detail
#endif

/// For results: what is too long to stay in the caches until somebody reads it goes past them, so that its lines need
/// not be loaded only to be overwritten (Zen 4, 2 processors: 8 MB 880 -> 697 us, 32 MB 3,540 -> 2,301; 2 MB loses).
inline void copy_result(void* to, const void* from, std::size_t bytes) noexcept {
#if defined(__SSE2__)
  constexpr std::size_t cached = std::size_t{4} << 20;
  if (bytes >= cached) {
    return detail::copy_past_caches(static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from), bytes);
  }
#endif
  copy_bytes(to, from, bytes);
}

/// The reader's last act on bytes that another core wrote and will write again: one store to every cache line that
/// begins in them. It leaves the lines with this core alone, and the writer then fetches them at the speed of a copy;
/// lines that both cores hold are made its own again one by one, which is three to five times slower. The bytes are
/// lost.
inline void take_lines(void* begin, std::size_t bytes) noexcept {
  auto* const first = static_cast<unsigned char*>(begin);
  const std::size_t ahead =
      (cache_line_bytes - reinterpret_cast<std::uintptr_t>(first) % cache_line_bytes) % cache_line_bytes;
  for (std::size_t at = ahead; at < bytes; at += cache_line_bytes)
    *static_cast<volatile unsigned char*>(first + at) = 0;
}

/// The same where it pays: on Zen 3 and 4, three to five times. On Sapphire Rapids it costs 10 to 20 %; where it was
/// not measured, nothing is done. See docs/decisions/0006.
inline void give_lines_back(void* begin, std::size_t bytes) noexcept {
#if defined(__x86_64__)
  static const bool pays = (__builtin_cpu_init(), __builtin_cpu_is("amd") != 0);
  if (pays) take_lines(begin, bytes);
#else
  static_cast<void>(begin);
  static_cast<void>(bytes);
#endif
}

}  // namespace tandem
