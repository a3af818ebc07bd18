// SPDX-License-Identifier: Apache-2.0
// Endless traffic of one kind, for tests in which a rank dies or stops in the middle of it: every verb, and every path
// that a verb can take. Compiled once for each transport (traffic.cpp).
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "support/worlds.hpp"
#include "tandem/comm/arena.hpp"

namespace tandem::test {

enum class Traffic {
  direct,  // to fetch: all_reduce
  ring,
  small,
  pairwise,
  naive,
  fetch,  // or what comes in its place
  coalesced,
  pending,
  pending_slices,  // reduce_scatter, all_gather and broadcast
  reduce_scatter,
  reduce_scatter_v,
  all_gather,
  all_gather_v,
  broadcast,
  reduce,
  gather,
  gather_v,
  scatter,
  scatter_v,
  all_to_all,
  all_to_all_v,
  barrier,
  messages,
  send_recv,
  split
};
inline constexpr Traffic all_traffic[] = {Traffic::direct,
                                          Traffic::ring,
                                          Traffic::small,
                                          Traffic::pairwise,
                                          Traffic::naive,
                                          Traffic::fetch,
                                          Traffic::coalesced,
                                          Traffic::pending,
                                          Traffic::pending_slices,
                                          Traffic::reduce_scatter,
                                          Traffic::reduce_scatter_v,
                                          Traffic::all_gather,
                                          Traffic::all_gather_v,
                                          Traffic::broadcast,
                                          Traffic::reduce,
                                          Traffic::gather,
                                          Traffic::gather_v,
                                          Traffic::scatter,
                                          Traffic::scatter_v,
                                          Traffic::all_to_all,
                                          Traffic::all_to_all_v,
                                          Traffic::barrier,
                                          Traffic::messages,
                                          Traffic::send_recv,
                                          Traffic::split};
inline const char* name_of(Traffic traffic) {
  constexpr const char* names[] = {"direct",
                                   "ring",
                                   "small",
                                   "pairwise",
                                   "naive",
                                   "fetch",
                                   "coalesced",
                                   "pending",
                                   "pending_slices",
                                   "reduce_scatter",
                                   "reduce_scatter_v",
                                   "all_gather",
                                   "all_gather_v",
                                   "broadcast",
                                   "reduce",
                                   "gather",
                                   "gather_v",
                                   "scatter",
                                   "scatter_v",
                                   "all_to_all",
                                   "all_to_all_v",
                                   "barrier",
                                   "messages",
                                   "send_recv",
                                   "split"};
  return names[static_cast<int>(traffic)];
}

/// What a rank's traffic reads and writes, registered and not.
struct TrafficBuffers {
  static constexpr std::size_t count =
      300000;  // divisible by 2, 3, 4 and 5; more than the rings hold and than is streamed of what can be fetched

  explicit TrafficBuffers(const World& world)
      : registered(world.arena(), count),
        data(count, 1.0F),
        slice(count / static_cast<std::size_t>(world.size()), 1.0F) {
    for (float& it : registered) it = 1.0F;
  }
  ArenaArray<float> registered;
  std::vector<float> data;
  std::vector<float> slice;
};

/// Called before the first operation of a round, and wherever one is in flight.
using Between = std::function<void()>;

/// One round of it.
void run_once(World& world, Traffic traffic, TrafficBuffers& buffers, const CallOptions& options,
              const Between& between);

/// Runs until an error comes, which it gives back; anything else that `between` throws passes through.
Error run_until_error(World& world, Traffic traffic, TrafficBuffers& buffers, const CallOptions& options,
                      const Between& between);
inline Error run_until_error(World& world, Traffic traffic, const CallOptions& options = {}) {
  TrafficBuffers buffers(world);
  return run_until_error(world, traffic, buffers, options, [] {});
}

}  // namespace tandem::test
