// SPDX-License-Identifier: Apache-2.0
// What a communicator asks of a transport. A transport moves bytes between processes and tells who is alive; it never
// sees a reduction, a tensor or a communicator.
#pragma once

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tandem/core/bytes.hpp"

namespace tandem {

/// How far a transport reaches.
enum class Reach : std::uint8_t { host, network };

/// What is known of a peer's process, without waiting.
enum class Health : std::uint8_t {
  alive,
  left,  ///< closed its endpoint in good order
  dead,  ///< its process ended without closing
};

/// What a process knows of its job when it connects.
struct ConnectRequest {
  int rank = 0;
  int size = 1;
  int local_size = 1;            ///< ranks of this host
  bool local_size_known = true;  ///< false: nobody said, and it is assumed that all are here
  std::string job;               ///< the same on all ranks of the job, different in any other on the host
  std::size_t heap_bytes = 0;    ///< of the arena, virtual
  std::function<void(const std::string&)> notice{};  ///< receives sentences that a user should know once; may be empty
};

/// Every ordered pair of endpoints has two independent byte streams, so that a message which its receiver has not
/// asked for yet never stands in the way of a collective.
enum class Channel : std::uint8_t { collective, point_to_point };

/// A connected endpoint. Peers are numbered 0..size()-1 in endpoint numbers; a communicator maps its ranks onto them.
///
/// send_some / recv_some never block: they move what fits and return the number of bytes moved, possibly 0.
/// outgoing() and incoming() are the same streams without the copy: reserve() gives room to write into and commit()
/// sends it; peek() shows what has arrived and consume() frees it. Pieces arrive as they were committed, so a sender
/// that commits whole elements is read in whole elements.
template <class T>
concept Transport = requires(T& endpoint, const T& view, int peer, Channel channel, std::span<const std::byte> out,
                             std::span<std::byte> in) {
  { T::name } -> std::convertible_to<const char*>;
  { T::reach } -> std::convertible_to<Reach>;
  { T::channel_capacity } -> std::convertible_to<std::size_t>;  // messages a channel holds unread; 0 = rendezvous
  { T::has_windows } -> std::convertible_to<bool>;
  { T::moves_device_memory } -> std::convertible_to<bool>;
  { view.rank() } -> std::same_as<int>;
  { view.size() } -> std::same_as<int>;
  { endpoint.send_some(peer, channel, out) } -> std::same_as<std::size_t>;
  { endpoint.recv_some(peer, channel, in) } -> std::same_as<std::size_t>;
  { endpoint.outgoing(peer, channel).reserve() } -> std::same_as<std::span<std::byte>>;
  endpoint.outgoing(peer, channel).commit(out.size());
  { endpoint.incoming(peer, channel).peek() } -> std::same_as<std::span<const std::byte>>;
  endpoint.incoming(peer, channel).consume(out.size());
  { view.forked() } -> std::same_as<bool>;  // is this a copy that fork() made, which must not touch anything?
  { view.health(peer) } -> std::same_as<Health>;
  { view.describe(peer) } -> std::convertible_to<std::string>;
  endpoint.close();
};

/// A transport on which ranks see each other's control memory: flags of one writer each, by which they keep in step.
///
/// Every rank has a window for each peer, of the same layout: [control() | heap()], offsets from its base. Where memory
/// is shared a peer's control memory is the peer's own; elsewhere it is a copy that follows what the peer publishes, in
/// the peer's order and before any stream bytes that the peer commits later. A rank changes words of its own control
/// memory alone, then calls publish and wake; others may sleep on a word. Nothing arrives without progress().
template <class T>
concept ControlTransport = Transport<T> &&
    requires(T& endpoint, const T& view, int peer, std::span<const int> peers, std::span<const std::byte> changed,
             const std::atomic<std::uint64_t>& word, std::chrono::nanoseconds span, Range range,
             const std::vector<Range>& ranges) {
  { view.window(peer) } -> std::same_as<std::byte*>;
  { view.control() } -> std::same_as<Range>;
  { view.heap() } -> std::same_as<Range>;    // what users ask for; only of the own window where windows are not shared
  { view.crowded() } -> std::same_as<bool>;  // do ranks outnumber processors? The same answer on all ranks
  endpoint.reserve(range);                   // pages of the own window, before first use
  endpoint.give_back(range);                 // pages of the own heap that nobody uses; to be reserved again
  endpoint.publish(peers, changed);
  endpoint.publish(peers, changed, Channel::point_to_point);  // what has no order with what goes by the other channel
  endpoint.deliver(
      peers);  // waits until nothing is under way to them that later publications could overtake: not for ever
  endpoint.wake(word);
  endpoint.progress();
  endpoint.sleep(peer, word, std::uint64_t{}, span);
  endpoint.nap(span);
  { view.ending(peer) } -> std::convertible_to<std::string>;  // how a dead peer ended: "died"
  // After a failure: own heap memory becomes private, content of `ranges` kept, so that a peer that was stopped
  // and resumes cannot write into what this process goes on using.
  { endpoint.detach_heap(range, ranges) } -> std::same_as<bool>;
};

/// A transport whose peers map each other's memory: loads and stores reach a peer's whole window. What lies outside of
/// it may be readable all the same, at the peer's own addresses, where the system allows it.
template <class T>
concept WindowTransport = ControlTransport<T> && T::has_windows &&
    requires(const T& view, int peer, void* to, std::uint64_t address, std::size_t bytes) {
  { view.reads_others() } -> std::same_as<bool>;                       // each of them; tried when they were connected
  { view.read_other(peer, to, address, bytes) } -> std::same_as<int>;  // 0 or an error number; never waits
};

}  // namespace tandem
