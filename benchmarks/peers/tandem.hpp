// SPDX-License-Identifier: Apache-2.0
// The library itself as a peer. This header names none of its transports, which are compiled one by one.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "harness/case.hpp"

namespace tandem::bench {

/// One rank's world.
class Tandem {
 public:
  virtual ~Tandem() = default;
  /// The call that this case times. The algorithm is left to the library, as users leave it.
  virtual std::function<void()> operation(const Case& which, std::byte* input, std::byte* output) = 0;
  /// Registered memory; it lives as long as the world.
  virtual std::byte* allocate(std::size_t bytes) = 0;
};

/// Join the job of the environment; collective. With `adopt`, registered memory is that of plain tensors, which lie in
/// the arena by adopt_allocator.
std::unique_ptr<Tandem> join_over_shm(bool adopt);
std::unique_ptr<Tandem> join_over_tcp();

}  // namespace tandem::bench
