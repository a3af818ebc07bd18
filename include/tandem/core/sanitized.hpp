// SPDX-License-Identifier: Apache-2.0
// Is this build watched by a sanitizer? Constants alone.
#pragma once

namespace tandem::detail {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool address_sanitized = true;
#elif defined(__has_feature)
inline constexpr bool address_sanitized = __has_feature(address_sanitizer);
#else
inline constexpr bool address_sanitized = false;
#endif
#if defined(__SANITIZE_THREAD__)
inline constexpr bool thread_sanitized = true;
#elif defined(__has_feature)
inline constexpr bool thread_sanitized = __has_feature(thread_sanitizer);
#else
inline constexpr bool thread_sanitized = false;
#endif

}  // namespace tandem::detail
