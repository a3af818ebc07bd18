// SPDX-License-Identifier: Apache-2.0
// refused: needs exactly one line
int main() {}
