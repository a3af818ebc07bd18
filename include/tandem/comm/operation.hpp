// SPDX-License-Identifier: Apache-2.0
// An operation that a rank has begun: what it is, until when it may take, what happens when it is left unfinished, and
// how its failure is put into words. Knows no protocol.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tandem/comm/fingerprint.hpp"
#include "tandem/comm/poison.hpp"
#include "tandem/core/call_site.hpp"
#include "tandem/core/deadline.hpp"
#include "tandem/core/error.hpp"

namespace tandem {

/// Settable per call, as the last argument but one of every verb.
struct CallOptions {
  std::optional<std::chrono::nanoseconds> timeout{};  ///< instead of the communicator's
};

/// How many ranks' buffers are registered, that is lie in an arena which the others map.
enum class Registration : std::uint8_t { none, some, all };

namespace detail {

/// Move-only. One that goes before it was closed was left by an exception (a user's functor may throw), in the middle
/// of whatever it had in the channels, or dropped while it was pending: then `abandon` is called.
class Operation {
 public:
  using Abandon = void (*)(void* protocol, const Operation&) noexcept;

  Operation() = default;
  Operation(const Call& call_, std::uint64_t sequence_, std::uint64_t ticket_, std::chrono::nanoseconds timeout_,
            void* protocol, Abandon abandon)
      : call(call_), sequence(sequence_), ticket(ticket_), timeout(timeout_), protocol_(protocol), abandon_(abandon) {}
  Operation(Operation&& other) noexcept { *this = std::move(other); }
  Operation& operator=(Operation&& other) noexcept {
    call = other.call;
    sequence = other.sequence;
    ticket = other.ticket;
    timeout = other.timeout;
    deadline = other.deadline;
    dropped = other.dropped;
    compared = other.compared;
    std::swap(protocol_, other.protocol_);
    std::swap(abandon_, other.abandon_);
    return *this;
  }
  ~Operation() {
    if (abandon_ != nullptr) abandon_(protocol_, *this);
  }
  /// Finished, failed, or somebody else's to look after.
  void close() noexcept { abandon_ = nullptr; }

  Call call{};
  std::uint64_t sequence = 0;
  std::uint64_t ticket = 0;  // of the flight recorder
  std::chrono::nanoseconds timeout{};
  bool dropped = false;                // whoever looked after it let go of it before it was finished
  bool compared = true;                // false while data travel before all members' posts were looked at
  std::optional<Deadline> deadline{};  // set at the first long wait: a fast operation reads no clock

 private:
  void* protocol_ = nullptr;
  Abandon abandon_ = nullptr;
};

/// How long a rank may sleep at a time: between two sleeps the peers' health is looked at, so a dead one is named
/// within this.
inline std::chrono::nanoseconds until_next_look(const Operation& operation,
                                                std::chrono::nanoseconds most = std::chrono::milliseconds(10)) {
  return operation.deadline ? std::min(most, operation.deadline->remaining()) : most;
}

/// "tandem: all_reduce (operation 3, train.cpp:5 (main)) on rank 0 of 2: ...".
inline Error error_in(const Operation& operation, int rank, int size, ErrorKind kind, int peer,
                      const std::string& what) {
  return Error(kind,
               std::string("tandem: ") + name_of(operation.call.verb) + " (operation " +
                   std::to_string(operation.sequence) + ", " + operation.call.site.text() + ") on rank " +
                   std::to_string(rank) + " of " + std::to_string(size) + ": " + what,
               rank, peer, name_of(operation.call.verb));
}
[[noreturn]] inline void refuse_fork(int rank) {
  throw Error(ErrorKind::environment,
              "tandem: this process is a fork of rank " + std::to_string(rank) +
                  " and has no part in its communicator; join again in the child, or exec",
              rank);
}
/// "tandem: barrier (train.cpp:9 (main)) on rank 0 of 2 cannot go on, since this communicator failed before: all_reduce
/// (operation 3, train.cpp:5 (main)) on rank 0 of 2: ...", or "since the communicator it was split from failed before".
/// The Error's verb and peer are those of the first failure.
[[noreturn]] inline void refuse_poisoned(Verb verb, const CallSite& site, int rank, int size, const Error& cause) {
  const std::string_view first = words_of(cause);
  throw Error(ErrorKind::poisoned,
              std::string("tandem: ") + name_of(verb) + " (" + site.text() + ") on rank " + std::to_string(rank) +
                  " of " + std::to_string(size) + " cannot go on, since " +
                  (first.starts_with(handed_down) ? "" : "this communicator failed before: ") + std::string(first),
              rank, cause.peer(), cause.verb());
}
[[noreturn]] inline void refuse_for_lack_of_room(Verb verb, int rank, std::uint64_t oldest) {
  throw Error(ErrorKind::argument,
              "tandem: operation " + std::to_string(oldest) +
                  " has been pending for as many operations as may follow it; finish it first",
              rank, -1, name_of(verb));
}

}  // namespace detail
}  // namespace tandem
