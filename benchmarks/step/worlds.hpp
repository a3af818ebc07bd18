// SPDX-License-Identifier: Apache-2.0
// The connections of one rank, as many as its modes need. Knows no model.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "step/mode.hpp"
#include "tandem/comm/arena.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/comm/join.hpp"
#include "tandem/transport/shm_ring.hpp"
#include "tandem/transport/tcp.hpp"
#include "tests/support/c10d_oracle.hpp"

namespace tandem::bench {

class Worlds {
 public:
  /// Connects, if it is not yet. Collective over all ranks, in the same order.
  void connect(Link link, const std::string& store_file, int rank, int ranks) {
    if (link == Link::gloo && !gloo) gloo.emplace(store_file, rank, ranks, std::chrono::minutes(5));
    if (link == Link::shm && !shm) shm.emplace(join<ShmRing>());
    if (link == Link::tcp && !tcp) tcp.emplace(join<Tcp>());
  }

  /// What this rank's buffers for a link lie in; nullptr where that is not tandem's.
  Arena* arena(Link link) const {
    if (link == Link::shm) return shm->arena().get();
    return link == Link::tcp ? tcp->arena().get() : nullptr;
  }

  std::optional<tandem_oracle::GlooGroup> gloo;
  std::optional<Communicator<ShmRing>> shm;
  std::optional<Communicator<Tcp>> tcp;
};

}  // namespace tandem::bench
