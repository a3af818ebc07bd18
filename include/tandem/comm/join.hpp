// SPDX-License-Identifier: Apache-2.0
// How a process becomes a rank: finds out who it is, connects the transport and gives back the world's communicator.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tandem/comm/communicator.hpp"
#include "tandem/comm/detail/dump.hpp"
#include "tandem/comm/identity.hpp"
#include "tandem/core/env.hpp"
#include "tandem/transport/shm_ring.hpp"

namespace tandem {

struct JoinOptions {
  /// Who this process is; by default what the environment says, or alone.
  std::optional<Identity> identity{};
  /// Deadline of the join and default deadline of every call after it; by default TANDEM_TIMEOUT (seconds) or 300 s.
  std::optional<std::chrono::nanoseconds> timeout{};
  /// Size of the arena in virtual bytes, the same on all ranks; memory is taken as it is asked for. By default what the
  /// host has.
  std::optional<std::size_t> arena_bytes{};
  /// Receives sentences that a user should know once. The library itself prints nothing.
  std::function<void(const std::string&)> notice{};
  /// A folder for dumps of the flight recorders, one file a rank, written on SIGUSR1 and when an operation fails (see
  /// docs/reference/recorder.md); by default TANDEM_DUMP, or none: then nothing is written and no handler installed.
  std::optional<std::string> dump{};
};

namespace detail {

inline std::chrono::nanoseconds default_timeout() {
  const auto seconds = environment_integer("TANDEM_TIMEOUT", 1, 1000000000);
  return std::chrono::seconds(seconds.value_or(300));
}
/// Before connecting, so that a rank that waits for others to join can be looked at too.
inline void prepare_dumps(const JoinOptions& options, int rank) {
  if (const auto folder = options.dump ? options.dump : environment("TANDEM_DUMP")) ask_for_dumps(*folder, rank);
}
/// All of the host's memory, or less where the address space is smaller: every rank maps every rank's arena, and half
/// of the 2^47 bytes that a process has on most machines is left to others.
inline std::size_t default_arena_bytes(int ranks) {
  std::size_t bytes =
      static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  bytes = std::min<std::size_t>(bytes, (std::size_t{1} << 46) / static_cast<std::size_t>(ranks));
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    bytes = std::min<std::size_t>(bytes, limit.rlim_cur / (2 * static_cast<std::size_t>(ranks)));
  }
  return round_up(bytes, page_bytes);
}
template <ControlTransport T>
Communicator<T> make_world(T endpoint, const JoinOptions& options, std::chrono::nanoseconds timeout) {
  const int size = endpoint.size();
  const int rank = endpoint.rank();
  const bool crowded = endpoint.crowded();
  auto host = std::make_shared<HostMemory<T>>(std::move(endpoint));
  // Every rank's first block lies at the same place, so the world needs no exchange before its first operation.
  const BlockPlace place = host->new_block();
  std::vector<int> members(static_cast<std::size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  return Communicator<T>(std::make_unique<Protocol<T>>(std::move(host), std::move(members), rank, 1U,
                                                       std::vector<BlockPlace>(static_cast<std::size_t>(size), place),
                                                       timeout, crowded, options.notice));
}

}  // namespace detail

/// Joins the job that the environment describes (TANDEM_*, torchrun, Slurm, Open MPI, MPICH; alone otherwise).
/// Collective over all ranks. Throws Error: environment (who this is cannot be told, or ranks differ), timeout (naming
/// the ranks that did not come), system. May be called again after a failure, for a fresh communicator.
template <ControlTransport T = ShmRing>
Communicator<T> join(const JoinOptions& options = {}) {
  const Identity identity = options.identity ? *options.identity : identity_from_environment();
  const auto timeout = options.timeout.value_or(detail::default_timeout());
  detail::prepare_dumps(options, identity.rank);
  ConnectRequest request;
  request.rank = identity.rank;
  request.size = identity.size;
  request.local_size = identity.local_size;
  request.local_size_known = identity.local_size_known;
  request.job = identity.rendezvous;
  request.notice = options.notice;
  request.heap_bytes = round_up(options.arena_bytes.value_or(detail::default_arena_bytes(identity.size)), page_bytes);
  return detail::make_world(T::connect(request, Deadline::after(timeout)), options, timeout);
}

/// The in-process form: `ranks` communicators over one mapping, one for each of as many threads of this process.
inline std::vector<Communicator<ShmRing>> join_threads(int ranks, const JoinOptions& options = {}) {
  const auto timeout = options.timeout.value_or(detail::default_timeout());
  detail::prepare_dumps(options, 0);
  ShmRing::Geometry geometry{};
  geometry.heap_bytes = round_up(options.arena_bytes.value_or(std::size_t{1} << 30), page_bytes);
  std::vector<Communicator<ShmRing>> world;
  for (auto& endpoint : ShmRing::connect_threads(ranks, geometry)) {
    world.push_back(detail::make_world(std::move(endpoint), options, timeout));
  }
  return world;
}

}  // namespace tandem
