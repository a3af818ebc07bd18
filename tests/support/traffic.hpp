// SPDX-License-Identifier: Apache-2.0
// Endless traffic of one kind, for tests in which a rank dies or stops in the middle of it.
#pragma once

#include <doctest/doctest.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "support/worlds.hpp"
#include "tandem/collective/all_gather.hpp"
#include "tandem/collective/all_reduce.hpp"
#include "tandem/collective/all_to_all.hpp"
#include "tandem/collective/barrier.hpp"
#include "tandem/collective/broadcast.hpp"
#include "tandem/collective/gather.hpp"
#include "tandem/collective/pending.hpp"
#include "tandem/collective/reduce.hpp"
#include "tandem/collective/reduce_scatter.hpp"
#include "tandem/collective/scatter.hpp"
#include "tandem/collective/send_recv.hpp"

namespace tandem::test {

enum class Traffic {
  direct,
  ring,
  small,
  pairwise,
  naive,
  pending,
  reduce_scatter,
  all_gather,
  broadcast,
  barrier,
  messages,
  reduce,
  rooted,
  all_to_all,
  send_recv
};
inline constexpr Traffic all_traffic[] = {
    Traffic::direct,   Traffic::ring,           Traffic::small,      Traffic::pairwise,   Traffic::naive,
    Traffic::pending,  Traffic::reduce_scatter, Traffic::all_gather, Traffic::broadcast,  Traffic::barrier,
    Traffic::messages, Traffic::reduce,         Traffic::rooted,     Traffic::all_to_all, Traffic::send_recv};
inline const char* name_of(Traffic traffic) {
  constexpr const char* names[] = {"direct",   "ring",           "small",      "pairwise",   "naive",
                                   "pending",  "reduce_scatter", "all_gather", "broadcast",  "barrier",
                                   "messages", "reduce",         "rooted",     "all_to_all", "send_recv"};
  return names[static_cast<int>(traffic)];
}

/// Runs until an error comes, which it gives back.
inline Error run_until_error(World& world, Traffic traffic, const CallOptions& options = {}) {
  constexpr std::size_t count = 120000;  // divisible by 2, 3, 4 and 5; more than the rings hold
  const auto ranks = static_cast<std::size_t>(world.size());
  ArenaArray<float> registered(world.arena(), count);
  std::vector<float> data(count, 1.0F);
  std::vector<float> slice(count / ranks, 1.0F);
  for (float& it : registered) it = 1.0F;
  const std::span<float> all(data);
  const std::span<float> window(registered.data(), registered.size());
  const int next = (world.rank() + 1) % world.size();
  const int before = (world.rank() + world.size() - 1) % world.size();
  try {
    while (true) {
      switch (traffic) {
        case Traffic::direct:
          all_reduce<DirectIfAny>(world, window, Max{}, options);
          break;
        case Traffic::ring:
          all_reduce<Ring>(world, all, Max{}, options);
          break;
        case Traffic::small:
          all_reduce(world, all.first(7), Max{}, options);
          break;
        case Traffic::pairwise:
          all_reduce<Pairwise>(world, all, Max{}, options);
          break;
        case Traffic::naive:
          all_reduce<Naive>(world, all, Max{}, options);
          break;
        case Traffic::pending: {
          auto one = begin_all_reduce(world, window.first(5000), Max{}, options);
          auto two = begin_all_reduce(world, all.first(5000), Max{}, options);
          one.poll();
          two.finish();
          one.finish();
          break;
        }
        case Traffic::reduce_scatter:
          reduce_scatter(world, std::span<const float>(all), std::span(slice), Max{}, options);
          reduce_scatter(world, std::span<const float>(window), std::span(slice), Max{}, options);
          break;
        case Traffic::all_gather:
          all_gather(world, std::span<const float>(slice), all, options);
          all_gather(world, std::span<const float>(window.first(slice.size())), all, options);
          break;
        case Traffic::broadcast:
          broadcast(world, all, 0, options);
          broadcast(world, window, world.size() - 1, options);
          break;
        case Traffic::barrier:
          barrier(world, options);
          break;
        case Traffic::messages:
          send(world, std::span<const float>(all), next, options);
          recv(world, all, before, options);
          break;
        case Traffic::reduce:
          reduce(world, std::span<const float>(all), all, Max{}, 0, options);
          reduce(world, std::span<const float>(window), window, Max{}, world.size() - 1, options);
          break;
        case Traffic::rooted:
          gather(world, std::span<const float>(slice), all, 0, options);
          gather(world, std::span<const float>(window.first(slice.size())), all, world.size() - 1, options);
          scatter(world, std::span<const float>(all), std::span(slice), 0, options);
          scatter(world, std::span<const float>(window), std::span(slice), world.size() - 1, options);
          break;
        case Traffic::all_to_all: {
          const std::vector<std::size_t> counts(ranks, slice.size());
          all_to_all(world, std::span<const float>(all), all, options);
          all_to_all_v(world, std::span<const float>(window), counts, all, counts, options);
          break;
        }
        case Traffic::send_recv:
          send_recv(world, std::span<const float>(window), next, all, before, options);
          break;
      }
    }
  } catch (const Error& error) {
    return error;
  }
}

/// A fresh world of those that are left, `rank` of `size`.
inline World join_again(const std::string& name, int rank, int size) {
  JoinOptions options;
  options.identity = Identity{rank, size, rank, size, name, "the test"};
  options.timeout = std::chrono::seconds(30);
  return join<TestTransport>(options);
}

}  // namespace tandem::test
