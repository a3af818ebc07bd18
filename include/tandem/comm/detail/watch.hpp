// SPDX-License-Identifier: Apache-2.0
// Is there still hope for an operation that waits? Looks at the peers' health, at what they say and at the deadline,
// and finds words for what is wrong. Decides nothing: its caller fails the operation.
#pragma once

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "tandem/comm/board.hpp"
#include "tandem/comm/detail/blame.hpp"
#include "tandem/comm/detail/whereabouts.hpp"
#include "tandem/comm/operation.hpp"
#include "tandem/core/clock.hpp"
#include "tandem/core/deadline.hpp"
#include "tandem/core/error.hpp"
#include "tandem/transport/concepts.hpp"

namespace tandem::detail {

struct Trouble {
  ErrorKind kind;
  int peer;
  std::string what;
};

/// A member's memory could not be read, for the reason that `fault`, an error number, gives.
inline Trouble unreadable(int member, int fault) {
  const bool ended = fault == ESRCH;
  return {ended ? ErrorKind::dead_peer : ErrorKind::system, member,
          "the memory of rank " + std::to_string(member) +
              " cannot be read: " + (ended ? "its process has ended" : std::generic_category().message(fault))};
}

/// Refers to what the communicator keeps; by member, but for `others` (see Staging).
template <ControlTransport T>
struct Watch {
  T& endpoint;
  const std::vector<Block*>& blocks;
  const std::vector<BlockPlace>& places;
  const std::vector<int>& members;
  const std::vector<int>& others;
  int rank;
  Whereabouts<T> whereabouts;
  std::uint64_t looked_at = 0;                  // ticket of the operation that had the last look,
  std::vector<std::uint64_t> beats_at_first{};  // and where the others were at its first
  int declared = -1;                            // for whom this rank said last that it waits, and when
  Clock::time_point declared_at{};

  /// `member` is the one this rank waits for; `ready` is asked once more before a rank that left is blamed, since it
  /// may have left after it did its part.
  template <class Ready>
  std::optional<Trouble> look(Operation& operation, int member, Ready ready) {
    if (!operation.deadline) operation.deadline = Deadline::after(operation.timeout);
    if (beats_at_first.empty() || looked_at != operation.ticket) {
      looked_at = operation.ticket;
      beats_at_first = whereabouts.beats();
    }
    for (int other = 0; other < static_cast<int>(blocks.size()); ++other) {
      if (other == rank) continue;
      // Looked at first: what a rank said before it left is here then.
      const Health health = endpoint.health(endpoint_of(other));
      if (gave_up(other)) {
        if (ready()) return std::nullopt;  // a rank that can find out by itself has the better words
        const Block& theirs = block(other);
        return Trouble{static_cast<ErrorKind>(theirs.kind), theirs.culprit,
                       "rank " + std::to_string(other) + " gave up: " + read_text(theirs.cause)};
      }
      if (health == Health::dead) {
        return Trouble{ErrorKind::dead_peer, other, name(other) + " " + endpoint.ending(endpoint_of(other))};
      }
      const bool left = health == Health::left || block(other).generation.load(std::memory_order_acquire) !=
                                                      places[at(other)].generation;  // only this communicator
      if (left && other == member && !ready()) {
        return Trouble{ErrorKind::dead_peer, other,
                       "rank " + std::to_string(other) + " left the communicator" +
                           whereabouts.of(endpoint_of(other), beats_at_first, "last waited")};
      }
    }
    declare(operation, member);
    if (!operation.deadline->expired() || ready()) return std::nullopt;
    const auto beats = whereabouts.beats();
    const int late = end_of_chain(blocks, rank, member, [&](auto span) {
      show_waiting();
      whereabouts.say(operation);
      endpoint.nap(span);
    });
    if (ready()) return std::nullopt;
    for (int other = 0; other < static_cast<int>(blocks.size()); ++other) {
      if (other != rank && gave_up(other)) return std::nullopt;  // the next look takes its words
    }
    return Trouble{ErrorKind::timeout, late,
                   name(late) + " did not take part within " + format_seconds(operation.timeout) +
                       (late == member ? "" : "; rank " + std::to_string(member) + " waits for it too") +
                       whereabouts.of(endpoint_of(late), beats, "waits")};
  }

 private:
  static std::size_t at(int member) noexcept { return static_cast<std::size_t>(member); }
  Block& block(int member) const noexcept { return *blocks[at(member)]; }
  int endpoint_of(int member) const noexcept { return members[at(member)]; }
  bool gave_up(int member) const noexcept { return block(member).failed.load(std::memory_order_acquire) != 0; }
  std::string name(int member) const {
    return "rank " + std::to_string(member) + " (" + endpoint.describe(endpoint_of(member)) + ")";
  }
  /// At most every 10 ms for one member: over a network this is a message, which ends the naps of those that get it,
  /// and ranks that wait side by side would keep one another awake.
  void declare(const Operation& operation, int member) {
    const auto now = Clock::now();
    if (member == declared && now - declared_at < std::chrono::milliseconds(10)) return;
    declared = member;
    declared_at = now;
    whereabouts.say(operation);
    declare_waiting(block(rank), member);
    show_waiting();
  }
  void show_waiting() {
    const auto& word = block(rank).waits_for;
    endpoint.publish(others, {reinterpret_cast<const std::byte*>(&word), sizeof word});
  }
};

}  // namespace tandem::detail
