// SPDX-License-Identifier: Apache-2.0
// One message of the rendezvous on a Unix sequenced-packet socket: header, bytes, descriptors; never blocks, trusts no
// length. Must not know who says what to whom (that is rendezvous.hpp).
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tandem/core/deadline.hpp"
#include "tandem/core/error.hpp"
#include "tandem/transport/detail/descriptor.hpp"

namespace tandem::detail {

inline constexpr std::uint64_t rendezvous_magic = 0x7461'6e64'656d'6a31;  // "tandemj1"
inline constexpr std::uint32_t rendezvous_version = 1;
inline constexpr std::size_t rendezvous_most_descriptors = 16;
inline constexpr std::size_t rendezvous_most_bytes = 64U << 10;

enum class MessageKind : std::uint32_t {
  hello = 1,         // guest to host: I am rank r of size n; my introduction
  welcome = 2,       // host to guest: you are counted; from now on silence means that I died
  introduction = 3,  // host to guest: what rank r gave
  complete = 4,      // guest to host: I have all introductions
  go = 5,            // host to guest: so have all others
  leave = 6,         // either way: it failed, and why
};

/// Fields before `kind` keep their place in every later version, so that a version can be refused by its number.
struct MessageHeader {
  std::uint64_t magic = rendezvous_magic;
  std::uint32_t version = rendezvous_version;
  MessageKind kind = MessageKind::hello;
  std::int32_t rank = -1;
  std::int32_t size = 0;
  std::uint32_t bytes = 0;
  std::uint32_t descriptors = 0;
  std::int32_t error_kind = 0;  // leave: an ErrorKind
  std::int32_t peer = -1;       // leave: the rank to blame
};
static_assert(sizeof(MessageHeader) == 40 && alignof(MessageHeader) == 8);

struct Message {
  MessageHeader header;
  std::vector<std::byte> data;
  std::vector<Descriptor> descriptors;
};

enum class Transfer {
  done,
  later,       // the socket is full or empty: poll it
  crowded,     // a limit of the kernel that polling does not show (descriptors in flight): try again in a moment
  closed,      // the other side is gone
  malformed,   // not one of our messages
  file_limit,  // descriptors came that this process may not open
};

/// Sends one whole message or nothing.
inline Transfer send_message(int socket, MessageHeader header, std::span<const std::byte> data = {},
                             std::span<const Descriptor> descriptors = {}) {
  header.bytes = static_cast<std::uint32_t>(data.size());
  header.descriptors = static_cast<std::uint32_t>(descriptors.size());
  std::array<iovec, 2> parts{};
  parts[0] = {&header, sizeof(header)};
  parts[1] = {const_cast<std::byte*>(data.data()), data.size()};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = data.empty() ? 1 : 2;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * rendezvous_most_descriptors)> control{};
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors.size());
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
    for (std::size_t i = 0; i < descriptors.size(); ++i) {
      const int number = descriptors[i].get();
      std::memcpy(CMSG_DATA(rights) + i * sizeof(int), &number, sizeof(int));
    }
  }
  for (;;) {
    if (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return Transfer::done;
    switch (errno) {
      case EINTR:
        continue;
      case EAGAIN:
        return Transfer::later;
      case ETOOMANYREFS:  // more descriptors in flight than the user may have open; receivers are taking them out
      case ENOBUFS:
      case ENOMEM:
        return Transfer::crowded;
      case EPIPE:
      case ECONNRESET:
      case ECONNREFUSED:
      case ENOTCONN:
        return Transfer::closed;
      default:
        throw system_failure("cannot send on the rendezvous socket");
    }
  }
}

/// Takes one message, if there is one. `buffer` is scratch space, grown once to the largest message there can be.
inline Transfer receive_message(int socket, std::vector<std::byte>& buffer, Message& message) {
  buffer.resize(sizeof(MessageHeader) + rendezvous_most_bytes);
  iovec part{buffer.data(), buffer.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * rendezvous_most_descriptors)> control{};
  msghdr packet{};
  packet.msg_iov = &part;
  packet.msg_iovlen = 1;
  packet.msg_control = control.data();
  packet.msg_controllen = control.size();
  ssize_t length = -1;
  bool reset = false;
  for (;;) {
    length = ::recvmsg(socket, &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (length >= 0) break;
    if (errno == EINTR) continue;
    // The other side closed with unread messages of ours. The kernel says so once, before what is in our queue, which
    // may be the reason why: read on.
    if (errno != ECONNRESET || std::exchange(reset, true)) break;
  }
  if (length < 0) {
    if (errno == EAGAIN) return Transfer::later;
    if (errno == ECONNRESET || errno == ENOTCONN || errno == EPIPE) return Transfer::closed;
    throw system_failure("cannot receive on the rendezvous socket");
  }
  // Own what came before anything can throw or return.
  message.descriptors.clear();
  message.descriptors.reserve(rendezvous_most_descriptors);
  for (cmsghdr* item = CMSG_FIRSTHDR(&packet); item != nullptr; item = CMSG_NXTHDR(&packet, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(item) + i * sizeof(int), sizeof(int));
      message.descriptors.emplace_back(number);
    }
  }
  if (length == 0) return Transfer::closed;
  const auto got = static_cast<std::size_t>(length);
  if ((packet.msg_flags & MSG_TRUNC) != 0 || got < sizeof(MessageHeader)) return Transfer::malformed;
  std::memcpy(&message.header, buffer.data(), sizeof(MessageHeader));
  if (message.header.magic != rendezvous_magic) return Transfer::malformed;
  if (message.header.version != rendezvous_version) {  // the rest of it may mean anything
    message.data.clear();
    return Transfer::done;
  }
  if (message.header.bytes != got - sizeof(MessageHeader)) return Transfer::malformed;
  if (message.header.descriptors > rendezvous_most_descriptors) return Transfer::malformed;
  if (message.header.descriptors != message.descriptors.size()) {
    message.descriptors.clear();  // at the limit, saying so may itself need to open something
    return (packet.msg_flags & MSG_CTRUNC) != 0 ? Transfer::file_limit : Transfer::malformed;
  }
  message.data.assign(buffer.begin() + sizeof(MessageHeader), buffer.begin() + length);
  return Transfer::done;
}

/// poll() until something is ready or the deadline passes; an interrupted call returns early with nothing ready.
inline void poll_until(std::vector<pollfd>& sockets, Deadline deadline) {
  using std::chrono::milliseconds;
  const auto left =
      std::chrono::ceil<milliseconds>(std::min<std::chrono::nanoseconds>(deadline.remaining(), std::chrono::hours(24)));
  if (::poll(sockets.data(), sockets.size(), static_cast<int>(left.count())) < 0) {
    if (errno != EINTR && errno != EAGAIN) throw system_failure("poll failed during the rendezvous");
    for (pollfd& socket : sockets) socket.revents = 0;
  }
}

inline std::span<const std::byte> text_bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), std::min(text.size(), rendezvous_most_bytes)));
}

/// Who is at the other end, as the kernel says: cannot be forged. For a guest: the process that listens.
inline ucred peer_credentials(int socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) < 0) {
    throw system_failure("cannot ask who is at the other end of the rendezvous socket");
  }
  return credentials;
}

struct SocketAddress {
  sockaddr_un address{};
  socklen_t length = 0;
  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&address); }
};

/// The abstract socket of a job. The job's name is hashed, because an address holds 107 characters and a job's name may
/// be any text; the user's number keeps two users with equal job names apart. Abstract: nothing to remove, ever.
inline SocketAddress rendezvous_address(std::string_view name) {
  std::uint64_t first = 0xcbf2'9ce4'8422'2325;
  std::uint64_t second = 0x6c62'272e'07bb'0142;  // a second FNV-1a start: 128 bits in all
  for (const char c : name) {
    first = (first ^ static_cast<unsigned char>(c)) * 0x100'0000'01b3;
    second = (second ^ static_cast<unsigned char>(c)) * 0x100'0000'01b3;
    second ^= second >> 29;  // else both halves would collide together
  }
  std::string text = "tandem-" + std::to_string(::geteuid()) + "-";
  for (const std::uint64_t half : {first, second}) {
    for (int shift = 60; shift >= 0; shift -= 4) text += "0123456789abcdef"[(half >> shift) & 15];
  }
  SocketAddress result;
  result.address.sun_family = AF_UNIX;
  std::memcpy(result.address.sun_path + 1, text.data(), text.size());
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return result;
}

inline Descriptor open_rendezvous_socket() {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) throw system_failure("cannot open the rendezvous socket");
  return socket;
}

}  // namespace tandem::detail
