// SPDX-License-Identifier: Apache-2.0
// Addresses and sockets as Tcp uses them: bound to one address, never blocking, closed on exec, without Nagle's delay,
// and noticing a host that went away. Knows no handshake and no rank.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "tandem/core/deadline.hpp"
#include "tandem/core/error.hpp"
#include "tandem/transport/detail/descriptor.hpp"

namespace tandem::detail {

/// An IPv4 or IPv6 address with a port, in a form that can be sent as it is.
struct TcpAddress {
  std::array<std::uint8_t, 28> bytes{};  // a sockaddr_in or sockaddr_in6
  std::uint32_t length = 0;

  static TcpAddress of(const sockaddr* address, socklen_t length) noexcept {
    TcpAddress self;
    if (length <= self.bytes.size()) {
      std::memcpy(self.bytes.data(), address, length);
      self.length = length;
    }
    return self;
  }
  static TcpAddress loopback() noexcept {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return of(reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }
  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(bytes.data()); }
  int family() const noexcept { return get()->sa_family; }
  /// Made by a peer: may it be handed to the kernel?
  bool plausible() const noexcept {
    return (length == sizeof(sockaddr_in) && family() == AF_INET) ||
           (length == sizeof(sockaddr_in6) && family() == AF_INET6);
  }
  std::uint16_t port() const noexcept {
    // Both families have the port at the same place.
    std::uint16_t port = 0;
    std::memcpy(&port, bytes.data() + offsetof(sockaddr_in, sin_port), sizeof port);
    return ntohs(port);
  }
  TcpAddress with_port(std::uint16_t port) const noexcept {
    TcpAddress other = *this;
    port = htons(port);
    std::memcpy(other.bytes.data() + offsetof(sockaddr_in, sin_port), &port, sizeof port);
    return other;
  }
  /// "10.0.0.2", "[fe80::1]".
  std::string host() const {
    std::array<char, NI_MAXHOST> name{};
    if (::getnameinfo(get(), length, name.data(), name.size(), nullptr, 0, NI_NUMERICHOST) != 0) return "an address";
    return family() == AF_INET6 ? "[" + std::string(name.data()) + "]" : std::string(name.data());
  }
  /// "10.0.0.2:4711", "[fe80::1]:4711".
  std::string text() const { return host() + ":" + std::to_string(port()); }
  /// Does only this host reach it?
  bool is_loopback() const {
    const std::string name = host();
    return name.starts_with("127.") || name == "[::1]";
  }
  friend bool operator==(const TcpAddress& a, const TcpAddress& b) noexcept {
    return a.length == b.length && std::memcmp(a.bytes.data(), b.bytes.data(), a.length) == 0;
  }
};
static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));

inline TcpAddress local_address(const Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw system_failure("cannot tell a socket's own address");
  }
  return TcpAddress::of(reinterpret_cast<sockaddr*>(&address), length);
}
inline TcpAddress peer_address(const Descriptor& socket) noexcept {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  return TcpAddress::of(reinterpret_cast<sockaddr*>(&address), length);
}

/// All addresses of a host's name, in the system's order of preference. Brackets around an IPv6 address are taken off.
inline std::vector<TcpAddress> resolve(std::string host, std::uint16_t port) {
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (code != 0) {
    throw Error(ErrorKind::environment, "tandem: the host \"" + host + "\" has no address (" + ::gai_strerror(code) +
                                            "); set MASTER_ADDR to rank 0's host name or address");
  }
  std::vector<TcpAddress> addresses;
  for (const addrinfo* it = found; it != nullptr; it = it->ai_next) {
    if (it->ai_family != AF_INET && it->ai_family != AF_INET6) continue;
    const auto one = TcpAddress::of(it->ai_addr, it->ai_addrlen);
    if (std::find(addresses.begin(), addresses.end(), one) == addresses.end()) addresses.push_back(one);
  }
  ::freeaddrinfo(found);
  return addresses;
}

inline Descriptor open_socket(int family) {
  Descriptor socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) throw system_failure("cannot open a socket");
  return socket;
}

/// Are both ends on this host?
inline bool within_host(const Descriptor& socket) {
  return local_address(socket).with_port(0) == peer_address(socket).with_port(0);
}

/// For a connected socket that carries a job's data. A process that ended is noticed at once (its kernel says so), a
/// host that vanished without a word after 30 s of silence, or at the operation's deadline while data are under way. No
/// TCP_USER_TIMEOUT: it would also end connections to a rank that computes for longer than that while data wait for it.
inline void set_options(const Descriptor& socket) {
  const auto set = [&](int level, int option, int value) {
    ::setsockopt(socket.get(), level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  if (!within_host(socket)) return;
  // Nothing is ever under way here: what was sent and not read yet only waits, by default up to megabytes of it, which
  // no cache keeps (16 MB by broadcast: 10 ms, so 4.4). The kernel doubles this.
  set(SOL_SOCKET, SO_SNDBUF, 160 << 10);
  // Room for it from the start: the kernel lets the receive buffer grow to what is asked for and leaves it so. Unlike
  // SO_RCVBUF, this is not held to net.core.rmem_max and does not keep the buffer from growing on.
  set(SOL_SOCKET, SO_RCVLOWAT, 2 << 20);
  set(SOL_SOCKET, SO_RCVLOWAT, 1);
}

/// Ports that a firewall lets through; {0, 0}: whatever the system gives.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};

/// Listens on `address`, on the first free port of the range. Nothing but that address can reach it.
inline Descriptor listen_on(const TcpAddress& address, PortRange ports) {
  for (unsigned port = ports.first; port <= ports.last; ++port) {
    Descriptor socket = open_socket(address.family());
    const int yes = 1;
    // Only lets a port be used again that a job which ended a moment ago has used.
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (address.family() == AF_INET6) ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes);
    const TcpAddress here = address.with_port(static_cast<std::uint16_t>(port));
    if (::bind(socket.get(), here.get(), here.length) == 0 && ::listen(socket.get(), SOMAXCONN) == 0) return socket;
    if (errno != EADDRINUSE && errno != EACCES) throw system_failure("cannot listen on " + here.text());
  }
  throw Error(ErrorKind::system, "tandem: no free port to listen on at " + address.host() + " from " +
                                     std::to_string(ports.first) + " to " + std::to_string(ports.last) +
                                     "; widen TANDEM_TCP_PORTS or set TANDEM_PORT to a free port");
}

/// Waits until the socket can be read (POLLIN) or written (POLLOUT). False when the deadline passed first.
inline bool await_socket(const Descriptor& socket, short events, Deadline deadline) {
  while (true) {
    const auto left = std::min<std::chrono::nanoseconds>(deadline.remaining(), std::chrono::hours(1));
    pollfd it{socket.get(), events, 0};
    const int ready = ::poll(&it, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw system_failure("poll failed");
    if (deadline.expired()) return false;
  }
}

/// Connecting to a local port that nobody listens on can meet itself: the system chose that very port for this end.
inline bool met_itself(const Descriptor& socket) { return local_address(socket) == peer_address(socket); }

/// A connection to `address`, or nothing and the reason in errno. One that met itself counts as refused.
inline Descriptor try_connect(const TcpAddress& address, Deadline deadline) {
  Descriptor socket = open_socket(address.family());
  // The system may choose the very port for this end on which a rank of this host is to listen, who meets itself above
  // all: without this, nobody could listen there for the minute after.
  const int yes = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::connect(socket.get(), address.get(), address.length) != 0) {
    if (errno != EINPROGRESS) return Descriptor();
    if (!await_socket(socket, POLLOUT, deadline)) {
      errno = ETIMEDOUT;
      return Descriptor();
    }
    int code = 0;
    socklen_t length = sizeof code;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &code, &length);
    if (code != 0) {
      errno = code;
      return Descriptor();
    }
  }
  if (met_itself(socket)) {
    errno = ECONNREFUSED;
    return Descriptor();
  }
  return socket;
}

}  // namespace tandem::detail
