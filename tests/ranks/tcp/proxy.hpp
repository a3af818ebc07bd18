// SPDX-License-Identifier: Apache-2.0
// A fault proxy between the ranks of a Tcp job: all that ranks above 0 say to rank 0, and it to them, goes through here
// and can be cut into slices, delayed, changed, or ended. Knows the meeting's table only to put its own address there.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <list>
#include <utility>
#include <vector>

#include "tandem/core/clock.hpp"
#include "tandem/transport/detail/tcp_handshake.hpp"
#include "tandem/transport/detail/tcp_meeting.hpp"
#include "tandem/transport/detail/tcp_socket.hpp"

namespace tandem::test {

class Proxy {
 public:
  enum class Way { to_host, from_host };  // the host is rank 0
  /// A connection of another rank to rank 0.
  class Link {
   public:
    /// Who connected and what for, as it says itself; channel -1: to meet.
    const detail::TcpPurpose& purpose() const noexcept { return purpose_; }
    /// Both ends are told that the connection is gone.
    void reset() {
      for (Descriptor& end : ends_) {
        const linger now{1, 0};
        ::setsockopt(end.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
        end.reset();
      }
    }
    /// Nothing more goes this way, and who listens is told that nothing will; the other way stays open.
    void half_close(Way way) {
      half(way).queue.clear();
      half(way).shut = true;
      ::shutdown(to(way).get(), SHUT_WR);
    }

   private:
    friend class Proxy;
    struct Piece {
      Clock::time_point due;
      std::vector<std::byte> bytes;
    };
    struct Half {
      std::vector<std::byte> held;  // until enough of it is here to be understood
      std::uint64_t passed = 0;
      std::deque<Piece> queue;
      std::size_t sent_of_first = 0;
      bool ended = false;  // nothing more comes from where this half begins
      bool shut = false;   // nothing more goes on
    };
    Half& half(Way way) noexcept { return halves_[static_cast<std::size_t>(way)]; }
    Descriptor& from(Way way) noexcept { return ends_[static_cast<std::size_t>(way)]; }
    Descriptor& to(Way way) noexcept { return ends_[1 - static_cast<std::size_t>(way)]; }

    std::array<Descriptor, 2> ends_;  // the other rank's, rank 0's
    std::array<Half, 2> halves_;
    detail::TcpPurpose purpose_{};
    bool readdressed_ = false;
    bool was_reset_ = false;  // by an end: what it said before is still passed on, as its kernel would
  };

  /// Is given what arrived, of which `at` bytes went that way before, and may change it or end the link.
  using Tamper = std::function<void(Link&, Way, std::uint64_t at, std::vector<std::byte>& bytes)>;
  struct Options {
    std::size_t slice = std::size_t{64} << 10;  // most bytes that go on in one piece
    std::chrono::milliseconds delay{0};
    Tamper tamper{};
  };
  static constexpr std::uint64_t handshake_bytes(Way way) noexcept {
    return way == Way::to_host ? sizeof(detail::TcpHello) + sizeof(detail::TcpProof)
                               : sizeof(detail::TcpChallenge) + sizeof(detail::TcpWelcome);
  }

  /// Listens at `door` for ranks that want to meet rank 0, which listens at `host`.
  Proxy(const detail::TcpAddress& door, const detail::TcpAddress& host, Options options)
      : options_(std::move(options)) {
    doors_[0] = detail::listen_on(door, {door.port(), door.port()});
    doors_[1] = detail::listen_on(door, {});
    hosts_[0] = host;
  }
  /// Where rank 0 meets the others, and where it is connected to afterwards, once that is known.
  const detail::TcpAddress& meeting_address() const noexcept { return hosts_[0]; }
  const detail::TcpAddress& mesh_address() const noexcept { return hosts_[1]; }

  template <class Until>
  void run(Until until) {
    while (!until()) {
      std::vector<pollfd> polls;
      for (const Descriptor& door : doors_) polls.push_back({door.get(), POLLIN, 0});
      const auto now = Clock::now();
      bool delayed = false;
      for (Link& link : links_) {
        for (const Way way : {Way::to_host, Way::from_host}) {
          auto& half = link.half(way);
          if (!half.ended) polls.push_back({link.from(way).get(), POLLIN, 0});
          if (half.queue.empty()) continue;
          if (half.queue.front().due <= now)
            polls.push_back({link.to(way).get(), POLLOUT, 0});
          else
            delayed = true;
        }
      }
      ::poll(polls.data(), polls.size(), delayed ? 1 : 10);
      for (std::size_t i = 0; i < doors_.size(); ++i) admit(i);
      for (Link& link : links_) {
        for (const Way way : {Way::to_host, Way::from_host}) {
          receive(link, way);
          for (int pieces = 0; pieces < 32 && forward(link, way); ++pieces) {
          }
        }
      }
      links_.remove_if([](Link& link) {
        return !link.ends_[0] || (link.half(Way::to_host).shut && link.half(Way::from_host).shut);
      });
    }
  }

 private:
  void admit(std::size_t door) {
    Descriptor guest(::accept4(doors_[door].get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!guest) return;
    Descriptor host = detail::try_connect(hosts_[door], Deadline::after(std::chrono::seconds(1)));
    if (!host) return;  // rank 0 is not there yet: the other is turned away and tries again
    detail::set_options(guest);
    detail::set_options(host);
    Link& link = links_.emplace_back();
    link.ends_ = {std::move(guest), std::move(host)};
  }
  void receive(Link& link, Way way) {
    auto& half = link.half(way);
    if (half.ended || !link.from(way)) return;
    const ssize_t count = ::recv(link.from(way).get(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count < 0) link.was_reset_ = true;
    half.ended = count <= 0;
    half.held.insert(half.held.end(), buffer_.begin(), buffer_.begin() + std::max<ssize_t>(count, 0));
    std::size_t ready = half.held.size();
    if (!half.ended) {
      if (way == Way::to_host && half.passed == 0) {
        if (half.held.size() < sizeof(detail::TcpHello)) return;
        detail::TcpHello hello;
        std::memcpy(&hello, half.held.data(), sizeof hello);
        link.purpose_ = hello.purpose;
      }
      if (way == Way::from_host && link.purpose_.channel == -1 && !link.readdressed_) ready = readdress(link);
    }
    if (ready == 0 || half.shut) return;
    std::vector<std::byte> part(half.held.begin(), half.held.begin() + static_cast<std::ptrdiff_t>(ready));
    half.held.erase(half.held.begin(), half.held.begin() + static_cast<std::ptrdiff_t>(ready));
    if (options_.tamper) options_.tamper(link, way, half.passed, part);
    if (!link.from(way) || half.shut) return;
    half.passed += ready;
    half.queue.push_back({Clock::now() + options_.delay, std::move(part)});
  }
  /// In the table that rank 0 sends at the end of a meeting: its own entry names this proxy. Returns how much can go
  /// on.
  std::size_t readdress(Link& link) {
    auto& half = link.half(Way::from_host);
    constexpr std::uint64_t table = handshake_bytes(Way::from_host) + sizeof(detail::TcpVerdict);
    if (half.passed + half.held.size() < table + sizeof(detail::TcpCard)) {
      return static_cast<std::size_t>(std::min<std::uint64_t>(half.held.size(), table - half.passed));
    }
    auto* const place = half.held.data() + (table - half.passed);
    detail::TcpCard card;
    std::memcpy(&card, place, sizeof card);
    hosts_[1] = card.address;
    card.address = detail::local_address(doors_[1]);
    std::memcpy(place, &card, sizeof card);
    link.readdressed_ = true;
    return half.held.size();
  }
  /// One piece; false when there is none to go on now.
  bool forward(Link& link, Way way) {
    auto& half = link.half(way);
    if (!link.to(way)) return false;
    bool moved = false;
    if (!half.queue.empty() && half.queue.front().due <= Clock::now()) {
      auto& bytes = half.queue.front().bytes;
      const std::size_t most = std::min(options_.slice, bytes.size() - half.sent_of_first);
      const ssize_t count =
          ::send(link.to(way).get(), bytes.data() + half.sent_of_first, most, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count < 0 && errno != EAGAIN && errno != EINTR) {  // nobody is there to hear it
        half.queue.clear();
        half.sent_of_first = 0;
        half.shut = true;
        return false;
      }
      moved = count > 0;
      if (moved) half.sent_of_first += static_cast<std::size_t>(count);
      if (half.sent_of_first == bytes.size()) {
        half.queue.pop_front();
        half.sent_of_first = 0;
      }
    }
    if (half.ended && half.queue.empty() && !half.shut) {
      if (link.was_reset_) {
        link.reset();
        return false;
      }
      half.shut = true;
      ::shutdown(link.to(way).get(), SHUT_WR);
    }
    return moved;
  }

  Options options_;
  std::array<Descriptor, 2> doors_;          // to the meeting, and to what comes after it
  std::array<detail::TcpAddress, 2> hosts_;  // rank 0's, behind each
  std::list<Link> links_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(std::size_t{64} << 10);
};

}  // namespace tandem::test
