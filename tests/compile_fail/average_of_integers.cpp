// SPDX-License-Identifier: Apache-2.0
// The mean of two integers is mostly none.
// expect: tandem: Avg is not defined on integers
// needs: bare
#include <cstdint>
#include <span>

#include "tandem/collective/all_reduce.hpp"
#include "tandem/transport/shm_ring.hpp"

void touch(tandem::Communicator<tandem::ShmRing>& world, std::span<std::int64_t> data) {
#ifdef TANDEM_SHOULD_FAIL
  tandem::all_reduce(world, data, tandem::Avg{});
#else
  tandem::all_reduce(world, data, tandem::Sum{});
#endif
}
