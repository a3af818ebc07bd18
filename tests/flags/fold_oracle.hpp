// SPDX-License-Identifier: Apache-2.0
// The reductions once more, as plain scalar code that is compiled without any of the flags under test.
#pragma once

#include <cstddef>

#include "tandem/core/dtype.hpp"

namespace tandem::test {

enum class Kind {
  sum,
  prod,
  min,
  max,
  avg,
  pre_mul_sum,
  bit_and,
  bit_or,
  bit_xor,
  logical_and,
  logical_or,
  logical_xor
};

/// acc = sources[0]; acc = op(sources[k], acc); avg divides by source_count at the end. No vector type, no
/// tandem/reduce.
void oracle_fold(Dtype dtype, Kind kind, double factor, const void* const* sources, int source_count, void* result,
                 std::size_t count);

/// Whether two elements agree: equal bits, or both NaN (payloads are outside the contract).
bool same_element(Dtype dtype, const void* a, const void* b);

bool is_nan_element(Dtype dtype, const void* element);

}  // namespace tandem::test
