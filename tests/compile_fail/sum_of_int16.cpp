// SPDX-License-Identifier: Apache-2.0
// An integer that is no element type: ranks could not tell int16 from uint16, whose minimum is another.
// expect: tandem: the library's reductions are defined on float32
// needs: bare
#include <cstdint>
#include <span>

#include "tandem/collective/all_reduce.hpp"
#include "tandem/transport/shm_ring.hpp"

void touch(tandem::Communicator<tandem::ShmRing>& world, std::span<std::int16_t> data) {
#ifdef TANDEM_SHOULD_FAIL
  tandem::all_reduce(world, data, tandem::Min{});
#else
  tandem::all_reduce(world, data, [](std::int16_t x, std::int16_t least) { return x < least ? x : least; });
#endif
}
