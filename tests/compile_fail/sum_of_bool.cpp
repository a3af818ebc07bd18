// SPDX-License-Identifier: Apache-2.0
// Two trues have no sum that is a bool.
// expect: tandem: Sum, Prod, Avg and PreMulSum are not defined on bool
// needs: bare
#include <cstdint>
#include <span>

#include "tandem/collective/all_reduce.hpp"
#include "tandem/transport/shm_ring.hpp"

void touch(tandem::Communicator<tandem::ShmRing>& world, std::span<bool> data) {
#ifdef TANDEM_SHOULD_FAIL
  tandem::all_reduce(world, data, tandem::Sum{});
#else
  tandem::all_reduce(world, data, tandem::LogicalOr{});
#endif
}
