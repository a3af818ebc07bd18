// SPDX-License-Identifier: Apache-2.0
// Copies between memory that several processors use. Not std::memcpy, which knows nothing of who has the lines:
//  - from a few KB on it is "rep movsb" on many machines, several times slower when lines come from another core's
//  cache
//    (Zen 3, 256 KB just written by another core: 89 us against 19 us);
//  - its stores fetch lines that another core has read, only to overwrite them (Zen 3, 32 KB into a slot that was read:
//    5.0 us; with stores past the caches 1.0 us, and the reader is not slower: 2.3 us both ways).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__) && !defined(__SANITIZE_THREAD__)
#include <emmintrin.h>
#define TANDEM_STREAMING_STORES 1
#endif

namespace tandem {

namespace detail {
using CopyBlock __attribute__((vector_size(16), aligned(1), may_alias)) = unsigned char;
}

/// For memory that this core goes on using: the destination ends up in its cache.
inline void copy_bytes(void* to, const void* from, std::size_t bytes) noexcept {
  auto* d = static_cast<unsigned char*>(to);
  const auto* s = static_cast<const unsigned char*>(from);
  constexpr std::size_t small = 1024;
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

/// For memory that another core reads next. The stores are ordered before any later store of this thread.
inline void stream_bytes(void* to, const void* from, std::size_t bytes) noexcept {
#if defined(TANDEM_STREAMING_STORES)
  constexpr std::size_t small = 512;  // below, a line or two are fetched at the same time as the flag's
  auto* d = static_cast<unsigned char*>(to);
  const auto* s = static_cast<const unsigned char*>(from);
  if (bytes >= small && reinterpret_cast<std::uintptr_t>(d) % sizeof(__m128i) == 0) {
    for (; bytes >= 64; bytes -= 64, d += 64, s += 64) {
      const auto* const in = reinterpret_cast<const __m128i*>(s);
      auto* const out = reinterpret_cast<__m128i*>(d);
      const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2),
                    e = _mm_loadu_si128(in + 3);
      _mm_stream_si128(out, a);
      _mm_stream_si128(out + 1, b);
      _mm_stream_si128(out + 2, c);
      _mm_stream_si128(out + 3, e);
    }
    if (bytes != 0) std::memcpy(d, s, bytes);
    _mm_sfence();  // these stores are not ordered by a release store otherwise
    return;
  }
#endif
  copy_bytes(to, from, bytes);
}

}  // namespace tandem

#undef TANDEM_STREAMING_STORES
