// SPDX-License-Identifier: Apache-2.0
// tandem's strategies over the loopback interface.
#include <stdexcept>
#include <string>

#include "step/trained.hpp"
#include "step/worlds.hpp"
#include "tandem/strategy/ddp.hpp"
#include "tandem/strategy/zero.hpp"

namespace tandem::bench {

std::unique_ptr<Mode> make_over_tcp(const ModeInfo& which, const Job& job, Worlds& worlds) {
  Communicator<Tcp>& world = *worlds.tcp;
  switch (which.level) {
    case 0:
      return make_trained<Ddp<>>(world, which, job);
    case 2:
      return make_trained<Zero<2>>(world, which, job);
    case 3:
      return make_trained<Zero<3>>(world, which, job);
    default:
      throw std::invalid_argument(std::string("step: ") + which.name + " is not built over Tcp");
  }
}

}  // namespace tandem::bench
