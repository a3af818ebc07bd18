// SPDX-License-Identifier: Apache-2.0
// How a round of a case is given to a group of guests (ranks that another launcher started) and comes back measured.
// Whoever has nothing to do sleeps in the kernel, so that neither side takes processor time in the other's turn.
// Knows no launcher.
#pragma once

#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "harness/case.hpp"
#include "harness/team.hpp"

namespace tandem::bench {

/// One round for the guests, and their answer.
struct Errand {
  Case which;
  std::size_t room = 0;  ///< bytes of the run's largest buffer
  int calls = 0;
  int warm_up = 0;
  std::size_t place = 0;    ///< where their samples go
  std::uint64_t wrong = 0;  ///< the answer: elements that were not what the verb promises
  bool last = false;        ///< nothing more will come
};
static_assert(std::is_trivially_copyable_v<Errand> && sizeof(Errand) <= sizeof(Team::Note::text));

namespace detail {

// Of std::atomic, wait and notify reach only threads of the same process.
inline void sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t seen, const timespec* limit) noexcept {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, seen, limit, nullptr, 0);
}
inline void wake_all(std::atomic<std::uint32_t>& word) noexcept {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace detail

/// A host rank's end. All ranks of the host call it alike.
class Host {
 public:
  /// `ended` becomes readable when the guests' launcher has ended.
  Host(std::string name, int group, int ended) : name_(std::move(name)), group_(group), ended_(ended) {}

  /// Sleeps until the guests are through; returns the wrong elements they saw (0 except on rank 0).
  /// Throws std::runtime_error when they end, or take longer than ten minutes.
  std::uint64_t send(Team& team, const Errand& errand) {
    Team::Note& note = team.note(group_);
    call(team, errand);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(10);
    for (auto seen = note.answered.load(std::memory_order_acquire); seen < turn_;
         seen = note.answered.load(std::memory_order_acquire)) {
      constexpr timespec look{0, 200'000'000};
      detail::sleep_while(note.answered, seen, &look);
      if (note.answered.load(std::memory_order_acquire) >= turn_) continue;
      pollfd launcher{ended_, POLLIN, 0};
      if (poll(&launcher, 1, 0) > 0) throw std::runtime_error("benchmark: " + name_ + " ended in its turn");
      if (std::chrono::steady_clock::now() > deadline) {
        throw std::runtime_error("benchmark: " + name_ + " did not end its turn within ten minutes");
      }
    }
    if (team.rank() != 0) return 0;
    Errand answer;
    std::memcpy(&answer, note.text.data(), sizeof answer);
    return answer.wrong;
  }

  /// The guests go home.
  void dismiss(Team& team) {
    Errand errand;
    errand.last = true;
    call(team, errand);
  }

 private:
  void call(Team& team, const Errand& errand) {
    ++turn_;
    if (team.rank() != 0) return;
    Team::Note& note = team.note(group_);
    std::memcpy(note.text.data(), &errand, sizeof errand);
    note.called.store(turn_, std::memory_order_release);
    detail::wake_all(note.called);
  }

  std::string name_;
  int group_;
  int ended_;
  std::uint32_t turn_ = 0;
};

/// A guest's end. All ranks of the group call it alike.
class Guest {
 public:
  explicit Guest(Team& team) : team_(team), note_(team.note(team.group())) {}

  /// Sleeps until there is something to do.
  Errand next() {
    ++turn_;
    for (auto seen = note_.called.load(std::memory_order_acquire); seen < turn_;
         seen = note_.called.load(std::memory_order_acquire)) {
      detail::sleep_while(note_.called, seen, nullptr);
    }
    Errand errand;
    std::memcpy(&errand, note_.text.data(), sizeof errand);
    return errand;
  }

  /// The samples are written and this rank saw so many wrong elements.
  void answer(Errand errand, std::uint64_t wrong) {
    team_.tally(team_.rank()) = wrong;
    team_.align();
    if (team_.rank() != 0) return;
    errand.wrong = 0;
    for (int rank = 0; rank < team_.ranks(); ++rank) errand.wrong += team_.tally(rank);
    std::memcpy(note_.text.data(), &errand, sizeof errand);
    note_.answered.store(turn_, std::memory_order_release);
    detail::wake_all(note_.answered);
  }

 private:
  Team& team_;
  Team::Note& note_;
  std::uint32_t turn_ = 0;
};

}  // namespace tandem::bench
