// SPDX-License-Identifier: Apache-2.0
// tandem's strategies over shared memory.
#include "step/trained.hpp"
#include "step/worlds.hpp"
#include "tandem/strategy/ddp.hpp"
#include "tandem/strategy/zero.hpp"

namespace tandem::bench {

std::unique_ptr<Mode> make_over_shm(const ModeInfo& which, const Job& job, Worlds& worlds) {
  Communicator<ShmRing>& world = *worlds.shm;
  switch (which.level) {
    case 0:
      return make_trained<Ddp<>>(world, which, job);
    case 1:
      return make_trained<Zero<1>>(world, which, job);
    case 2:
      return make_trained<Zero<2>>(world, which, job);
    default:
      if (which.rows) return make_trained<Zero<3, reference::fsdp2>>(world, which, job);
      return make_trained<Zero<3>>(world, which, job);
  }
}

}  // namespace tandem::bench
