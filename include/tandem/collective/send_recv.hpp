// SPDX-License-Identifier: Apache-2.0
// A message from one rank to another, and one each way at the same time.
#pragma once

#include <span>
#include <type_traits>

#include "tandem/collective/detail/checks.hpp"
#include "tandem/collective/detail/message_flow.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/copy.hpp"

namespace tandem {

/// Sends `data` to rank `to`, which must receive as many elements of the same type. Messages of a pair arrive in the
/// order sent. Returns when `data` may be changed, perhaps before the other has it (up to 128 KiB are buffered); two
/// ranks that both send first do not block each other. Moves the data's bytes and a header of 128. Throws Error:
/// argument, dead_peer, timeout, poisoned.
template <ControlTransport T, Element E>
void send(Communicator<T>& comm, std::span<const E> data, int to, const CallOptions& options = {},
          CallSite site = CallSite::here()) {
  auto& protocol = comm.protocol();
  protocol.require_usable(Verb::send, site);
  detail::require_rank(Verb::send, comm.rank(), "destination", to, comm.size(), site);
  if (to == comm.rank()) detail::refuse(Verb::send, comm.rank(), "a rank cannot send to itself", site);
  const Call call = detail::describe<E>(Verb::send, data.size(), 0, 0, to, site);
  auto operation = protocol.message(call, options, ++protocol.sent_to(to));
  const detail::Envelope header = detail::envelope_of(call, protocol.id(), operation.sequence);
  const auto moved = detail::move_messages(protocol, operation,
                                           {to, std::as_bytes(std::span(&header, 1)), std::as_bytes(data)}, {}, [] {});
  protocol.finish(operation, sizeof header + call.bytes(), moved);
}

/// The same for a span of elements that could be changed.
template <ControlTransport T, Element E>
void send(Communicator<T>& comm, std::span<E> data, int to, const CallOptions& options = {},
          CallSite site = CallSite::here()) {
  send(comm, std::span<const E>(data), to, options, site);
}

/// Receives the next message of rank `from` over this communicator into `data`; its count and type must be those sent.
/// What arrives for other communicators meanwhile is kept for them, in memory.
/// Moves no bytes of its own: the sender's count. Throws Error: argument, mismatch (naming both call sites; `data` is
/// untouched), dead_peer, timeout, poisoned.
template <ControlTransport T, Element E>
void recv(Communicator<T>& comm, std::span<E> data, int from, const CallOptions& options = {},
          CallSite site = CallSite::here()) {
  auto& protocol = comm.protocol();
  protocol.require_usable(Verb::recv, site);
  detail::require_rank(Verb::recv, comm.rank(), "source", from, comm.size(), site);
  if (from == comm.rank()) detail::refuse(Verb::recv, comm.rank(), "a rank cannot receive from itself", site);
  const Call call = detail::describe<E>(Verb::recv, data.size(), 0, 0, from, site);
  auto operation = protocol.message(call, options, ++protocol.taken_from(from));
  const Call expected = detail::describe<E>(Verb::send, data.size(), 0, 0, comm.rank(), site);
  detail::Envelope header{};
  detail::move_messages(
      protocol, operation, {}, {from, std::as_writable_bytes(std::span(&header, 1)), std::as_writable_bytes(data)},
      [&] { detail::require_expected(protocol, operation, expected, operation.sequence, from, header); });
  protocol.finish(operation, 0, 0);
}

/// send(data_out, to) and recv(data_in, from) side by side: ranks that call it in a circle do not block each other, and
/// nothing is buffered beyond the channels as long as both ends take. Goes with the others' send, recv or send_recv.
/// The counts may differ; `data_out` and `data_in` are disjoint, or begin at the same address (in place). A rank may
/// exchange with itself, which copies. Moves the bytes of `data_out` and a header of 128. Throws Error: argument,
/// mismatch (naming both call sites; without in place, `data_in` is untouched), dead_peer, timeout, poisoned.
template <ControlTransport T, Element E>
void send_recv(Communicator<T>& comm, std::type_identity_t<std::span<const E>> data_out, int to, std::span<E> data_in,
               int from, const CallOptions& options = {}, CallSite site = CallSite::here()) {
  auto& protocol = comm.protocol();
  protocol.require_usable(Verb::send_recv, site);
  const int rank = comm.rank();
  detail::require_rank(Verb::send_recv, rank, "destination", to, comm.size(), site);
  detail::require_rank(Verb::send_recv, rank, "source", from, comm.size(), site);
  if ((to == rank) != (from == rank)) {
    detail::refuse(Verb::send_recv, rank, "a rank that sends to itself receives from itself, and no other does", site);
  }
  const bool out_is_shorter = data_out.size() < data_in.size();
  detail::require_in_place_or_disjoint<E>(Verb::send_recv, rank, out_is_shorter ? data_out : data_in,
                                          out_is_shorter ? data_in : data_out, 0, site);
  const Call call = detail::describe<E>(Verb::send_recv, data_out.size(), 0, 0, to, site);
  if (to == rank) {
    detail::require_count(Verb::send_recv, rank, "what it receives from itself", data_in.size(), data_out.size(), site);
    auto operation = protocol.message(call, options, ++protocol.sent_to(to));
    if (data_in.data() != data_out.data()) copy_bytes(data_in.data(), data_out.data(), data_out.size_bytes());
    return protocol.finish(operation, 0, 0);
  }
  const std::uint64_t taken = ++protocol.taken_from(from);
  auto receiving = protocol.message(detail::describe<E>(Verb::recv, data_in.size(), 0, 0, from, site), options, taken);
  auto operation = protocol.message(call, options, ++protocol.sent_to(to));
  const Call sent = detail::describe<E>(Verb::send, data_out.size(), 0, 0, to, site);
  const Call expected = detail::describe<E>(Verb::send, data_in.size(), 0, 0, rank, site);
  const detail::Envelope header_out = detail::envelope_of(sent, protocol.id(), operation.sequence);
  detail::Envelope header_in{};
  const auto moved = detail::move_messages(
      protocol, operation, {to, std::as_bytes(std::span(&header_out, 1)), std::as_bytes(data_out)},
      {from, std::as_writable_bytes(std::span(&header_in, 1)), std::as_writable_bytes(data_in), &receiving},
      [&] { detail::require_expected(protocol, operation, expected, taken, from, header_in); },
      data_in.data() == data_out.data());
  protocol.finish_record(receiving);
  protocol.finish(operation, sizeof header_out + sent.bytes(), moved);
}

}  // namespace tandem
