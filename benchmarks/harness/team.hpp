// SPDX-License-Identifier: Apache-2.0
// What the ranks of a benchmark share: a barrier that lines them up before every timed call, a word by which rank 0
// names the next contest, and each rank's samples. Ranks that another launcher starts map the same memory as a group of
// their own, with their own barrier. Deliberately not built from the library it measures.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include "tandem/core/backoff.hpp"

namespace tandem::bench {

/// Every rank's view of one shared mapping: group 0 made it and forked, the others are guests that opened it.
class Team {
 public:
  static constexpr int most_ranks = 64;
  static constexpr int most_groups = 4;
  static constexpr std::size_t samples_per_rank = std::size_t{1} << 16;

  /// Of group 0.
  explicit Team(int ranks) : ranks_(ranks) {
    require_ranks(ranks);
    descriptor_ = memfd_create("tandem_bench", MFD_CLOEXEC);
    if (descriptor_ < 0 || ftruncate(descriptor_, sizeof(Shared)) != 0) throw failure("no shared memory");
    path_ = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(descriptor_);
    shared_ = new (map(descriptor_)) Shared;
  }
  /// Of a group of guests, while the process that made the team lives.
  Team(const std::string& path, int group, int ranks) : ranks_(ranks), group_(group) {
    require_ranks(ranks);
    if (group < 1 || group >= most_groups) throw std::invalid_argument("groups of guests are numbered from 1 to 3");
    descriptor_ = open(path.c_str(), O_RDWR | O_CLOEXEC);
    struct stat status {};
    if (descriptor_ < 0 || fstat(descriptor_, &status) != 0) throw failure("cannot open " + path);
    if (status.st_size != static_cast<off_t>(sizeof(Shared))) throw std::invalid_argument(path + " is no team");
    shared_ = static_cast<Shared*>(map(descriptor_));
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  ~Team() {
    munmap(static_cast<void*>(shared_), sizeof(Shared));
    close(descriptor_);
  }

  /// Under which guests open it.
  const std::string& path() const noexcept { return path_; }

  /// Called in each process: who it is, and whether it gets a processor of its own.
  void enter(int rank) {
    rank_ = rank;
    cpu_set_t allowed;
    const bool known = sched_getaffinity(0, sizeof allowed, &allowed) == 0;
    crowded_ = known && CPU_COUNT(&allowed) < ranks_;
  }
  int rank() const noexcept { return rank_; }
  int ranks() const noexcept { return ranks_; }
  int group() const noexcept { return group_; }
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

  /// Returns once every rank of the group has called it, all of them within about a cache miss of each other. Each rank
  /// writes its own line (release) and reads the others' (acquire), so what a rank wrote before is seen after.
  void align() noexcept {
    ++turn_;
    auto& arrived = shared_->groups[group_].arrived;
    arrived[rank_].value.store(turn_, std::memory_order_release);
    for (int peer = 0; peer < ranks_; ++peer) {
      Backoff backoff(crowded_ ? 0 : 2000);
      while (arrived[peer].value.load(std::memory_order_acquire) < turn_) {
        if (backoff.wait()) sched_yield();
      }
    }
  }

  /// Rank 0 of group 0 names the next contest (or `nothing_left`); the others learn it.
  static constexpr std::int64_t nothing_left = -1;
  std::int64_t next(std::int64_t named = nothing_left) noexcept {
    if (rank_ == 0) shared_->contest.value.store(static_cast<std::uint64_t>(named), std::memory_order_relaxed);
    align();
    const auto contest = static_cast<std::int64_t>(shared_->contest.value.load(std::memory_order_relaxed));
    align();
    return contest;
  }

  /// Seconds of one rank's timed calls, in which groups have places of their own; written by a rank of that number,
  /// read by rank 0 once the group is through.
  double* samples(int rank) noexcept { return shared_->samples[rank]; }
  /// A counter of one rank of the group (wrong elements, differing weights).
  std::uint64_t& tally(int rank) noexcept { return shared_->groups[group_].tallies[rank].count; }

  /// By which a group of guests is called and answers; see visit.hpp.
  struct Note {
    alignas(128) std::atomic<std::uint32_t> called{0};
    alignas(128) std::atomic<std::uint32_t> answered{0};
    alignas(128) std::array<std::byte, 128> text{};
  };
  Note& note(int group) noexcept { return shared_->groups[group].note; }

 private:
  struct alignas(128) Word {
    std::atomic<std::uint64_t> value{0};
  };
  struct alignas(128) Tally {
    std::uint64_t count = 0;
  };
  struct Group {
    Word arrived[most_ranks];
    Tally tallies[most_ranks];
    Note note;
  };
  struct Shared {
    Word contest;
    Group groups[most_groups];
    alignas(4096) double samples[most_ranks][samples_per_rank];  // pages no rank touches cost nothing
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

  static void require_ranks(int ranks) {
    if (ranks < 1 || ranks > most_ranks) throw std::invalid_argument("a benchmark runs 1 to 64 ranks");
  }
  static std::system_error failure(const std::string& what) {
    return {errno, std::generic_category(), "benchmark: " + what};
  }
  static void* map(int descriptor) {
    void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED) throw failure("cannot map the shared memory");
    return memory;
  }

  Shared* shared_ = nullptr;
  std::string path_;
  int descriptor_ = -1;
  int ranks_;
  int group_ = 0;
  int rank_ = 0;
  bool crowded_ = false;
  std::uint64_t turn_ = 0;
};

}  // namespace tandem::bench
