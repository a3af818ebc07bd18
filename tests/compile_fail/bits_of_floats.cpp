// SPDX-License-Identifier: Apache-2.0
// The bits of two floats, taken together, are no float that means anything.
// expect: tandem: BitAnd, BitOr and BitXor are not defined on floating types
// needs: bare
#include <cstdint>
#include <span>

#include "tandem/collective/all_reduce.hpp"
#include "tandem/transport/shm_ring.hpp"

void touch(tandem::Communicator<tandem::ShmRing>& world, std::span<float> data) {
#ifdef TANDEM_SHOULD_FAIL
  tandem::all_reduce(world, data, tandem::BitAnd{});
#else
  tandem::all_reduce(world, data, tandem::LogicalAnd{});
#endif
}
