// SPDX-License-Identifier: Apache-2.0
// The peers that compete in a case, timed by turns: a block of calls of one peer, then a block of the next, round after
// round, so that a machine that drifts drifts for all of them alike. Knows no peer.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "harness/case.hpp"
#include "harness/pattern.hpp"
#include "harness/team.hpp"

namespace tandem::bench {

class Host;

/// How long a peer's calls take at the least, which decides how many it makes for the same patience.
enum class Pace {
  quick,
  sluggish,  ///< hundreds of microseconds whatever the size
  glacial    ///< time slices of the kernel: tens of milliseconds
};

/// One peer in a case, as one rank sees it. `input` is what the rank contributes, `output` where its result lies (of
/// reduce_scatter the own slice); the same address for in-place verbs, and no data at all for barrier.
struct Entry {
  std::string peer;
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::function<void()> operate;
  Host* host = nullptr;  ///< of the guests who run this peer's rounds instead of this process; see visit.hpp
  Pace pace = Pace::quick;
  bool checked = true;       ///< its result is compared with the right one
  int calls_per_sample = 1;  ///< more than one where a single call is shorter than reading the clock
};

/// How many calls a peer makes per round, and how many rounds.
struct Plan {
  int rounds = 1;
  int block = 1;
  int sluggish_block = 1;
  int warm_up = 1;  ///< untimed calls at the start of each block: the block before left foreign data in the caches

  /// `patience` below 1 shortens everything (smoke tests, quick looks).
  static Plan for_bytes(std::size_t bytes, double patience) {
    Plan plan = bytes <= (64U << 10)   ? Plan{20, 100, 15, 5}
                : bytes <= (1U << 20)  ? Plan{12, 20, 5, 2}
                : bytes <= (16U << 20) ? Plan{10, 5, 3, 1}
                : bytes <= (64U << 20) ? Plan{7, 2, 2, 1}
                                       : Plan{5, 2, 2, 1};
    const auto scaled = [&](int value) { return std::max(1, static_cast<int>(value * patience)); };
    return {std::max(2, scaled(plan.rounds)), scaled(plan.block), scaled(plan.sluggish_block), plan.warm_up};
  }
  int block_of(const Entry& entry) const noexcept {
    if (entry.pace == Pace::quick) return block;
    return entry.pace == Pace::sluggish ? sluggish_block : (sluggish_block + 4) / 5;
  }
  int warm_up_of(const Entry& entry) const noexcept { return entry.pace == Pace::glacial ? 1 : warm_up; }
};

/// Writes what this rank contributes: its slice to all_gather, a full buffer to every other verb.
template <Element T>
void fill(const Pattern<T>& pattern, const Case& which, const Entry& entry, int rank, std::uint64_t turn) {
  if (entry.input == nullptr) return;
  const Range range = which.verb == Verb::all_gather ? slice_of(which.count, which.ranks, rank) : Range{0, which.count};
  pattern.fill(reinterpret_cast<T*>(entry.input), range.begin, range.size(), rank, turn);
}

/// Elements of this rank's result that are not what the verb promises.
template <Element T>
std::uint64_t wrong(Pattern<T>& pattern, const Case& which, const Entry& entry, int rank, std::uint64_t turn) {
  const T* const output = reinterpret_cast<const T*>(entry.output);
  const auto all = Range{0, static_cast<std::size_t>(which.ranks)};
  const auto only = [](int one) { return Range{static_cast<std::size_t>(one), static_cast<std::size_t>(one) + 1}; };
  switch (which.verb) {
    case Verb::all_reduce:
      return pattern.wrong(output, 0, which.count, all, turn);
    case Verb::reduce_scatter: {
      const Range slice = slice_of(which.count, which.ranks, rank);
      return pattern.wrong(output, slice.begin, slice.size(), all, turn);
    }
    case Verb::all_gather: {
      std::uint64_t count = 0;
      for (int peer = 0; peer < which.ranks; ++peer) {
        const Range slice = slice_of(which.count, which.ranks, peer);
        count += pattern.wrong(output + slice.begin, slice.begin, slice.size(), only(peer), turn);
      }
      return count;
    }
    case Verb::broadcast:
      return pattern.wrong(output, 0, which.count, only(0), turn);
    case Verb::all_to_all: {
      const std::size_t from = slice_of(which.count, which.ranks, rank).begin;
      std::uint64_t count = 0;
      for (int peer = 0; peer < which.ranks; ++peer) {
        const Range slice = slice_of(which.count, which.ranks, peer);
        count += pattern.wrong(output + slice.begin, from, slice.size(), only(peer), turn);
      }
      return count;
    }
    case Verb::send:
      return pattern.wrong(output, 0, which.count, only(rank % 2 == 0 ? rank : rank - 1), turn);
    case Verb::barrier:
      return 0;
  }
  return 0;
}

/// Runs one peer's block and appends its seconds per call to this rank's samples from `place` on; returns the wrong
/// elements seen. Every rank calls it with the same arguments. `turn` counts calls over the whole run.
template <Element T>
std::uint64_t run_block(Team& team, Pattern<T>& pattern, const Case& which, const Entry& entry, int calls, int warm_up,
                        std::size_t place, std::uint64_t& turn) {
  using Timer = std::chrono::steady_clock;
  double* const samples = team.samples(team.rank());
  std::uint64_t differing = 0;
  for (int call = -warm_up; call < calls; ++call) {
    ++turn;
    if (entry.checked) fill(pattern, which, entry, team.rank(), turn);
    team.align();
    const auto start = Timer::now();
    for (int i = 0; i < entry.calls_per_sample; ++i) entry.operate();
    const auto end = Timer::now();
    team.align();  // nobody fills or checks while another rank, perhaps on the same processor, is still being timed
    if (call >= 0) {
      samples[place++] = std::chrono::duration<double>(end - start).count() / entry.calls_per_sample;
    }
    if (entry.checked) differing += wrong(pattern, which, entry, team.rank(), turn);
  }
  return differing;
}

}  // namespace tandem::bench
