// SPDX-License-Identifier: Apache-2.0
// What the blocking and the pending form of a collective have in common: how an announced operation is carried out once
// its way is known. Knows the order of the steps, not what any of them does.
//
// A verb's steps are a type with
//   input_place(protocol), output_place(protocol)   what it announces of this rank's buffers;
//   staged_bytes()                                  what it would have to stage, the most of all ranks;
//   waits(protocol, operation)                      must this rank, then, wait until all have done their part?
//   read_in_place(protocol, operation, path)        its part of Direct or Fetch, out of buffers where they lie; the
//                                                   bytes moved;
//   in_pieces(protocol, operation)                  its part of Bounce, where the verb has it; the bytes moved;
//   by_channels<Algorithm>(protocol, operation)     all of it by channels; the bytes moved;
//   predicted(protocol, operation, path)            the bytes by formula.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>

#include "tandem/collective/algorithm.hpp"
#include "tandem/collective/detail/checks.hpp"
#include "tandem/collective/path.hpp"
#include "tandem/comm/communicator.hpp"

namespace tandem::detail {

template <class Algorithm, class T>
Path path_for(const Protocol<T>& protocol, Verb verb, std::uint64_t staged_bytes, Registration registration,
              bool readable = false, bool pending = false) noexcept {
  return path_of(verb, {.ranks = protocol.size(),
                        .forced = Algorithm::number,
                        .staged_bytes = staged_bytes,
                        .crowded = protocol.crowded(),
                        .pending = pending,
                        .windows = T::has_windows,
                        .registration = registration,
                        .readable = readable});
}
/// The same once all ranks have said where their buffers are.
template <class Algorithm, class T>
Path path_for(const Protocol<T>& protocol, const Operation& operation, std::uint64_t staged_bytes,
              bool pending = false) noexcept {
  return path_for<Algorithm>(protocol, operation.call.verb, staged_bytes, protocol.buffers().registration(operation),
                             protocol.buffers().all_readable(operation), pending);
}

/// Direct was forced, and the buffers of some rank, at least one, are not registered: the same answer on all ranks,
/// nothing was moved.
template <class T>
[[noreturn]] void refuse_unregistered(Protocol<T>& protocol, Operation& operation) {
  int member = 0;
  while (member + 1 < protocol.size() && protocol.buffers().is_registered(operation, member)) ++member;
  protocol.finish(operation, 0, 0);
  refuse(operation.call.verb, protocol.rank(),
         "Direct needs registered buffers on all ranks, and rank " + std::to_string(member) +
             "'s do not lie in its arena; allocate them from communicator.arena(), or do not force Direct",
         operation.call.site);
}

/// The way that path_of has chosen, or was told.
template <class Algorithm, class T, class Steps>
std::uint64_t go_by_channels(Protocol<T>& protocol, Operation& operation, const Steps& steps, Path path) {
  if constexpr (std::same_as<Algorithm, Auto>) {
    if (path == Path::naive) return steps.template by_channels<Naive>(protocol, operation);
    if (path == Path::pairwise) return steps.template by_channels<Pairwise>(protocol, operation);
  }
  return steps.template by_channels<Algorithm>(protocol, operation);
}

/// All of an operation whose posts were awaited, or need not be (see Protocol::begin).
template <class Algorithm, class T, class Steps>
void carry_out(Protocol<T>& protocol, Operation& operation, const Steps& steps) {
  const Path path = path_for<Algorithm>(protocol, operation, steps.staged_bytes());
  if constexpr (T::has_windows && OneOf<Algorithm, Auto, Direct>) {
    if constexpr (std::same_as<Algorithm, Direct>) {
      if (protocol.buffers().registration(operation) != Registration::all) refuse_unregistered(protocol, operation);
    }
    if (reads_in_place(path)) {
      const auto moved = steps.read_in_place(protocol, operation, path);
      protocol.post_done(operation);
      if (steps.waits(protocol, operation)) protocol.await_done(operation);
      return protocol.finish(operation, steps.predicted(protocol, operation, path), moved);
    }
  }
  if constexpr (T::has_windows && std::same_as<Algorithm, Auto> && requires { steps.in_pieces(protocol, operation); }) {
    if (path == Path::bounce) {
      const auto moved = steps.in_pieces(protocol, operation);
      return protocol.finish(operation, steps.predicted(protocol, operation, path), moved);
    }
  }
  if constexpr (!std::same_as<Algorithm, Direct>) {
    const auto moved = go_by_channels<Algorithm>(protocol, operation, steps, path);
    protocol.finish(operation, steps.predicted(protocol, operation, path), moved);
  }
}

}  // namespace tandem::detail
