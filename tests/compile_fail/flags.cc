// SPDX-License-Identifier: Apache-2.0
// Carries the flags of the compile_fail cases; never compiled.
