// SPDX-License-Identifier: Apache-2.0
// The library as a peer over ShmRing.
#include "peers/tandem.hpp"
#include "peers/tandem_world.hpp"
#include "tandem/comm/join.hpp"
#include "tandem/transport/shm_ring.hpp"

namespace tandem::bench {

std::unique_ptr<Tandem> join_over_shm() { return std::make_unique<TandemWorld<ShmRing>>(join<ShmRing>()); }

}  // namespace tandem::bench
