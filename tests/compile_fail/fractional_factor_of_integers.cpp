// SPDX-License-Identifier: Apache-2.0
// A third of an integer is mostly none.
// expect: tandem: PreMulSum takes a number as its factor, on integers an integer
// needs: bare
#include <cstdint>
#include <span>

#include "tandem/collective/all_reduce.hpp"
#include "tandem/transport/shm_ring.hpp"

void touch(tandem::Communicator<tandem::ShmRing>& world, std::span<std::int32_t> data) {
#ifdef TANDEM_SHOULD_FAIL
  tandem::all_reduce(world, data, tandem::PreMulSum{0.5});
#else
  tandem::all_reduce(world, data, tandem::PreMulSum{2});
#endif
}
