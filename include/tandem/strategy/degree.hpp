// SPDX-License-Identifier: Apache-2.0
// Does the world have the number of ranks that a strategy asks for?
#pragma once

#include <string>

#include "tandem/comm/communicator.hpp"
#include "tandem/core/error.hpp"

namespace tandem::detail {

/// The world itself. Throws Error(argument) on all ranks alike; `degree` 0 takes any number.
template <class T>
Communicator<T>& require_degree(Communicator<T>& world, int degree, const std::string& strategy) {
  if (degree != 0 && degree != world.size()) {
    throw Error(ErrorKind::argument,
                "tandem: world size " + std::to_string(world.size()) + " is not " + std::to_string(degree) + "; use " +
                    strategy + ", or start " + std::to_string(degree) + " ranks",
                world.rank());
  }
  return world;
}

}  // namespace tandem::detail
