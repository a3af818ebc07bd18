// SPDX-License-Identifier: Apache-2.0
// How the processes of one job on one host find each other and exchange what each wants all others to have: a few bytes
// and open files. Must not know what the bytes and files are for, nor where the job's name came from.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "tandem/core/deadline.hpp"
#include "tandem/core/error.hpp"
#include "tandem/transport/detail/rendezvous_guest.hpp"
#include "tandem/transport/detail/rendezvous_host.hpp"
#include "tandem/transport/detail/rendezvous_meeting.hpp"
#include "tandem/transport/detail/rendezvous_message.hpp"

namespace tandem {

/// Every rank gives one Introduction and gets all of them, by rank; its own entry is what it gave. All return, or all
/// throw: who died, who is missing at the deadline, who claims whose rank, whose size differs is named on every rank
/// that can be reached. The name may be any text and may be used again at once, after success and after failure. Leaves
/// no file and no socket behind; descriptors received are closed on exec.
inline std::vector<Introduction> meet(const std::string& name, int rank, int size, Introduction mine,
                                      Deadline deadline) {
  const detail::Meeting meeting{name, rank, size, deadline};
  if (size < 1 || size > rendezvous_most_ranks || rank < 0 || rank >= size) {
    throw meeting.failure(ErrorKind::argument, "rank " + std::to_string(rank) + " of " + std::to_string(size) +
                                                   " cannot be: ranks count from 0, and at most " +
                                                   std::to_string(rendezvous_most_ranks) + " meet");
  }
  if (mine.data.size() > detail::rendezvous_most_bytes ||
      mine.descriptors.size() > detail::rendezvous_most_descriptors) {
    throw meeting.failure(ErrorKind::argument, "an introduction of " + std::to_string(mine.data.size()) +
                                                   " bytes and " + std::to_string(mine.descriptors.size()) +
                                                   " descriptors is too large: at most " +
                                                   std::to_string(detail::rendezvous_most_bytes) + " and " +
                                                   std::to_string(detail::rendezvous_most_descriptors));
  }
  if (size == 1) {
    std::vector<Introduction> alone;
    alone.push_back(std::move(mine));
    return alone;
  }
  if (rank == 0) return detail::RendezvousHost(meeting, std::move(mine)).run();
  return detail::RendezvousGuest(meeting, std::move(mine)).run();
}

}  // namespace tandem
