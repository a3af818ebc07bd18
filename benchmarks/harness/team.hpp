// SPDX-License-Identifier: Apache-2.0
// What the forked ranks of a benchmark share: a barrier that lines them up before every timed call, a word by which
// rank 0 names the next contest, and each rank's samples. Deliberately not built from the library it measures.
#pragma once

#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>

#include "tandem/core/backoff.hpp"

namespace tandem::bench {

/// Every rank's view of one anonymous shared mapping, made before the fork.
class Team {
 public:
  static constexpr int most_ranks = 64;
  static constexpr std::size_t samples_per_rank = std::size_t{1} << 16;

  explicit Team(int ranks) : ranks_(ranks) {
    if (ranks < 1 || ranks > most_ranks) throw std::invalid_argument("a benchmark runs 1 to 64 ranks");
    void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    shared_ = new (memory) Shared;
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  ~Team() { munmap(static_cast<void*>(shared_), sizeof(Shared)); }

  /// Called in each child: who it is, and whether it gets a processor of its own.
  void enter(int rank) {
    rank_ = rank;
    cpu_set_t allowed;
    const bool known = sched_getaffinity(0, sizeof allowed, &allowed) == 0;
    crowded_ = known && CPU_COUNT(&allowed) < ranks_;
  }
  int rank() const noexcept { return rank_; }
  int ranks() const noexcept { return ranks_; }
  /// More ranks than processors: whoever waits must give its processor away at once.
  bool crowded() const noexcept { return crowded_; }

  /// Binds the calling thread (not threads it started before) to a processor, rank r to the r-th allowed one.
  void pin() const {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    int skip = rank_ % CPU_COUNT(&allowed);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &allowed) || skip-- > 0) continue;
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      sched_setaffinity(0, sizeof one, &one);
      return;
    }
  }

  /// Returns once every rank has called it, all of them within about a cache miss of each other. Each rank writes its
  /// own line (release) and reads the others' (acquire), so what a rank wrote before is seen after.
  void align() noexcept {
    ++turn_;
    shared_->arrived[rank_].value.store(turn_, std::memory_order_release);
    for (int peer = 0; peer < ranks_; ++peer) {
      Backoff backoff(crowded_ ? 0 : 2000);
      while (shared_->arrived[peer].value.load(std::memory_order_acquire) < turn_) {
        if (backoff.wait()) sched_yield();
      }
    }
  }

  /// Rank 0 names the next contest (or `nothing_left`); the others learn it.
  static constexpr std::int64_t nothing_left = -1;
  std::int64_t next(std::int64_t named = nothing_left) noexcept {
    if (rank_ == 0) shared_->contest.value.store(static_cast<std::uint64_t>(named), std::memory_order_relaxed);
    align();
    const auto contest = static_cast<std::int64_t>(shared_->contest.value.load(std::memory_order_relaxed));
    align();
    return contest;
  }

  /// Seconds of one rank's timed calls; written by that rank, read by rank 0 after an align.
  double* samples(int rank) noexcept { return shared_->samples[rank]; }
  /// A counter of one rank (wrong elements, differing weights).
  std::uint64_t& tally(int rank) noexcept { return shared_->tallies[rank].count; }

 private:
  struct alignas(128) Word {
    std::atomic<std::uint64_t> value{0};
  };
  struct alignas(128) Tally {
    std::uint64_t count = 0;
  };
  struct Shared {
    Word arrived[most_ranks];
    Word contest;
    Tally tallies[most_ranks];
    alignas(4096) double samples[most_ranks][samples_per_rank];  // pages no rank touches cost nothing
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

  Shared* shared_ = nullptr;
  int ranks_;
  int rank_ = 0;
  bool crowded_ = false;
  std::uint64_t turn_ = 0;
};

}  // namespace tandem::bench
