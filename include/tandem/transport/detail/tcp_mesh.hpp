// SPDX-License-Identifier: Apache-2.0
// Connects every rank with every other: who knows all ranks' addresses gets one authenticated socket per peer and
// channel. Knows handshakes and deadlines, not what the sockets will carry.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tandem/core/clock.hpp"
#include "tandem/core/deadline.hpp"
#include "tandem/core/error.hpp"
#include "tandem/transport/detail/descriptor.hpp"
#include "tandem/transport/detail/tcp_handshake.hpp"
#include "tandem/transport/detail/tcp_socket.hpp"

namespace tandem::detail {

/// What all of a job's ranks must have in common, and who this one is.
struct TcpParty {
  int rank = 0;
  int size = 1;
  TcpSecret secret;
  std::uint64_t job = 0;
  bool checked = false;
  int sockets = 1;  // per channel
  Deadline deadline = Deadline::never();

  Error failure(ErrorKind kind, int peer, const std::string& what) const {
    return Error(kind, "tandem: Tcp: rank " + std::to_string(rank) + " of " + std::to_string(size) + ": " + what, rank,
                 peer, "join");
  }
};

/// Sends all of `bytes` on a socket whose buffer is empty but for a few; false when the other end is gone or the
/// deadline passed (ETIMEDOUT).
inline bool send_short(const Descriptor& socket, std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t taken = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (taken >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(taken));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!await_socket(socket, POLLOUT, deadline)) {
        errno = ETIMEDOUT;
        return false;
      }
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}
/// Receives exactly as many bytes as asked for; false when the other end closed or the deadline passed (errno 0 and
/// ETIMEDOUT).
inline bool receive_exactly(const Descriptor& socket, std::span<std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t count = ::recv(socket.get(), bytes.data(), bytes.size(), 0);
    if (count > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    } else if (count == 0) {
      errno = 0;
      return false;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!await_socket(socket, POLLIN, deadline)) {
        errno = ETIMEDOUT;
        return false;
      }
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

/// From half of `middle` ms to half as much again, another time for each rank and turn.
inline std::chrono::milliseconds scattered(std::uint32_t middle, int turn, int rank) noexcept {
  const std::uint32_t mixed = static_cast<std::uint32_t>(31 * rank + turn) * 2654435761U;
  return std::chrono::milliseconds(middle / 2 + (mixed >> 8) % middle);
}
/// How long an attempt to connect waits for an answer after `unanswered` in vain: a quarter of a second, then longer up
/// to 2 s, half as much more or less, by rank. One address that never answers thus does not keep the others from being
/// tried; and ranks that were not let in together, since the queue at a door is short, do not all knock again at the
/// same time, as by the system's own retries after exactly 1, 3, 7, ... s (25 ranks at queues of one took half a
/// minute).
inline std::chrono::milliseconds patience_of(int unanswered, int rank) noexcept {
  return scattered(250U << std::min(unanswered, 3), unanswered, rank);
}
/// How long a rank rests after its attempt number `attempt` (from 0): 5 to 15 ms at first, as rank 0 is often only just
/// behind, then longer up to 80 to 240 ms.
inline std::chrono::milliseconds rest_after(int attempt, int rank) noexcept {
  return scattered(10U << std::min(attempt, 4), attempt, rank);
}

/// The client's end of a handshake. One that is still talking afterwards was cut off: by the other end, or since
/// nothing came (errno ETIMEDOUT) until `silence`, or, from an end that has proved itself, until `deadline`.
inline void shake_hands(const Descriptor& socket, TcpHandshake& handshake, Deadline silence, Deadline deadline) {
  std::array<std::byte, sizeof(TcpChallenge)> bytes{};
  while (handshake.state() == TcpHandshake::State::talking) {
    const Deadline until = handshake.greeted() ? deadline : silence;
    const auto part = std::span(bytes).first(handshake.wanted());
    if (!send_short(socket, handshake.output(), until) || !receive_exactly(socket, part, until)) return;
    handshake.feed(part);
  }
}

/// A connection to `to` at one of `addresses` that has proved it knows the secret. Tries again while nobody listens,
/// and leaves an address that stays silent for the next one. Error(environment) when strangers answer at all addresses,
/// Error(timeout) at the deadline.
inline Descriptor connect_to(const TcpParty& party, const std::vector<TcpAddress>& addresses, int to, int channel) {
  constexpr std::chrono::seconds most_silence{2};
  const auto at_most = [&](std::chrono::nanoseconds span) { return std::min(party.deadline.remaining(), span); };
  std::string last = "nobody listened";
  std::string refused;  // says more than that nobody listens there any more
  int unanswered = 0;
  for (int attempt = 0;; ++attempt) {
    std::size_t strangers = 0;
    for (const TcpAddress& address : addresses) {
      Descriptor socket = try_connect(address, Deadline::after(at_most(patience_of(unanswered, party.rank))));
      if (!socket) {
        unanswered += errno == ETIMEDOUT ? 1 : 0;
        last = address.text() + ": " + std::generic_category().message(errno);
        continue;
      }
      set_options(socket);
      auto handshake = TcpHandshake::client(party.secret, {party.rank, to, party.size, channel, party.sockets},
                                            party.job, party.checked);
      const auto silence = addresses.size() == 1 ? party.deadline : Deadline::after(at_most(most_silence));
      shake_hands(socket, handshake, silence, party.deadline);
      if (handshake.state() == TcpHandshake::State::done) return socket;
      if (handshake.state() == TcpHandshake::State::refused) {
        ++strangers;
        refused = "a connection " + handshake.reason() + ", at " + address.text() +
                  (handshake.disproved() ? "; all ranks need the same TANDEM_SECRET_FILE" : "");
      } else if (errno == ETIMEDOUT) {
        refused = address.text() + " accepted the connection and then said nothing" +
                  (party.deadline.expired() ? " until the deadline" : "");
      } else {
        refused = address.text() +
                  " closed the connection at once: it refused this rank (is it told another number of "
                  "ranks, or another TANDEM_TCP_CRC or TANDEM_TCP_SOCKETS?), or is another program";
      }
    }
    if (strangers == addresses.size()) throw party.failure(ErrorKind::environment, to, refused);
    if (party.deadline.expired()) {
      throw party.failure(
          ErrorKind::timeout, to,
          "rank " + std::to_string(to) + " was not reached (" + (refused.empty() ? last : refused) + ")");
    }
    std::this_thread::sleep_for(at_most(rest_after(attempt, party.rank)));
  }
}

/// Takes connections until everybody who is expected has come. Strangers cost a bounded number of bytes, sockets and
/// seconds, and stand in nobody's way.
class TcpAcceptor {
 public:
  TcpAcceptor(const TcpParty& party, const Descriptor& listening) : party_(party), listening_(listening) {}

  /// Calls `arrived(socket, purpose)` for each proven connection until it says true. At the deadline, false; see
  /// refusals().
  template <class Arrived>
  bool run(Arrived arrived) {
    while (true) {
      std::vector<pollfd> polls{{listening_.get(), POLLIN, 0}};
      for (const Guest& guest : guests_) polls.push_back({guest.socket.get(), POLLIN, 0});
      const auto left = std::min<std::chrono::nanoseconds>(party_.deadline.remaining(), std::chrono::milliseconds(100));
      if (::poll(polls.data(), polls.size(),
                 static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count())) < 0 &&
          errno != EINTR) {
        throw system_failure("poll failed");
      }
      for (std::size_t i = 0; i < guests_.size(); ++i) {
        if (polls[i + 1].revents != 0) hear(guests_[i]);
      }
      for (Guest& guest : guests_) {
        // Without a socket it was gone before it could be welcomed.
        if (guest.socket && guest.handshake.state() == TcpHandshake::State::done &&
            arrived(std::move(guest.socket), guest.handshake.purpose())) {
          return true;
        }
      }
      std::erase_if(guests_, [](const Guest& guest) { return !guest.socket || guest.patience.expired(); });
      if (polls[0].revents != 0) admit();
      if (party_.deadline.expired()) return false;
    }
  }
  /// What was refused, for the words of an error; empty when nothing was.
  const std::string& refusals() const noexcept { return refusals_; }

 private:
  struct Guest {
    Descriptor socket;
    TcpHandshake handshake;
    Deadline patience;
  };
  static constexpr std::chrono::seconds patience{5};
  std::size_t most_guests() const noexcept { return 64 + 2 * static_cast<std::size_t>(party_.size * party_.sockets); }

  void admit() {
    for (int turn = 0; turn < 16; ++turn) {
      Descriptor socket(::accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket) {
        if (errno != EMFILE && errno != ENFILE) return;  // none left, or it went away again
        const int code = errno;
        // The system asks for a descriptor before it looks whether there is anybody.
        if (!await_socket(listening_, POLLIN, Deadline::after(std::chrono::nanoseconds(0)))) return;
        refusals_ = std::string("connections could not be taken: no descriptor is free in this ") +
                    (code == EMFILE ? "process" : "system");
        // It stays at the door, which would be looked at again at once.
        if (guests_.empty()) {
          ::poll(nullptr, 0, 20);
          return;
        }
        guests_.erase(guests_.begin());
        continue;
      }
      set_options(socket);
      // Whoever has been here longest makes room: a rank proves itself within a round trip, and comes again if it could
      // not; a stranger stays, whether silent or after words that anybody can say.
      if (guests_.size() >= most_guests()) guests_.erase(guests_.begin());
      guests_.push_back(
          {std::move(socket),
           TcpHandshake::server(party_.secret, party_.rank, party_.size, party_.job, party_.checked, party_.sockets),
           Deadline::after(patience)});
    }
  }
  void hear(Guest& guest) {
    std::array<std::byte, 256> bytes;
    while (guest.socket && guest.handshake.state() == TcpHandshake::State::talking) {
      const ssize_t count =
          ::recv(guest.socket.get(), bytes.data(), std::min(bytes.size(), guest.handshake.wanted()), 0);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (count <= 0) {
        if (guest.handshake.greeted()) {
          refusals_ = "a rank at " + peer_address(guest.socket).host() +
                      " hung up in the middle of the handshake, as one with another secret does";
        }
        guest.socket.reset();
        return;
      }
      guest.handshake.feed(std::span(bytes).first(static_cast<std::size_t>(count)));
      const auto reply = guest.handshake.output();
      // It fits into an empty socket buffer; a peer that does not take it is none of ours.
      if (!reply.empty() &&
          ::send(guest.socket.get(), reply.data(), reply.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(reply.size())) {
        guest.socket.reset();
      }
    }
    if (guest.handshake.state() == TcpHandshake::State::refused) {
      refusals_ =
          "a connection " + guest.handshake.reason() + " was refused (" + peer_address(guest.socket).text() + ")";
      guest.socket.reset();
    }
  }

  const TcpParty& party_;
  const Descriptor& listening_;
  std::vector<Guest> guests_;
  std::string refusals_;
};

/// Sockets to every peer, [peer][connection]; the own row is empty. Each pair connects from the higher rank to the
/// lower; a rank first connects downwards, then takes those from above, so nobody waits in a circle.
inline std::vector<std::vector<Descriptor>> connect_mesh(const TcpParty& party, const Descriptor& listening,
                                                         const std::vector<TcpAddress>& addresses, int connections) {
  std::vector<std::vector<Descriptor>> sockets(static_cast<std::size_t>(party.size));
  for (auto& row : sockets) row.resize(static_cast<std::size_t>(connections));
  for (int peer = 0; peer < party.rank; ++peer) {
    for (int i = 0; i < connections; ++i) {
      sockets[static_cast<std::size_t>(peer)][static_cast<std::size_t>(i)] =
          connect_to(party, {addresses[static_cast<std::size_t>(peer)]}, peer, i);
    }
  }
  int missing = (party.size - 1 - party.rank) * connections;
  if (missing == 0) return sockets;
  TcpAcceptor acceptor(party, listening);
  const bool all = acceptor.run([&](Descriptor socket, const TcpPurpose& purpose) {
    if (purpose.from < party.rank || purpose.channel < 0 || purpose.channel >= connections) return false;
    auto& place = sockets[static_cast<std::size_t>(purpose.from)][static_cast<std::size_t>(purpose.channel)];
    if (place) return false;  // a second one is not taken
    place = std::move(socket);
    return --missing == 0;
  });
  if (!all) {
    for (int peer = party.rank + 1; peer < party.size; ++peer) {
      for (const Descriptor& socket : sockets[static_cast<std::size_t>(peer)]) {
        if (!socket) {
          throw party.failure(ErrorKind::timeout, peer,
                              "rank " + std::to_string(peer) + " did not connect" +
                                  (acceptor.refusals().empty() ? "" : "; " + acceptor.refusals()));
        }
      }
    }
  }
  return sockets;
}

}  // namespace tandem::detail
