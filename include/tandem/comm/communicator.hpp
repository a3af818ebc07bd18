// SPDX-License-Identifier: Apache-2.0
// An ordered group of ranks over a transport: what every collective takes first. The world is one of them, split()
// makes others, and nothing tells them apart.
#pragma once

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tandem/comm/exchange.hpp"
#include "tandem/comm/protocol.hpp"

namespace tandem {

/// Move-only. Used by one thread at a time; several communicators of a process may be used by several threads only
/// when no two of them share a pair of ranks.
///
/// Every blocking call has a deadline (timeout()). After one failure every later call throws Error(poisoned) at once;
/// the content of buffers that took part in a failed operation is unspecified. A process may then join again.
template <ControlTransport T>
class Communicator {
 public:
  using Transport = T;

  explicit Communicator(std::unique_ptr<detail::Protocol<T>> protocol) : protocol_(std::move(protocol)) {}

  /// This process's place, 0 .. size() - 1.
  int rank() const noexcept { return protocol_->rank(); }
  int size() const noexcept { return protocol_->size(); }

  /// Registered memory: collectives on buffers that lie in it, on all ranks, move the least bytes possible.
  const std::shared_ptr<Arena>& arena() const noexcept { return protocol_->host().arena(); }
  /// Bytes moved by this rank through this communicator, predicted and measured.
  const Ledger& ledger() const noexcept { return protocol_->ledger(); }
  /// The last operations of this rank, oldest first.
  std::vector<Record> record() const { return protocol_->recorder().last(); }
  std::chrono::nanoseconds timeout() const noexcept { return protocol_->timeout(); }
  /// What a user should know once; nothing happens when no callback was given at join.
  void notice(const std::string& text) const {
    if (protocol_->notice()) protocol_->notice()(text);
  }

  bool poisoned() const noexcept { return protocol_->poison()->is_set(); }
  /// Gives this communicator and all that was split from it up, as a failed call does: peers that wait for this rank
  /// throw and name `cause`. Buffers in the arena become private memory (same addresses, same content).
  void poison(const Error& cause) { protocol_->give_up(cause); }

  /// Collective: ranks that pass the same color form a new communicator, ordered by (key, rank). Moves 24 bytes per
  /// pair of ranks. The new communicator keeps the endpoint alive by itself; it fails with this one.
  Communicator split(int color, int key, const CallOptions& options = {}, CallSite site = CallSite::here()) {
    struct Ticket {
      std::int32_t color, key;
      detail::BlockPlace place;
    };
    protocol_->require_usable(Verb::split, site);
    protocol_->require_room(Verb::split);  // before a block is taken for it
    const Ticket mine{color, key, protocol_->host().new_block()};
    const auto bytes = detail::exchange(*protocol_, Verb::split, std::as_bytes(std::span(&mine, 1)), options, site);
    std::vector<std::pair<Ticket, int>> group;
    for (int member = 0; member < size(); ++member) {
      Ticket ticket{};
      std::memcpy(&ticket, bytes.data() + static_cast<std::size_t>(member) * sizeof ticket, sizeof ticket);
      if (ticket.color == color) group.emplace_back(ticket, member);
    }
    std::ranges::stable_sort(group, {}, [](const auto& it) { return it.first.key; });
    std::vector<int> members;
    std::vector<detail::BlockPlace> places;
    int own = 0;
    for (std::size_t i = 0; i < group.size(); ++i) {
      members.push_back(protocol_->endpoint_of(group[i].second));
      places.push_back(group[i].first.place);
      if (group[i].second == rank()) own = static_cast<int>(i);
    }
    // The same on all members, and different from its siblings and from earlier splits.
    std::uint32_t id = protocol_->id();
    for (const std::uint64_t part :
         {protocol_->newest(), static_cast<std::uint64_t>(static_cast<std::uint32_t>(color))}) {
      id = (id ^ static_cast<std::uint32_t>(part)) * 16777619U + 1;
    }
    Communicator child(std::make_unique<detail::Protocol<T>>(protocol_->shared_host(), std::move(members), own, id,
                                                             places, timeout(), protocol_->crowded(),
                                                             protocol_->notice()));
    protocol_->poison()->adopt(child.protocol_->poison());
    return child;
  }

  /// For the collectives.
  detail::Protocol<T>& protocol() const noexcept { return *protocol_; }

 private:
  std::unique_ptr<detail::Protocol<T>> protocol_;
};

}  // namespace tandem
