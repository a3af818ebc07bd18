// SPDX-License-Identifier: Apache-2.0
// Which way a collective takes: the one place that has the thresholds, asked by the collectives themselves and by
// explain(). Decided from what all ranks know alike, so all of them decide alike. Knows no data and no bytes moved.
#pragma once

#include <cstdint>

#include "tandem/collective/algorithm.hpp"
#include "tandem/comm/board.hpp"
#include "tandem/comm/fingerprint.hpp"
#include "tandem/comm/operation.hpp"

namespace tandem {

enum class Path : std::uint8_t {
  alone,     ///< one rank: nothing moves
  line,      ///< in the flag's own cache line; one synchronisation
  staged,    ///< through the staging beside the flags; one synchronisation
  direct,    ///< loads from and stores to the peers' registered buffers; two synchronisations
  fetch,     ///< the system copies out of the peers' memory, wherever it is; two synchronisations, all-reduce three
  bounce,    ///< in pieces through the givers' shared buffers, each read by all others; one synchronisation
  ring,      ///< by channels, around the ring (for broadcast a chain)
  pairwise,  ///< by channels, straight from each rank to those that need it
  naive,     ///< by channels, everything to everyone
  message    ///< by channels, from one rank to one other
};

constexpr const char* name_of(Path path) noexcept {
  constexpr const char* names[] = {"Alone",  "Line", "Staged",   "Direct", "Fetch",
                                   "Bounce", "Ring", "Pairwise", "Naive",  "Message"};
  return names[static_cast<int>(path)];
}

/// Does a rank load out of the others' buffers where they lie?
constexpr bool reads_in_place(Path path) noexcept { return path == Path::direct || path == Path::fetch; }

/// What the way depends on, beside the verb.
struct Circumstances {
  int ranks = 1;
  std::uint8_t forced = Auto::number;  ///< number of a forced algorithm
  std::uint64_t staged_bytes = 0;      ///< what a rank would have to stage; the most of all ranks, the same on all
  bool crowded = false;                ///< ranks outnumber processors
  bool pending = false;                ///< stays unfinished while others are begun
  bool windows = true;                 ///< ranks map each other's memory; else every hop goes through the system
  Registration registration = Registration::none;
  bool readable = false;  ///< every rank may read every other's buffers, wherever they are
};

/// From how many bytes that a rank gives on, verbs that read each of them once go Direct.
inline constexpr std::uint64_t direct_bytes = 4 << 10;
/// And an all-reduce, by the bytes that a rank would read and fold of all others' staging.
inline constexpr std::uint64_t all_reduce_direct_bytes = 1536;
/// Where messages are, hops decide as long as they cost more than the bytes they save: up to so many bytes that a rank
/// sends in all (Naive), or has (Pairwise).
inline constexpr std::uint64_t naive_bytes = 64 << 10;
inline constexpr std::uint64_t pairwise_bytes = 512 << 10;
/// Of what is in no window: is so little streamed although it could be fetched? By the most that a rank gives one
/// other. Calls into the system and another synchronisation cost more than they save, above all where ranks wait for
/// processors. A pending broadcast has one direction only, and its chain passes on what is still in the cache. At these
/// sizes both ways are as fast (2 ranks on 2 processors and 4 on 2, Sapphire Rapids).
constexpr bool streams(Verb verb, const Circumstances& it) noexcept {
  const auto ranks = static_cast<std::uint64_t>(it.ranks);
  switch (verb) {
    case Verb::broadcast:
      return it.staged_bytes <= (it.crowded ? 32U : 64U) << 10;
    case Verb::all_reduce:
    case Verb::all_reduce_coalesced:
    case Verb::reduce_scatter:
    case Verb::reduce_scatter_v:
      return it.staged_bytes / ranks <= (it.crowded ? 256U : 64U) << 10;
    case Verb::all_gather:
    case Verb::all_gather_v:
    case Verb::gather:
    case Verb::gather_v:
      return it.staged_bytes <= (it.crowded ? 64U : 16U) << 10;
    default:
      return it.staged_bytes / ranks <= (it.crowded ? 64U : 16U) << 10;
  }
}

constexpr bool gathers_to_all(Verb verb) noexcept { return verb == Verb::all_gather || verb == Verb::all_gather_v; }

/// Of what is in no window and goes to all others: is it copied once into memory that all map, piece by piece? (Pieces
/// are counted in the order in which ranks come to them, which a pending operation does not keep.) Between two ranks
/// that give as much as they get, copying in and out is one copy more than fetching.
constexpr bool bounces(Verb verb, const Circumstances& it) noexcept {
  return it.windows && !it.pending && (verb == Verb::broadcast || (gathers_to_all(verb) && it.ranks > 2));
}

constexpr Path path_of(Verb verb, const Circumstances& it) noexcept {
  if (it.ranks == 1) return Path::alone;
  switch (verb) {
    case Verb::barrier:
      return Path::line;
    case Verb::send:
    case Verb::recv:
    case Verb::send_recv:
      return Path::message;
    default:
      break;
  }
  switch (it.forced) {
    case Direct::number:
      return Path::direct;
    case Ring::number:
      return Path::ring;
    case Pairwise::number:
      return Path::pairwise;
    case Naive::number:
      return Path::naive;
    default:
      break;
  }
  const bool reduces_to_all = verb == Verb::all_reduce || verb == Verb::all_reduce_coalesced;
  // Lines and staging are used again before a pending operation is through with them.
  const bool small = !it.pending && it.staged_bytes <= detail::Block::eager_bytes;
  if (reduces_to_all && !it.pending && it.staged_bytes <= sizeof(detail::Line::payload)) return Path::line;
  // What is staged is copied twice: registered buffers are better off Direct from where that costs more than a second
  // synchronisation. (What is reduced together was copied together already.)
  const std::uint64_t direct_from = verb == Verb::all_reduce_coalesced ? detail::Block::eager_bytes + 1
                                    : reduces_to_all ? all_reduce_direct_bytes / static_cast<unsigned>(it.ranks - 1)
                                                     : direct_bytes;
  if (small && (it.crowded || it.registration == Registration::none || it.staged_bytes < direct_from))
    return Path::staged;
  if (it.registration == Registration::all) return Path::direct;
  if (bounces(verb, it)) return Path::bounce;
  // A pending all-reduce does not: it fetches twice, and only who waits does that.
  const bool may_fetch = it.readable && verb != Verb::reduce && !(it.pending && reduces_to_all);
  if (may_fetch && !streams(verb, it)) return Path::fetch;
  if (!reduces_to_all && !gathers_to_all(verb) && verb != Verb::broadcast) return Path::pairwise;
  // Two ranks send each other as much in one hop as in the two of a ring.
  if (it.windows && reduces_to_all) return it.ranks == 2 ? Path::naive : Path::pairwise;
  if (it.windows && verb == Verb::broadcast) return Path::ring;
  if (!gathers_to_all(verb) && it.staged_bytes <= naive_bytes / static_cast<unsigned>(it.ranks - 1)) return Path::naive;
  if (verb != Verb::broadcast && it.ranks > 2 && it.staged_bytes <= pairwise_bytes) return Path::pairwise;
  return Path::ring;
}

}  // namespace tandem
