// SPDX-License-Identifier: Apache-2.0
// How much a test does of what takes too long to be done every time.
#pragma once

#include <cstdlib>

namespace tandem::test {

/// `all`, as much as the case asks for, where TANDEM_TEST_FULL is set, as ctest's *.full set it; else `usual`, which
/// takes a second or two.
inline int in_full(int usual, int all) { return std::getenv("TANDEM_TEST_FULL") != nullptr ? all : usual; }

}  // namespace tandem::test
