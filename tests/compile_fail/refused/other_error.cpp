// SPDX-License-Identifier: Apache-2.0
// expect: tandem: the right sentence; what to change
// refused: the error does not contain the text
int main() {
#ifdef TANDEM_SHOULD_FAIL
  static_assert(sizeof(int) == 1, "tandem: another sentence");
#endif
}
