// SPDX-License-Identifier: Apache-2.0
#include "support/traffic.hpp"

#include <span>
#include <vector>

#include "tandem/collective/all_gather.hpp"
#include "tandem/collective/all_reduce.hpp"
#include "tandem/collective/all_reduce_coalesced.hpp"
#include "tandem/collective/all_to_all.hpp"
#include "tandem/collective/async.hpp"
#include "tandem/collective/barrier.hpp"
#include "tandem/collective/broadcast.hpp"
#include "tandem/collective/gather.hpp"
#include "tandem/collective/reduce.hpp"
#include "tandem/collective/reduce_scatter.hpp"
#include "tandem/collective/scatter.hpp"
#include "tandem/collective/send_recv.hpp"

namespace tandem::test {

void run_once(World& world, Traffic traffic, TrafficBuffers& buffers, const CallOptions& options,
              const Between& between) {
  const std::size_t each = buffers.slice.size();
  const std::span<float> all(buffers.data);
  const std::span<float> window(buffers.registered.data(), buffers.registered.size());
  const std::span<float> slice(buffers.slice);
  const std::span<const float> all_in(all);
  const std::span<const float> window_in(window);
  const std::span<const float> slice_in(slice);
  const std::vector<std::size_t> counts(static_cast<std::size_t>(world.size()), each);
  const int last = world.size() - 1;
  const int next = (world.rank() + 1) % world.size();
  const int before = (world.rank() + last) % world.size();
  between();
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
    case Traffic::fetch:
      all_reduce(world, all, Max{}, options);
      break;
    case Traffic::coalesced: {
      const std::span<float> parts[] = {all.first(100), all.subspan(200, 20000)};
      all_reduce_coalesced(world, std::span<const std::span<float>>(parts), Max{}, options);
      break;
    }
    case Traffic::pending_slices: {
      auto one = reduce_scatter_async(world, window_in, slice, Max{}, options);
      auto two =
          all_gather_async(world, all_in.subspan(each * static_cast<std::size_t>(world.rank()), each), all, options);
      one.poll();
      between();
      one.wait();
      two.wait();
      auto three = broadcast_async(world, window, last, options);
      three.poll();
      between();
      three.wait();
      break;
    }
    case Traffic::pending: {
      auto one = all_reduce_async(world, window.first(5000), Max{}, options);
      auto two = all_reduce_async(world, all.first(5000), Max{}, options);
      one.poll();
      between();
      two.wait();
      one.wait();
      break;
    }
    case Traffic::reduce_scatter:
      reduce_scatter(world, all_in, slice, Max{}, options);
      reduce_scatter(world, window_in, slice, Max{}, options);
      break;
    case Traffic::reduce_scatter_v:
      reduce_scatter_v(world, all_in, slice, counts, Max{}, options);
      reduce_scatter_v(world, window_in, slice, counts, Max{}, options);
      break;
    case Traffic::all_gather:
      all_gather(world, slice_in, all, options);
      all_gather(world, window_in.first(each), all, options);
      break;
    case Traffic::all_gather_v:
      all_gather_v(world, slice_in, all, counts, options);
      all_gather_v(world, window_in.first(each), all, counts, options);
      break;
    case Traffic::broadcast:
      broadcast(world, all, 0, options);
      broadcast(world, window, last, options);
      break;
    case Traffic::reduce:
      reduce(world, all_in, all, Max{}, 0, options);
      reduce(world, window_in, window, Max{}, last, options);
      break;
    case Traffic::gather:
      gather(world, slice_in, all, 0, options);
      gather(world, window_in.first(each), all, last, options);
      break;
    case Traffic::gather_v:
      gather_v(world, slice_in, all, counts, 0, options);
      gather_v(world, window_in.first(each), all, counts, last, options);
      break;
    case Traffic::scatter:
      scatter(world, all_in, slice, 0, options);
      scatter(world, window_in, slice, last, options);
      break;
    case Traffic::scatter_v:
      scatter_v(world, all_in, slice, counts, 0, options);
      scatter_v(world, window_in, slice, counts, last, options);
      break;
    case Traffic::all_to_all:
      all_to_all(world, all_in, all, options);
      all_to_all(world, window_in, all, options);
      break;
    case Traffic::all_to_all_v:
      all_to_all_v(world, all_in, counts, all, counts, options);
      all_to_all_v(world, window_in, counts, all, counts, options);
      break;
    case Traffic::barrier:
      barrier(world, options);
      break;
    case Traffic::messages:
      send(world, all_in, next, options);
      between();
      recv(world, all, before, options);
      break;
    case Traffic::send_recv:
      send_recv(world, window_in, next, all, before, options);
      break;
    case Traffic::split: {
      const World part = world.split(0, 0, options);
      between();
      break;
    }
  }
}

Error run_until_error(World& world, Traffic traffic, TrafficBuffers& buffers, const CallOptions& options,
                      const Between& between) {
  try {
    while (true) run_once(world, traffic, buffers, options, between);
  } catch (const Error& error) {
    return error;
  }
}

}  // namespace tandem::test
