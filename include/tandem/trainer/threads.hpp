// SPDX-License-Identifier: Apache-2.0
// How many threads libtorch may use on each rank: one, when ranks would stand in each other's way. Decides nothing
// about models.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "tandem/collective/all_gather.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem::detail {

/// Collective. `wanted` settles it for this rank. Otherwise, when the threads of the ranks on this host outnumber the
/// processors that these ranks may use, one thread. Set here and not by an environment variable, which comes too late
/// once libtorch is loaded.
template <class T>
void settle_threads(Communicator<T>& comm, std::optional<int> wanted) {
  if (wanted) {
    at::set_num_threads(*wanted);
  }
  struct Card {
    char host[64];
    cpu_set_t processors;
    int threads;
  };
  Card mine{};
  ::gethostname(mine.host, sizeof mine.host - 1);
  ::sched_getaffinity(0, sizeof mine.processors, &mine.processors);
  mine.threads = at::get_num_threads();
  std::vector<Card> all(static_cast<std::size_t>(comm.size()));
  all_gather(comm, std::span<const Card>(&mine, 1), std::span<Card>(all));
  if (wanted || comm.size() == 1) return;
  cpu_set_t together{};
  int threads = 0;
  for (const Card& card : all) {
    if (std::strncmp(card.host, mine.host, sizeof mine.host) != 0) continue;
    CPU_OR(&together, &together, &card.processors);
    threads += card.threads;
  }
  if (threads > CPU_COUNT(&together)) at::set_num_threads(1);
}

}  // namespace tandem::detail
