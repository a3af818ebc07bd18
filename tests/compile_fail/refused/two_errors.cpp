// SPDX-License-Identifier: Apache-2.0
// expect: first
// refused: must give exactly one error, but gives 2
int main() {
#ifdef TANDEM_SHOULD_FAIL
  static_assert(sizeof(int) == 1, "first");
  static_assert(sizeof(int) == 2, "second");
#endif
}
