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
#include "tandem/comm/envelope.hpp"
#include "tandem/core/stream.hpp"

namespace tandem::detail {

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
      protocol.host().inbox(peer).sort_all(seen);
      in.consume(seen.size());
      moved = true;
    }
  }
  return moved;
}

/// The next bytes of the messages that a member sends over this communicator, at most to.size(); returns how many.
template <class T>
std::size_t receive_from(Protocol<T>& protocol, int member, std::span<std::byte> to) {
  constexpr Channel channel = Channel::point_to_point;
  const int peer = protocol.endpoint_of(member);
  Inbox& inbox = protocol.host().inbox(peer);
  auto& in = protocol.endpoint().incoming(peer, channel);
  while (true) {
    if (const std::size_t part = inbox.take(protocol.id(), to)) return part;
    if (const auto due = inbox.due(protocol.id())) {
      const auto most = static_cast<std::size_t>(std::min<std::uint64_t>(due, to.size()));
      const std::size_t part = protocol.endpoint().recv_some(peer, channel, to.first(most));
      inbox.passed(part);
      return part;
    }
    const auto seen = in.peek();
    if (seen.empty()) return 0;
    in.consume(inbox.sort(seen, protocol.id()));
  }
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
  const Operation* record = nullptr;  ///< of an exchange: what the flight recorder has of this half
  bool finished() const noexcept { return header.empty() && data.empty(); }
};

/// A message that fails in the middle leaves its receiver waiting for the rest of it before anything else on the
/// channel, also of other communicators, which live on: the rest is owed, and paid in zeros before the next message.
template <class T>
class Debt {
 public:
  Debt(Protocol<T>& protocol, const Outgoing& out, const std::uint64_t& sent)
      : protocol_(protocol), out_(out), sent_(sent) {}
  Debt(const Debt&) = delete;
  Debt& operator=(const Debt&) = delete;
  ~Debt() {
    if (sent_ != 0 && !out_.finished()) {
      protocol_.host().owed_to(protocol_.endpoint_of(out_.to)) += out_.header.size() + out_.data.size();
    }
  }

 private:
  Protocol<T>& protocol_;
  const Outgoing& out_;
  const std::uint64_t& sent_;
};
/// True when nothing is owed any more.
template <class Out>
bool pay_debt(Out& out, std::uint64_t& owed) {
  static constexpr std::byte zeros[4096]{};
  while (owed != 0) {
    const std::size_t part = write_some(out, std::span(zeros).first(std::min<std::uint64_t>(owed, sizeof zeros)));
    if (part == 0) return false;
    owed -= part;
  }
  return true;
}

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
  const Debt debt(protocol, out, sent);

  const auto is_sent = [&] {
    return out.to < 0 || (out.finished() && drained(endpoint.outgoing(protocol.endpoint_of(out.to), channel)));
  };
  const auto send_some = [&] {
    if (out.finished()) return false;
    auto& to = endpoint.outgoing(protocol.endpoint_of(out.to), channel);
    if (!pay_debt(to, protocol.host().owed_to(protocol.endpoint_of(out.to)))) return false;
    auto& bytes = out.header.empty() ? out.data : out.header;
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
    const std::size_t part = receive_from(protocol, in.from, to);
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
    if (out.finished() && in.finished()) return is_sent();
    return !room().empty() && !endpoint.incoming(protocol.endpoint_of(in.from), channel).peek().empty();
  };

  Backoff backoff(protocol.pauses());
  while (!is_sent() || !in.finished()) {
    const bool moved = static_cast<int>(send_some()) + static_cast<int>(receive_some()) != 0;
    // While the other end does not take: it may be sending to this one.
    if (moved || (!is_sent() && drain(protocol))) {
      backoff = Backoff(protocol.pauses());
      continue;
    }
    if (in.record != nullptr && !in.finished()) protocol.record_waits(*in.record, in.from);
    protocol.await_channel(operation, room().empty() ? out.to : in.from, backoff, ready);
  }
  return sent;
}

}  // namespace tandem::detail
