// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks on their way: one out, one in, or both at the same time. Knows bytes and envelopes, no
// elements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "tandem/comm/communicator.hpp"
#include "tandem/core/stream.hpp"

namespace tandem::detail {

/// Goes before every message; what the receiver holds against what it expects.
struct Envelope {
  std::uint64_t number = 0;  // of this pair in this communicator, from 1
  Fingerprint fingerprint{};
  char site[88] = {};  // the sender's call site in words: the sender may be gone when the receiver wants to name it
};
static_assert(sizeof(Envelope) == 128);

/// For message `number` of `call`, whose verb is send and whose root is the receiver.
inline Envelope envelope_of(const Call& call, std::uint32_t communicator, std::uint64_t number) {
  Envelope header{number, Fingerprint::of(call, communicator), {}};
  const std::string place = call.site.text();
  std::memcpy(header.site, place.data(), std::min(place.size(), sizeof header.site - 1));
  return header;
}

/// `call` is as the sender would have put it: a send to this rank. Fails the operation when that is not what came.
template <class T>
void require_expected(Protocol<T>& protocol, Operation& operation, const Call& call, std::uint64_t number, int from,
                      Envelope& header) {
  const Fingerprint expected = Fingerprint::of(call, protocol.id());
  if (header.number == number && expected.agrees(header.fingerprint)) return;
  header.site[sizeof header.site - 1] = '\0';
  protocol.fail(operation, ErrorKind::mismatch, from,
                "the message that came is not the one expected: " +
                    (header.number != number ? "it is number " + std::to_string(header.number) + " of its pair"
                                             : difference(expected, protocol.rank(), header.fingerprint, from)) +
                    "; rank " + std::to_string(from) + " sends from " + header.site);
}

/// Takes everything that has arrived from any rank off the channels, into the inboxes. True when something moved.
/// From all of the endpoint's peers, not only this communicator's: ranks that wait for one another in a circle may each
/// be sending over another communicator.
template <class T>
bool drain(Protocol<T>& protocol) {
  bool moved = false;
  for (int peer = 0; peer < protocol.endpoint().size(); ++peer) {
    if (peer == protocol.endpoint().rank()) continue;
    auto& in = protocol.endpoint().incoming(peer, Channel::point_to_point);
    for (auto seen = in.peek(); !seen.empty(); seen = in.peek()) {
      protocol.host().inbox(peer).put(seen);
      in.consume(seen.size());
      moved = true;
    }
  }
  return moved;
}

/// What of a message is still to be sent; nothing by default.
struct Outgoing {
  int to = -1;
  std::span<const std::byte> header{};
  std::span<const std::byte> data{};
  bool finished() const noexcept { return header.empty() && data.empty(); }
};
/// What of a message is still to come; nothing by default.
struct Incoming {
  int from = -1;
  std::span<std::byte> header{};
  std::span<std::byte> data{};
  bool finished() const noexcept { return header.empty() && data.empty(); }
};

/// Moves both until they are finished, side by side, so neither waits for the other. `check` is called when in's header
/// is there, before any of in's data is touched. When `in_place`, out's and in's data begin at the same address, and
/// only what has been sent is overwritten. Returns the bytes sent.
template <class T, class Check>
std::uint64_t move_messages(Protocol<T>& protocol, Operation& operation, Outgoing out, Incoming in, Check check,
                            bool in_place = false) {
  constexpr Channel channel = Channel::point_to_point;
  T& endpoint = protocol.endpoint();
  const std::size_t data_out = out.data.size();
  const std::size_t data_in = in.data.size();
  const LoanScope loans(out.to < 0 ? nullptr : &endpoint.outgoing(protocol.endpoint_of(out.to), channel));
  std::uint64_t sent = 0;

  const auto send_some = [&] {
    if (out.finished()) return false;
    auto& bytes = out.header.empty() ? out.data : out.header;
    auto& to = endpoint.outgoing(protocol.endpoint_of(out.to), channel);
    // What may be overwritten as soon as it is sent, or is the caller's for this call only, is copied.
    const bool lends = !in_place && out.header.empty();
    const std::size_t part = lends ? hand_over_some(to, bytes) : write_some(to, bytes);
    bytes = bytes.subspan(part);
    sent += part;
    return part != 0;
  };
  // What may be written now of what is to come.
  const auto room = [&]() -> std::span<std::byte> {
    if (!in.header.empty()) return in.header;
    if (!in_place || out.data.empty()) return in.data;
    const std::size_t free = (data_out - out.data.size()) - (data_in - in.data.size());
    return in.data.first(std::min(free, in.data.size()));
  };
  const auto receive_some = [&] {
    const auto to = room();
    if (to.empty()) return false;
    const int peer = protocol.endpoint_of(in.from);
    Inbox& inbox = protocol.host().inbox(peer);
    const std::size_t part = inbox.empty() ? endpoint.recv_some(peer, channel, to) : inbox.take(to);
    if (in.header.empty()) {
      in.data = in.data.subspan(part);
    } else {
      in.header = in.header.subspan(part);
      if (in.header.empty()) check();
    }
    return part != 0;
  };
  const auto ready = [&] {
    if (!out.finished() && !endpoint.outgoing(protocol.endpoint_of(out.to), channel).reserve().empty()) return true;
    return !room().empty() && !endpoint.incoming(protocol.endpoint_of(in.from), channel).peek().empty();
  };

  Backoff backoff(protocol.pauses());
  while (!out.finished() || !in.finished()) {
    const bool moved = static_cast<int>(send_some()) + static_cast<int>(receive_some()) != 0;
    // While the other end does not take: it may be sending to this one.
    if (moved || (!out.finished() && drain(protocol))) {
      backoff = Backoff(protocol.pauses());
      continue;
    }
    protocol.await_channel(operation, room().empty() ? out.to : in.from, backoff, ready);
  }
  return sent;
}

}  // namespace tandem::detail
