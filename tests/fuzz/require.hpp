// SPDX-License-Identifier: Apache-2.0
// What a fuzz target demands: a property that does not hold ends the run, and libFuzzer keeps the bytes that showed it.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace tandem::test {

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

}  // namespace tandem::test
