// SPDX-License-Identifier: Apache-2.0
// One stream over several sockets whose bytes arrive in any order among them, and memory that is lent to a stream.
#include "tandem/transport/detail/tcp_link.hpp"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <random>
#include <vector>

#include "tandem/core/stream.hpp"

using namespace tandem;
using namespace tandem::detail;

namespace {

std::pair<Descriptor, Descriptor> socket_pair() {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

/// Two ends over several wires; what the first says lies in the wires until carried.
struct Wires {
  explicit Wires(int count) {
    std::vector<Descriptor> near;
    std::vector<Descriptor> far;
    for (int i = 0; i < count; ++i) {
      auto [a, in] = socket_pair();
      auto [out, b] = socket_pair();
      near.push_back(std::move(a));
      far.push_back(std::move(b));
      ins.push_back(std::move(in));
      outs.push_back(std::move(out));
    }
    const FrameLimits limits{1024, {0, 64}, false};
    first = TcpLink(std::move(near), limits, copies[0].data());
    second = TcpLink(std::move(far), limits, copies[1].data());
  }
  std::size_t carry(std::size_t wire, std::size_t most) {
    std::vector<std::byte> bytes(most);
    const ssize_t count = ::recv(ins[wire].get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count <= 0) return 0;
    REQUIRE(::send(outs[wire].get(), bytes.data(), static_cast<std::size_t>(count), MSG_NOSIGNAL) == count);
    return static_cast<std::size_t>(count);
  }

  std::vector<Descriptor> ins;
  std::vector<Descriptor> outs;
  std::array<std::array<std::byte, 64>, 2> copies{};
  TcpLink first;
  TcpLink second;
};

std::vector<std::byte> pattern(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

void flush(TcpLink& link) {
  for (TcpConnection& socket : link.sockets()) socket.flush();
}

}  // namespace

TEST_CASE("frames over several sockets come out in the order of the stream, in whatever order they arrive") {
  for (const int sockets : {1, 2, 3, 7}) {
    CAPTURE(sockets);
    Wires wires(sockets);
    const auto sent = pattern(200000, static_cast<unsigned>(sockets));
    std::span<const std::byte> left = sent;
    std::vector<std::byte> got;
    std::vector<std::byte> piece(700);
    std::mt19937 random(5);
    std::vector<std::size_t> carried(static_cast<std::size_t>(sockets));
    for (int turn = 0; turn < 1000000 && got.size() < sent.size(); ++turn) {
      if (random() % 4 == 0) {
        const auto part = left.first(std::min<std::size_t>(left.size(), 1 + random() % 3000));
        left = left.subspan(hand_over_some(wires.first, part));
      }
      flush(wires.first);
      const std::size_t wire = random() % carried.size();
      carried[wire] += wires.carry(wire, 1 + random() % 2000);
      const std::size_t count = read_some(wires.second, piece);
      got.insert(got.end(), piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(count));
    }
    CHECK(got == sent);
    for (const std::size_t bytes : carried) CHECK(bytes > 0);  // each socket had its share
  }
}

TEST_CASE("a stream with a gap is a fault, not a wait for ever") {
  Wires wires(2);
  const auto bytes = pattern(100, 4);
  for (TcpConnection& socket : wires.first.sockets()) {
    socket.continue_stream_at(1000);
    socket.reserve();
    socket.lend(bytes);
  }
  wires.carry(0, 4096);
  wires.carry(1, 4096);
  CHECK(wires.second.peek().empty());
  CHECK(wires.second.sockets()[0].fault() == "sent a stream of frames with a gap at byte 0");
}

TEST_CASE("lent memory may change once the loan has ended, sent or not") {
  Wires wires(1);
  const auto sent = pattern(std::size_t{1} << 20, 5);
  auto memory = sent;
  std::size_t written = 0;
  {
    const LoanScope loans(&wires.first);
    written = hand_over_some(wires.first, memory);  // some of it is in the kernel, some waits
  }
  CHECK(wires.first.sockets()[0].has_unsent());
  std::fill(memory.begin(), memory.end(), std::byte{0});
  std::vector<std::byte> got(written);
  std::size_t received = 0;
  for (int turn = 0; turn < 100000 && received < written; ++turn) {
    flush(wires.first);
    wires.carry(0, 5000);
    received += read_some(wires.second, std::span(got).subspan(received));
  }
  CHECK(got == std::vector<std::byte>(sent.begin(), sent.begin() + static_cast<std::ptrdiff_t>(written)));
}
