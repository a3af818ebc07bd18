// SPDX-License-Identifier: Apache-2.0
// The library's version, for programs and for messages; knows nothing else.
#pragma once

namespace tandem {

inline constexpr int version_major = 0;
inline constexpr int version_minor = 1;
inline constexpr int version_patch = 0;
inline constexpr const char* version_text = "0.1.0";

}  // namespace tandem
