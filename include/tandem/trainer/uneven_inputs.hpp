// SPDX-License-Identifier: Apache-2.0
// Ranks with different numbers of batches: before each collective phase of a step all say what they are about to do, so
// that a rank which has run out can do the same with nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tandem/collective/all_gather.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/error.hpp"

namespace tandem::detail {

/// What needs all ranks.
enum class TrainerPhase : std::uint8_t { none, forward, backward, update };
inline constexpr std::array phase_names{"join", "forward", "backward", "update"};

struct NextPhase {
  TrainerPhase phase = TrainerPhase::none;  ///< what all ranks that still have batches do
  int rank = 0;                             ///< the lowest of them
};

/// Collective; one byte per rank. TrainerPhase::none says that this rank has run out. Throws Error(mismatch) on all
/// ranks when two are about to do different things.
template <class T>
NextPhase announce_phase(Communicator<T>& comm, TrainerPhase mine) {
  std::vector<std::uint8_t> all(static_cast<std::size_t>(comm.size()));
  const auto own = static_cast<std::uint8_t>(mine);
  all_gather(comm, std::span<const std::uint8_t>(&own, 1), std::span<std::uint8_t>(all));
  NextPhase next;
  for (int rank = 0; rank < comm.size(); ++rank) {
    const auto phase = static_cast<TrainerPhase>(all[static_cast<std::size_t>(rank)]);
    if (phase == TrainerPhase::none) continue;
    if (next.phase == TrainerPhase::none) {
      next = {phase, rank};
    } else if (next.phase != phase) {
      const auto called = [&](TrainerPhase which, int by) {
        return std::string("Trainer::") + phase_names[static_cast<std::size_t>(which)] + " on rank " +
               std::to_string(by);
      };
      throw Error(ErrorKind::mismatch,
                  "tandem: " + called(next.phase, next.rank) + " meets " + called(phase, rank) +
                      "; ranks that have batches must take the same steps",
                  comm.rank(), rank == comm.rank() ? next.rank : rank);
    }
  }
  return next;
}

}  // namespace tandem::detail
