// SPDX-License-Identifier: Apache-2.0
// Data that goes from ranks to ranks unchanged, each part to one reader or to several: what gather, scatter and
// all-to-all have in common. Knows who gets which range, not which collective it is.
//
// Three functions of a member describe an operation to one rank:
//   sends(member)     the range of the own input that goes to it, the own part included;
//   receives(member)  the range of the own output that comes from it, the own part included;
//   origin(member)    where in that member's input the latter begins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tandem/collective/detail/carry_out.hpp"
#include "tandem/collective/detail/pairwise_flow.hpp"
#include "tandem/collective/detail/staged.hpp"
#include "tandem/collective/path.hpp"
#include "tandem/collective/prediction.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/bytes.hpp"
#include "tandem/core/copy.hpp"

namespace tandem::detail {

/// The part that stays with this rank.
template <class E>
void keep_own(const E* input, E* output, Range from, Range to) noexcept {
  if (!from.empty() && input + from.begin != output + to.begin) {
    copy_result(output + to.begin, input + from.begin, from.size() * sizeof(E));
  }
}

/// Loads what comes from the others; `load(member, begin, to, count)` copies elements of a member's input.
template <class T, class E, class Receives, class Origin, class Load>
std::uint64_t load_from_others(const Protocol<T>& protocol, E* output, Receives receives, Origin origin, Load load) {
  std::uint64_t loaded = 0;
  for (int step = 1; step < protocol.size(); ++step) {
    const int member = (protocol.rank() + step) % protocol.size();  // not all from the same one first
    const Range to = receives(member);
    if (to.empty()) continue;
    load(member, origin(member), output + to.begin, to.size());
    loaded += to.size() * sizeof(E);
  }
  return loaded;
}
/// Inputs that lie at `input_of(member)` in this process.
template <class E, class InputOf>
auto load_from(InputOf input_of) {
  return [=](int member, std::size_t begin, E* to, std::size_t count) {
    copy_result(to, input_of(member) + begin * sizeof(E), count * sizeof(E));
  };
}
/// Inputs that lie where their ranks have posted.
template <class E, class T>
auto load_posted(Protocol<T>& protocol, Operation& operation) {
  return [&](int member, std::size_t begin, E* to, std::size_t count) {
    protocol.load(operation, member, protocol.line_of(operation, member).input, begin * sizeof(E), to,
                  count * sizeof(E));
  };
}

/// Does any other rank get something of this one's input?
template <class T, class Sends>
bool gives(const Protocol<T>& protocol, Sends sends) {
  for (int member = 0; member < protocol.size(); ++member) {
    if (member != protocol.rank() && !sends(member).empty()) return true;
  }
  return false;
}

/// Once all are known to be readable: each rank loads its part, and who was read waits until all have.
template <class T, class E, class Receives, class Origin>
std::uint64_t load_from_buffers(Protocol<T>& protocol, Operation& operation, E* output, bool is_read, Receives receives,
                                Origin origin) {
  const std::uint64_t loaded =
      load_from_others(protocol, output, receives, origin, load_posted<E>(protocol, operation));
  protocol.post_done(operation);
  if (is_read) protocol.await_done(operation);
  return loaded;
}

/// The whole operation. `longest` is the number of elements of the longest input that any rank gives, the same on all.
/// When `in_place`, input and output are one buffer, and each part is received where one was sent from.
template <class T, class E, class Sends, class Receives, class Origin>
void redistribute(Protocol<T>& protocol, const Call& call, const CallOptions& options, std::span<const E> input,
                  E* output, std::size_t longest, bool in_place, predict::Volume volume, Sends sends, Receives receives,
                  Origin origin) {
  const int rank = protocol.rank();
  const bool is_read = gives(protocol, sends);
  const auto keep = [&] { keep_own(input.data(), output, sends(rank), receives(rank)); };
  if (protocol.size() == 1) {
    auto operation = protocol.post(call, options, 0, 0);
    keep();
    return protocol.finish(operation, 0, 0);
  }
  const std::uint64_t most = longest > SIZE_MAX / sizeof(E) ? SIZE_MAX : longest * sizeof(E);
  // Only inputs are read across ranks, so only they have to be registered. In place, a reader could come too late.
  std::uint64_t place = Place::nothing;
  if (is_read) place = in_place ? Place::hidden : protocol.buffers().place_of(input.data(), input.size_bytes());
  auto [operation, staged] =
      announce<Auto>(protocol, call, options, most, is_read ? std::as_bytes(input) : std::span<const std::byte>(),
                     place, Place::nothing);
  if (staged) {
    keep();
    const auto loaded = load_from_others(protocol, output, receives, origin,
                                         load_from<E>([&](int member) { return protocol.staging().of(member); }));
    for (int member = 0; member < protocol.size(); ++member) {
      if (!receives(member).empty()) protocol.staging().release(member, longest * sizeof(E));
    }
    return protocol.finish(operation, volume.of(Path::staged), loaded);
  }
  const Path taken = path_for<Auto>(protocol, operation, most);
  if (reads_in_place(taken)) {
    const auto loaded = load_from_buffers(protocol, operation, output, is_read, receives, origin);
    keep();
    return protocol.finish(operation, volume.of(taken), loaded);
  }
  const auto sent = exchange_and_copy(protocol, operation, input.data(), output, sends, receives, in_place);
  keep();
  protocol.finish(operation, volume.of(Path::pairwise), sent);
}

}  // namespace tandem::detail
