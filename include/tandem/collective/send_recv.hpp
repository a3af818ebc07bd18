// SPDX-License-Identifier: Apache-2.0
// A message from one rank to another.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>

#include "tandem/collective/detail/checks.hpp"
#include "tandem/comm/communicator.hpp"

namespace tandem {

namespace detail {

/// Goes before every message; what the receiver holds against what it expects.
struct Envelope {
  std::uint64_t number = 0;  // of this pair in this communicator, from 1
  Fingerprint fingerprint{};
  char site[88] = {};  // the sender's call site in words: the sender may be gone when the receiver wants to name it
};
static_assert(sizeof(Envelope) == 128);

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

template <class T>
std::uint64_t send_bytes(Protocol<T>& protocol, Operation& operation, int to, std::span<const std::byte> bytes) {
  std::uint64_t sent = 0;
  const int peer = protocol.endpoint_of(to);
  Backoff backoff(protocol.pauses());
  while (!bytes.empty()) {
    const std::size_t part = protocol.endpoint().send_some(peer, Channel::point_to_point, bytes);
    bytes = bytes.subspan(part);
    sent += part;
    // While the other end does not take: it may be sending to this one.
    if (part != 0 || (!bytes.empty() && drain(protocol))) {
      backoff = Backoff(protocol.pauses());
      continue;
    }
    protocol.await_channel(operation, to, backoff, [&] {
      return !protocol.endpoint().outgoing(peer, Channel::point_to_point).reserve().empty();
    });
  }
  return sent;
}

template <class T>
void recv_bytes(Protocol<T>& protocol, Operation& operation, int from, std::span<std::byte> bytes) {
  const int peer = protocol.endpoint_of(from);
  Inbox& inbox = protocol.host().inbox(peer);
  Backoff backoff(protocol.pauses());
  while (!bytes.empty()) {
    const std::size_t part =
        inbox.empty() ? protocol.endpoint().recv_some(peer, Channel::point_to_point, bytes) : inbox.take(bytes);
    bytes = bytes.subspan(part);
    if (part != 0) {
      backoff = Backoff(protocol.pauses());
      continue;
    }
    protocol.await_channel(operation, from, backoff,
                           [&] { return !protocol.endpoint().incoming(peer, Channel::point_to_point).peek().empty(); });
  }
}

}  // namespace detail

/// Sends `data` to rank `to`, which must receive as many elements of the same type. Messages of a pair arrive in the
/// order sent. Returns when `data` may be changed, perhaps before the other has it (up to 128 KiB are buffered); two
/// ranks that both send first do not block each other. Moves the data's bytes and a header of 128. Throws Error:
/// argument, dead_peer, timeout, poisoned.
template <ControlTransport T, Element E>
void send(Communicator<T>& comm, std::span<const E> data, int to, const CallOptions& options = {},
          CallSite site = CallSite::here()) {
  auto& protocol = comm.protocol();
  protocol.require_usable();
  detail::require_rank(Verb::send, comm.rank(), "destination", to, comm.size(), site);
  if (to == comm.rank()) detail::refuse(Verb::send, comm.rank(), "a rank cannot send to itself", site);
  const Call call = detail::describe<E>(Verb::send, data.size(), 0, 0, to, site);
  auto operation = protocol.message(call, options, ++protocol.sent_to(to));
  detail::Envelope header{operation.sequence, Fingerprint::of(call, protocol.id()), {}};
  const std::string place = site.text();
  std::memcpy(header.site, place.data(), std::min(place.size(), sizeof header.site - 1));
  std::uint64_t moved = detail::send_bytes(protocol, operation, to, std::as_bytes(std::span(&header, 1)));
  moved += detail::send_bytes(protocol, operation, to, std::as_bytes(data));
  protocol.finish(operation, sizeof header + call.bytes(), moved);
}

/// The same for a span of elements that could be changed.
template <ControlTransport T, Element E>
void send(Communicator<T>& comm, std::span<E> data, int to, const CallOptions& options = {},
          CallSite site = CallSite::here()) {
  send(comm, std::span<const E>(data), to, options, site);
}

/// Receives the next message of rank `from` into `data`; its count and type must be those sent, over this communicator:
/// two processes that exchange messages over several communicators receive them in the order in which they were sent.
/// Moves no bytes of its own: the sender's count. Throws Error: argument, mismatch (naming both call sites; `data` is
/// untouched), dead_peer, timeout, poisoned.
template <ControlTransport T, Element E>
void recv(Communicator<T>& comm, std::span<E> data, int from, const CallOptions& options = {},
          CallSite site = CallSite::here()) {
  auto& protocol = comm.protocol();
  protocol.require_usable();
  detail::require_rank(Verb::recv, comm.rank(), "source", from, comm.size(), site);
  if (from == comm.rank()) detail::refuse(Verb::recv, comm.rank(), "a rank cannot receive from itself", site);
  const Call call = detail::describe<E>(Verb::recv, data.size(), 0, 0, from, site);
  auto operation = protocol.message(call, options, ++protocol.taken_from(from));
  detail::Envelope header{};
  detail::recv_bytes(protocol, operation, from, std::as_writable_bytes(std::span(&header, 1)));
  // As the sender would have put it: a send to this rank.
  Fingerprint expected = Fingerprint::of(call, protocol.id());
  expected.verb = static_cast<std::uint8_t>(Verb::send);
  expected.root = static_cast<std::int16_t>(comm.rank());
  if (header.number != operation.sequence || !expected.agrees(header.fingerprint)) {
    header.site[sizeof header.site - 1] = '\0';
    protocol.fail(
        operation, ErrorKind::mismatch, from,
        "the message that came is not the one expected: " +
            (header.number != operation.sequence ? "it is number " + std::to_string(header.number) + " of its pair"
                                                 : difference(expected, comm.rank(), header.fingerprint, from)) +
            "; rank " + std::to_string(from) + " sends from " + header.site);
  }
  detail::recv_bytes(protocol, operation, from, std::as_writable_bytes(data));
  protocol.finish(operation, 0, 0);
}

}  // namespace tandem
