// SPDX-License-Identifier: Apache-2.0
// The one exception type of the library: what failed, on which rank, because of which peer, in which call.
// Messages state the equation that failed with its numbers ("world size 8 is not 2 x 3").
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace tandem {

/// What kind of failure an Error reports; decides what the caller can do about it.
enum class ErrorKind {
  argument,     ///< the call was wrong; nothing was sent, the communicator is as before
  environment,  ///< the environment (variables, limits, permissions) does not allow it
  mismatch,     ///< ranks called different things; the communicator is poisoned
  dead_peer,    ///< a peer's process ended, or left the communicator
  timeout,      ///< the deadline passed while a peer was silent
  poisoned,     ///< an earlier failure made this communicator unusable; names this call and the first cause
  system,       ///< an operating-system call failed
};

/// Thrown by every call of the library that fails.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, int rank = -1, int peer = -1, std::string verb = {})
      : std::runtime_error(message), kind_(kind), rank_(rank), peer_(peer), verb_(std::move(verb)) {}

  ErrorKind kind() const noexcept { return kind_; }
  /// This process's rank in the communicator concerned, or -1.
  int rank() const noexcept { return rank_; }
  /// The rank that is to blame (dead, silent, differing), or -1.
  int peer() const noexcept { return peer_; }
  /// The operation that failed ("all_reduce"; of poisoned, the first one), or empty.
  const std::string& verb() const noexcept { return verb_; }

 private:
  ErrorKind kind_;
  int rank_;
  int peer_;
  std::string verb_;
};

namespace detail {
/// An Error's words as they can follow others: without the name that every message begins with.
inline std::string_view words_of(const Error& error) noexcept {
  constexpr std::string_view name = "tandem: ";
  const std::string_view words = error.what();
  return words.starts_with(name) ? words.substr(name.size()) : words;
}
}  // namespace detail

}  // namespace tandem
