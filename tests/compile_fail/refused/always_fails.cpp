// SPDX-License-Identifier: Apache-2.0
// expect: always
// refused: must compile without TANDEM_SHOULD_FAIL
int main() { static_assert(sizeof(int) == 1, "always"); }
