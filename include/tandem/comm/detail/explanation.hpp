// SPDX-License-Identifier: Apache-2.0
// Calls in words, which ranks tell one another only when they disagree. Knows blocks and a peer's health.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tandem/comm/board.hpp"
#include "tandem/core/backoff.hpp"
#include "tandem/core/deadline.hpp"
#include "tandem/transport/concepts.hpp"

namespace tandem::detail {

template <ControlTransport T>
void explain_site(T& endpoint, std::span<const int> others, Block& own, std::uint64_t sequence, const Call& call) {
  write_text(own.site, call.origin());
  own.explained.store(sequence, std::memory_order_release);
  endpoint.publish(others,
                   {reinterpret_cast<const std::byte*>(&own.explained), sizeof own.explained + sizeof own.site});
  endpoint.wake(own.explained);
}

inline std::string site_notice(const Call& call, std::uint64_t sequence, int rank, int member) {
  return std::string("tandem: ") + name_of(call.verb) + " (operation " + std::to_string(sequence) +
         ") is called from different places: rank " + std::to_string(rank) + " from " + call.site.text() + ", rank " +
         std::to_string(member) + " from another";
}

/// What `peer` said of the same operation. One that does not answer costs a moment, not the deadline.
template <ControlTransport T>
std::string explained_site(T& endpoint, int peer, const Block& theirs, std::uint64_t sequence,
                           std::chrono::nanoseconds timeout) {
  const Deadline patience = Deadline::after(std::min<std::chrono::nanoseconds>(timeout, std::chrono::seconds(2)));
  Backoff backoff(0);
  bool gone = false;
  while (true) {
    endpoint.progress();
    if constexpr (!T::has_windows) {  // the words come behind data that the peer has sent, which nobody wants any more
      auto& in = endpoint.incoming(peer, Channel::collective);
      for (auto seen = in.peek(); !seen.empty(); seen = in.peek()) in.consume(seen.size());
    }
    if (theirs.explained.load(std::memory_order_acquire) == sequence) return read_text(theirs.site);
    if (gone || patience.expired()) break;
    if (!backoff.wait()) continue;
    gone = endpoint.health(peer) != Health::alive;  // its last words may have come together with this
    if (!gone) endpoint.nap(std::chrono::microseconds(100));
  }
  return "from an unknown place";
}

}  // namespace tandem::detail
