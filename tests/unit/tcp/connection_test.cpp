// SPDX-License-Identifier: Apache-2.0
// Two ends with a hostile wire between them: cut into single bytes, delayed, flipped, cut off, reset.
#include "tandem/transport/detail/tcp_connection.hpp"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tandem/core/stream.hpp"
#include "tandem/transport/detail/tcp_socket.hpp"

using namespace tandem;
using namespace tandem::detail;

namespace {

constexpr std::size_t control_bytes = 4096;

struct End {
  std::vector<std::byte> control = std::vector<std::byte>(control_bytes);  // this end's own
  std::vector<std::byte> copy = std::vector<std::byte>(control_bytes);     // of the other's
  TcpConnection connection;
};

std::pair<Descriptor, Descriptor> connected_sockets() {
  const Descriptor door = listen_on(TcpAddress::loopback(), {});
  Descriptor near = try_connect(local_address(door), Deadline::after(std::chrono::seconds(5)));
  REQUIRE(near);
  REQUIRE(await_socket(door, POLLIN, Deadline::after(std::chrono::seconds(5))));
  Descriptor far(::accept4(door.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  REQUIRE(far);
  return {std::move(near), std::move(far)};
}

/// Two ends with nothing between them.
struct Pair {
  End first;
  End second;
  Pair() {
    const FrameLimits limits{1024, {0, control_bytes}, false};
    auto [near, far] = connected_sockets();
    first.connection = TcpConnection(std::move(near), limits, first.copy.data());
    second.connection = TcpConnection(std::move(far), limits, second.copy.data());
  }
};

/// Two ends; what the first says passes through `wire(bytes)`, which may keep, cut or change it. The other direction is
/// plain.
class Wire {
 public:
  explicit Wire(bool checked = false) {
    const FrameLimits limits{1024, {0, control_bytes}, checked};
    auto [a, relay_in] = connected_sockets();
    auto [relay_out, b] = connected_sockets();
    in_ = std::move(relay_in);
    out_ = std::move(relay_out);
    first.connection = TcpConnection(std::move(a), limits, first.copy.data());
    second.connection = TcpConnection(std::move(b), limits, second.copy.data());
  }
  /// Carries at most `most` bytes onwards; returns how many there were.
  std::size_t carry(std::size_t most, const std::function<void(std::span<std::byte>)>& change = {}) {
    std::vector<std::byte> bytes(most);
    const ssize_t count = ::recv(in_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count <= 0) return 0;
    bytes.resize(static_cast<std::size_t>(count));
    if (change) change(bytes);
    REQUIRE(::send(out_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == count);
    return bytes.size();
  }
  void cut() { out_.reset(); }
  void reset() {
    const linger now{1, 0};
    ::setsockopt(out_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
    out_.reset();
  }
  void half_close() { ::shutdown(out_.get(), SHUT_WR); }

  End first;
  End second;

 private:
  Descriptor in_;
  Descriptor out_;
};

std::vector<std::byte> pattern(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

/// Pulls until nothing more comes for a while.
void settle(End& end) {
  for (int turn = 0; turn < 50; ++turn) {
    end.connection.pull();
    ::poll(nullptr, 0, 1);
  }
}

}  // namespace

TEST_CASE("C036: a stream and publications arrive whole and in order over a wire that cuts them into single bytes") {
  Wire wire;
  const auto sent = pattern(5000, 1);
  std::span<const std::byte> left = sent;
  std::vector<std::byte> got;
  std::uint8_t number = 0;
  std::vector<std::byte> piece(1024);
  for (int turn = 0; turn < 200000 && got.size() < sent.size(); ++turn) {
    if (!left.empty()) {
      // A publication before each piece of the stream: it must be there when the piece is.
      wire.first.control[7] = static_cast<std::byte>(number + 1);
      const auto part = left.first(std::min<std::size_t>(left.size(), 500));
      if (!wire.first.connection.reserve().empty()) {
        wire.first.connection.publish(7, std::span(wire.first.control).subspan(7, 1));
        ++number;
        left = left.subspan(write_some(wire.first.connection, part));
      }
    }
    wire.first.connection.flush();
    wire.carry(1);
    wire.second.connection.pull();
    const std::size_t count = read_some(wire.second.connection, piece);
    got.insert(got.end(), piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(count));
    if (!got.empty()) CHECK(static_cast<std::size_t>(wire.second.copy[7]) >= (got.size() + 499) / 500);
  }
  CHECK(got == sent);
  CHECK(wire.second.connection.fault() == "");
}

TEST_CASE("more than all buffers hold waits, and nothing is lost") {
  auto [a, b] = connected_sockets();
  End first;
  End second;
  const FrameLimits limits{1024, {0, control_bytes}, false};
  first.connection = TcpConnection(std::move(a), limits, first.copy.data());
  second.connection = TcpConnection(std::move(b), limits, second.copy.data());
  const auto sent = pattern(std::size_t{32} << 20, 2);
  const std::size_t taken = write_some(first.connection, sent);
  CHECK(taken < sent.size());
  CHECK(first.connection.reserve().empty());
  std::vector<std::byte> got(sent.size());
  std::size_t received = 0;
  std::size_t written = taken;
  while (received < sent.size()) {
    written += write_some(first.connection, std::span(sent).subspan(written));
    first.connection.flush();
    received += read_some(second.connection, std::span(got).subspan(received));
  }
  CHECK(got == sent);
}

TEST_CASE("a word that is told again and again to one who does not read takes no more room") {
  auto [a, b] = connected_sockets();
  End first;
  const FrameLimits limits{1024, {0, control_bytes}, false};
  first.connection = TcpConnection(std::move(a), limits, first.copy.data());
  const auto much = pattern(std::size_t{32} << 20, 3);
  write_some(first.connection, much);  // now the kernel takes no more
  const std::size_t before = first.connection.undelivered();
  for (int turn = 0; turn < 1000; ++turn) first.connection.publish(64, std::span(first.control).first(8));
  CHECK(first.connection.undelivered() <= before + 1);
}

TEST_CASE("with checksums a flipped bit is a fault; without, what cannot be a frame is") {
  for (const bool checked : {true, false}) {
    Wire wire(checked);
    write_some(wire.first.connection, pattern(900, 4));
    ::poll(nullptr, 0, 20);
    // In the payload when there are checksums, else in the frame's mark.
    wire.carry(4096, [&](std::span<std::byte> bytes) { bytes[checked ? 300 : 4] ^= std::byte{16}; });
    settle(wire.second);
    CHECK(wire.second.connection.broken());
    CHECK(wire.second.connection.fault().starts_with("sent what tandem never sends: "));
    CHECK(wire.second.connection.peek().empty());
    CHECK(wire.second.connection.reserve().empty());
  }
}

TEST_CASE("a connection that ends says how: with a goodbye, in the middle of a message, by a reset") {
  SUBCASE("a goodbye, after what was sent before") {
    Wire wire;
    write_some(wire.first.connection, pattern(100, 5));
    wire.first.connection.say_goodbye();
    wire.first.connection.flush();
    ::poll(nullptr, 0, 20);
    wire.carry(4096);
    settle(wire.second);
    CHECK_FALSE(wire.second.connection.left());  // not before what was sent is taken
    std::vector<std::byte> got(100);
    CHECK(read_some(wire.second.connection, got) == 100);
    settle(wire.second);
    CHECK(wire.second.connection.left());
    CHECK(wire.second.connection.fault() == "");
  }
  SUBCASE("cut off between messages: what arrived can still be read") {
    Wire wire;
    write_some(wire.first.connection, pattern(100, 5));
    ::poll(nullptr, 0, 20);
    wire.carry(4096);
    wire.half_close();
    std::vector<std::byte> got(100);
    settle(wire.second);
    CHECK(read_some(wire.second.connection, got) == 100);
    settle(wire.second);
    CHECK(wire.second.connection.broken());
    CHECK_FALSE(wire.second.connection.left());
    CHECK(wire.second.connection.fault() == "");
  }
  SUBCASE("cut off in the middle of a message") {
    Wire wire;
    write_some(wire.first.connection, pattern(900, 5));
    ::poll(nullptr, 0, 20);
    wire.carry(500);
    wire.cut();
    settle(wire.second);
    CHECK(wire.second.connection.broken());
    CHECK(wire.second.connection.fault() == "closed its connection in the middle of a message");
  }
  SUBCASE("C037: a reset; sending afterwards raises no signal") {
    Wire wire;
    wire.reset();
    settle(wire.second);
    CHECK(wire.second.connection.broken());
    write_some(wire.second.connection, pattern(100, 6));
    wire.second.connection.publish(0, std::span(wire.second.control).first(8));
    wire.second.connection.flush();
    CHECK_FALSE(wire.second.connection.left());
  }
}

TEST_CASE("a connection that met itself is told from a true one") {
  Descriptor socket = open_socket(AF_INET);
  const TcpAddress any = TcpAddress::loopback();
  REQUIRE(::bind(socket.get(), any.get(), any.length) == 0);
  const TcpAddress own = local_address(socket);
  REQUIRE((::connect(socket.get(), own.get(), own.length) == 0 || errno == EINPROGRESS));
  CHECK(met_itself(socket));
  const auto [near, far] = connected_sockets();
  CHECK_FALSE(met_itself(near));
  CHECK_FALSE(met_itself(far));
}

// A rank that computed for more than 30 s while data waited for it was called unreachable.
TEST_CASE("a peer that does not read for long is no dead peer") {
  const auto [near, far] = connected_sockets();
  set_options(near);
  int limit = -1;
  socklen_t length = sizeof limit;
  REQUIRE(::getsockopt(near.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, &length) == 0);
  CHECK(limit == 0);
}

// The kernel queued megabytes between two ranks of a host, and a broadcast of 64 MB took twice as long.
TEST_CASE("within a host little waits between two ranks, and there is room for it from the start") {
  const auto sockets = connected_sockets();
  const Descriptor& near = sockets.first;  // a lambda cannot capture a structured binding
  const auto option = [&](int which) {
    int value = -1;
    socklen_t length = sizeof value;
    REQUIRE(::getsockopt(near.get(), SOL_SOCKET, which, &value, &length) == 0);
    return value;
  };
  const int before = option(SO_RCVBUF);
  CHECK(within_host(near));
  set_options(near);
  CHECK(option(SO_SNDBUF) == 2 * (160 << 10));
  CHECK(option(SO_RCVBUF) > before);
  CHECK(option(SO_RCVLOWAT) == 1);  // a single byte wakes its reader
}

// Each rank that left after a mismatch waited a second for a peer that had already gone.
TEST_CASE("after a reset nothing counts as still to be delivered") {
  auto [near, far] = connected_sockets();
  End first;
  first.connection = TcpConnection(std::move(near), {1024, {0, control_bytes}, false}, first.copy.data());
  write_some(first.connection, pattern(std::size_t{32} << 20, 7));  // more than the other end takes unread
  CHECK(first.connection.undelivered() > 0);
  far.reset();  // with unread data: its kernel answers with a reset
  ::poll(nullptr, 0, 50);
  CHECK(first.connection.undelivered() == 0);
}

// A rank that had given up and closed was called dead by one whose next send failed: its last words stayed unread.
TEST_CASE("what a peer said before its kernel answered with a reset is heard, also when sending fails first") {
  Pair pair;
  auto& [first, second] = pair;
  write_some(first.connection, pattern(3000, 8));  // never read
  ::poll(nullptr, 0, 20);
  second.control[64] = std::byte{42};
  second.connection.publish(64, std::span(second.control).subspan(64, 8));
  second.connection.say_goodbye();
  second.connection.flush();
  second.connection = TcpConnection();
  ::poll(nullptr, 0, 20);
  write_some(first.connection, pattern(100, 9));
  CHECK(first.connection.broken());
  CHECK(first.connection.left());
  CHECK(first.copy[64] == std::byte{42});
}

// The words of a rank that gave up lay behind data that nobody took, since they waited for another rank: it was called
// dead as soon as a send to it failed.
TEST_CASE("what lies behind data that nobody has taken is heard, and the data too, when sending fails first") {
  Pair pair;
  auto& [first, second] = pair;
  const auto sent = pattern(2500, 7);
  write_some(second.connection, sent);
  second.control[64] = std::byte{42};
  second.connection.publish(64, std::span(second.control).subspan(64, 8));
  second.connection.say_goodbye();
  second.connection.flush();
  write_some(first.connection, pattern(3000, 8));  // never read: its kernel answers with a reset
  ::poll(nullptr, 0, 20);
  const auto seen = first.connection.peek();
  REQUIRE(seen.size() == 1024);
  second.connection = TcpConnection();
  ::poll(nullptr, 0, 20);
  for (int turn = 0; turn < 2; ++turn) write_some(first.connection, pattern(100, 9));
  CHECK(first.connection.broken());
  CHECK(first.connection.left());
  CHECK(first.copy[64] == std::byte{42});
  CHECK(first.connection.holds_data());
  // In place, as what had been looked at before.
  CHECK(first.connection.peek().data() == seen.data());
  CHECK(std::equal(seen.begin(), seen.end(), sent.begin()));
  first.connection.consume(24);
  std::vector<std::byte> taken(sent.begin(), sent.begin() + 24);
  while (!first.connection.peek().empty()) {
    CHECK(first.connection.front_position() == taken.size());
    const auto part = first.connection.peek().first(std::min<std::size_t>(700, first.connection.peek().size()));
    taken.insert(taken.end(), part.begin(), part.end());
    first.connection.consume(part.size());
  }
  CHECK(taken == sent);
  CHECK_FALSE(first.connection.holds_data());
}
