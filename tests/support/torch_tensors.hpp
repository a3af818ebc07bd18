// SPDX-License-Identifier: Apache-2.0
// What the tests of the collectives on at::Tensor share: data that differs by element and rank in every dtype, and the
// words of a refusal.
#pragma once

#include <torch/torch.h>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tandem/comm/communicator.hpp"
#include "tandem/core/error.hpp"

namespace tandem::test {

/// The text of the Error(argument) that f(world) throws; the communicator stays usable.
template <class World, class F>
std::string said(World& world, F f) {
  try {
    f(world);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::argument);
    CHECK_FALSE(world.poisoned());
    return error.what();
  }
  return "nothing";
}

/// Small whole numbers that differ by element and rank, whose sums are exact in every dtype; of bool, some of each.
inline at::Tensor numbers(int rank, std::int64_t count, at::ScalarType type) {
  const at::Tensor index = at::arange(count, at::kLong);
  if (type == at::kBool) return (index * 7 + rank).remainder(3).eq(0);
  return (index.remainder(5) + rank + 1).to(type);
}

/// All that have sums; bool has none.
inline const std::vector<at::ScalarType> number_dtypes{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                                                       at::kChar,  at::kByte,   at::kInt,  at::kLong};
inline const std::vector<at::ScalarType> all_dtypes = [] {
  auto all = number_dtypes;
  all.push_back(at::kBool);
  return all;
}();

}  // namespace tandem::test
