// SPDX-License-Identifier: Apache-2.0
// expect: anything
// refused: compiles with TANDEM_SHOULD_FAIL
int main() {}
