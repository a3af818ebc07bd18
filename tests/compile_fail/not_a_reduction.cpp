// SPDX-License-Identifier: Apache-2.0
// Not callable with two elements.
// expect: tandem: this is no reduction of these elements
// needs: bare
#include <cstdint>
#include <span>

#include "tandem/collective/all_reduce.hpp"
#include "tandem/transport/shm_ring.hpp"

void touch(tandem::Communicator<tandem::ShmRing>& world, std::span<float> data) {
#ifdef TANDEM_SHOULD_FAIL
  tandem::all_reduce(world, data, [](float x) { return x; });
#else
  tandem::all_reduce(world, data, [](float x, float sofar) { return x + sofar; });
#endif
}
