// SPDX-License-Identifier: Apache-2.0
// Ranks on any hosts, over TCP: authenticated sockets per pair, one or more for collectives and as many for messages.
// Needs OpenSSL and ISA-L (CMake target tandem::tcp).
#pragma once

#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tandem/core/bytes.hpp"
#include "tandem/core/deadline.hpp"
#include "tandem/core/env.hpp"
#include "tandem/core/error.hpp"
#include "tandem/core/processors.hpp"
#include "tandem/core/stream.hpp"
#include "tandem/transport/concepts.hpp"
#include "tandem/transport/detail/fork_mark.hpp"
#include "tandem/transport/detail/private_memory.hpp"
#include "tandem/transport/detail/process.hpp"
#include "tandem/transport/detail/tcp_link.hpp"
#include "tandem/transport/detail/tcp_meeting.hpp"
#include "tandem/transport/detail/tcp_mesh.hpp"

namespace tandem {

/// Windows are this process's own memory: [control | heap] for itself, a copy of the control memory for each peer. The
/// copies follow what the peers publish on their collective connection, so a post of a peer is here before the data
/// that it sends after it. One thread at a time uses an endpoint and all its communicators.
class Tcp {
 public:
  static constexpr const char* name = "Tcp";
  static constexpr Reach reach = Reach::network;
  static constexpr std::size_t channel_capacity = detail::TcpLink::slots;
  static constexpr bool has_windows = false;
  static constexpr bool moves_device_memory = false;
  static constexpr std::size_t frame_bytes = 64U << 10;

  /// Meets the other ranks and connects to all of them. Collective over all ranks. See docs/reference/tcp.md for the
  /// environment it reads.
  static Tcp connect(const ConnectRequest& request, Deadline deadline) {
    Tcp self(request);
    detail::TcpParty party = detail::party_of(request, deadline);
    auto meeting = detail::meet_for_tcp(party, request);
    auto sockets = detail::connect_mesh(party, meeting.listening, meeting.addresses(), channels * party.sockets);
    const detail::FrameLimits limits{frame_bytes, self.control(), party.checked};
    for (int peer = 0; peer < request.size; ++peer) {
      Peer& it = self.peers_[static_cast<std::size_t>(peer)];
      it.about = meeting.about(peer);
      if (peer == request.rank) continue;
      if (!meeting.processes.empty()) it.process = std::move(meeting.processes[static_cast<std::size_t>(peer)]);
      it.copy = detail::private_memory(control_bytes);
      auto next = std::make_move_iterator(sockets[static_cast<std::size_t>(peer)].begin());
      for (detail::TcpLink& link : it.links) {
        link = detail::TcpLink(std::vector<Descriptor>(next, next + party.sockets), limits, it.copy.get());
        next += party.sockets;
      }
    }
    self.crowded_ = meeting.crowded();
    return self;
  }

  Tcp(Tcp&&) noexcept = default;
  Tcp& operator=(Tcp&&) = delete;
  ~Tcp() { close(); }

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  // --- streams -------------------------------------------------------------------------------------------------
  detail::TcpLink& outgoing(int peer, Channel channel) noexcept { return link(peer, channel); }
  detail::TcpLink& incoming(int peer, Channel channel) noexcept { return link(peer, channel); }
  std::size_t send_some(int peer, Channel channel, std::span<const std::byte> bytes) noexcept {
    return detail::write_some(outgoing(peer, channel), bytes);
  }
  std::size_t recv_some(int peer, Channel channel, std::span<std::byte> bytes) noexcept {
    return detail::read_some(incoming(peer, channel), bytes);
  }

  // --- control memory ------------------------------------------------------------------------------------------
  std::byte* window(int peer) const noexcept {
    return peer == rank_ ? own_.get() : peers_[static_cast<std::size_t>(peer)].copy.get();
  }
  Range control() const noexcept { return {0, control_bytes}; }
  Range heap() const noexcept { return {control_bytes, control_bytes + heap_bytes_}; }
  bool crowded() const noexcept { return crowded_; }
  void reserve(Range) noexcept {}  // private memory is real enough
  void give_back(Range range) noexcept { ::madvise(own_.get() + range.begin, range.size(), MADV_DONTNEED); }
  bool detach_heap(Range, const std::vector<Range>&) noexcept { return true; }  // nobody else reaches it
  /// By `channel`, behind what was sent there; one place of the memory always by the same.
  void publish(std::span<const int> peers, std::span<const std::byte> changed,
               Channel channel = Channel::collective) noexcept {
    const auto position = static_cast<std::uint64_t>(changed.data() - own_.get());
    for (const int peer : peers) link(peer, channel).publish(position, changed);
  }
  /// As long as the peers take them, at most 30 s, a second when nobody takes anything.
  void deliver(std::span<const int> peers) noexcept {
    await_delivery([&](auto look) {
      for (const int peer : peers) {
        for (detail::TcpConnection& it : link(peer, Channel::point_to_point).sockets()) look(it);
        for (detail::TcpConnection& it : link(peer, Channel::collective).sockets().subspan(1)) look(it);
      }
    });
  }
  void wake(const std::atomic<std::uint64_t>&) noexcept { flush(); }
  void progress() noexcept {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      link(peer, Channel::collective).pull();
    }
    flush();
  }
  void sleep(int, const std::atomic<std::uint64_t>& word, std::uint64_t seen, std::chrono::nanoseconds span) noexcept {
    progress();
    if (word.load(std::memory_order_relaxed) == seen) nap(span);
  }
  /// Until something arrives or can be sent, at most `span`.
  void nap(std::chrono::nanoseconds span) noexcept {
    std::vector<pollfd>& polls = polls_;
    polls.clear();
    for (Peer& peer : peers_) {
      peer.for_each_socket([&](detail::TcpConnection& it) {
        if (it.broken()) return;
        // Unread data of a stream would end every sleep at once.
        const int events = (it.holds_data() ? 0 : POLLIN) | (it.has_unsent() ? POLLOUT : 0);
        if (events != 0) polls.push_back({it.descriptor(), static_cast<short>(events), 0});
      });
    }
    const timespec limit{static_cast<time_t>(span.count() / 1'000'000'000),
                         static_cast<long>(span.count() % 1'000'000'000)};
    ::ppoll(polls.data(), polls.size(), &limit, nullptr);
    progress();
  }

  // --- life and death ------------------------------------------------------------------------------------------
  /// On one host a dead process is noticed even while a child of it holds its sockets open; elsewhere a fork of a rank
  /// that dies later hides its end until the child is gone too.
  Health health(int peer) const noexcept {
    Peer& it = peers_[static_cast<std::size_t>(peer)];
    const bool ended = it.process && detail::has_ended(it.process);
    bool unread = false;
    bool left = true;
    bool broken = false;
    it.for_each_socket([&](detail::TcpConnection& socket) {
      socket.pull();  // its goodbye may have arrived by now
      unread = unread || socket.holds_data();
      left = left && socket.left();  // on each, after all that was sent there
      broken = broken || (socket.broken() && !socket.left());
    });
    if (left) return Health::left;
    return broken || (ended && !unread) ? Health::dead : Health::alive;
  }
  std::string describe(int peer) const { return peers_[static_cast<std::size_t>(peer)].about; }
  std::string ending(int peer) const {
    std::string words;
    peers_[static_cast<std::size_t>(peer)].for_each_socket([&](const detail::TcpConnection& socket) {
      if (words.empty()) words = socket.fault();
    });
    return words.empty() ? "died" : words;
  }
  bool forked() const noexcept { return mark_.forked(); }

  /// Tells the peers that this rank leaves, and waits for what was sent before to arrive: as long as peers take it, at
  /// most 30 s, a second when nobody takes anything. Idempotent; the destructor calls it.
  void close() noexcept {
    if (own_ == nullptr || closed_ || forked()) return;
    closed_ = true;
    for (Peer& peer : peers_) peer.for_each_socket([](detail::TcpConnection& it) { it.say_goodbye(); });
    await_delivery([&](auto look) {
      for (Peer& peer : peers_) peer.for_each_socket(look);
    });
    for (Peer& peer : peers_) peer.for_each_socket([](detail::TcpConnection& it) { it.shut_down(); });
  }

 private:
  /// `each(look)` calls look for every socket that counts.
  template <class Each>
  void await_delivery(Each each) noexcept {
    const Deadline patience = Deadline::after(std::chrono::seconds(30));
    Deadline progress = Deadline::never();
    std::size_t before = 0;
    while (true) {
      std::size_t left = 0;
      bool failed = false;
      each([&](detail::TcpConnection& it) {
        failed = failed || (it.broken() && !it.left());
        if (it.broken()) return;
        it.flush();
        left += it.undelivered();
      });
      // A peer that takes nothing for a while is stopped, or has given up as well: likely when another one died.
      if (left != before) progress = Deadline::after(std::chrono::milliseconds(failed ? 100 : 1000));
      before = left;
      if (left == 0 || patience.expired() || progress.expired()) return;
      ::poll(nullptr, 0, 1);
    }
  }
  void flush() noexcept {
    for (Peer& peer : peers_) {
      peer.for_each_socket([](detail::TcpConnection& it) {
        if (it.has_unsent()) it.flush();
      });
    }
  }

  static constexpr int channels = 2;
  /// As ShmRing's, and virtual until used too.
  static constexpr std::size_t control_bytes = 64U << 20;

  struct Peer {
    std::string about;
    Descriptor process;
    detail::PrivateMemory copy;
    std::array<detail::TcpLink, channels> links;

    template <class F>
    void for_each_socket(F f) noexcept {
      for (detail::TcpLink& link : links) {
        for (detail::TcpConnection& socket : link.sockets()) f(socket);
      }
    }
  };

  explicit Tcp(const ConnectRequest& request)
      : rank_(request.rank),
        size_(request.size),
        heap_bytes_(round_up(request.heap_bytes, page_bytes)),
        own_(detail::private_memory(control_bytes + heap_bytes_)),
        peers_(static_cast<std::size_t>(request.size)) {}

  detail::TcpLink& link(int peer, Channel channel) noexcept {
    return peers_[static_cast<std::size_t>(peer)].links[static_cast<std::size_t>(channel)];
  }

  int rank_;
  int size_;
  std::size_t heap_bytes_;
  bool crowded_ = false;
  bool closed_ = false;
  detail::ForkMark mark_;
  detail::PrivateMemory own_;
  mutable std::vector<Peer> peers_;  // a look at a peer's health takes in what has arrived
  std::vector<pollfd> polls_;
};

static_assert(ControlTransport<Tcp>);

}  // namespace tandem
