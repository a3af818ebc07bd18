// SPDX-License-Identifier: Apache-2.0
// Who waits at the door of a rank: everybody in this process, so that what strangers do is exact.
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tandem/transport/detail/tcp_handshake.hpp"
#include "tandem/transport/detail/tcp_mesh.hpp"
#include "tandem/transport/detail/tcp_socket.hpp"

using namespace tandem;
using namespace tandem::detail;
using namespace std::chrono_literals;

namespace {

TcpParty party_of(int rank, int size, Deadline deadline) {
  TcpParty party;
  party.rank = rank;
  party.size = size;
  party.secret.assign(32, std::uint8_t{7});
  party.deadline = deadline;
  return party;
}

}  // namespace

TEST_CASE("strangers who greet like a rank and then say nothing do not keep a rank out") {
  // Shorter than such a guest would be waited for.
  const Deadline deadline = Deadline::after(4s);
  const TcpParty host = party_of(0, 2, deadline);
  const Descriptor door = listen_on(TcpAddress::loopback(), {});
  const TcpAddress address = local_address(door);

  const TcpSecret unknown(32, std::uint8_t{9});
  std::vector<Descriptor> strangers;
  const auto stranger_comes = [&] {
    Descriptor one = try_connect(address, deadline);
    REQUIRE(one);
    auto handshake = TcpHandshake::client(unknown, {1, 0, 2, 0, 1}, host.job, host.checked);
    const auto hello = handshake.output();
    REQUIRE(send_short(one, hello, deadline));
    strangers.push_back(std::move(one));
  };
  bool joined = false;
  std::thread accepting([&] {
    TcpAcceptor acceptor(host, door);
    joined =
        acceptor.run([](const Descriptor& socket, const TcpPurpose& purpose) { return socket && purpose.from == 1; });
  });
  for (int i = 0; i < 200; ++i) {
    stranger_comes();
    // Each has been let in and answered: it is a guest, not somebody in the kernel's queue.
    TcpChallenge challenge{};
    CHECK(receive_exactly(strangers.back(), std::as_writable_bytes(std::span(&challenge, 1)), deadline));
  }
  std::string reason;
  try {
    connect_to(party_of(1, 2, deadline), {address}, 0, 0);
  } catch (const Error& error) {
    reason = error.what();
  }
  accepting.join();
  CHECK(reason == "");
  CHECK(joined);
}

// The empty socket was taken for the rank, and the rank's next attempt for a second one.
TEST_CASE("a rank that is gone between its proof and the welcome has not arrived") {
  const Deadline deadline = Deadline::after(20s);
  const TcpParty host = party_of(0, 3, deadline);
  const Descriptor door = listen_on(TcpAddress::loopback(), {});
  const TcpAddress address = local_address(door);

  std::atomic<bool> gone{false};
  std::vector<int> arrivals;
  std::vector<Descriptor> sockets;
  bool joined = false;
  std::thread accepting([&] {
    TcpAcceptor acceptor(host, door);
    joined = acceptor.run([&](Descriptor socket, const TcpPurpose& purpose) {
      sockets.push_back(std::move(socket));
      arrivals.push_back(purpose.from);
      // The proof of rank 2 and its reset are looked at together, after this.
      while (purpose.from == 1 && !gone) std::this_thread::sleep_for(1ms);
      return arrivals.size() == 2;
    });
  });
  {
    const Descriptor leaving = try_connect(address, deadline);
    REQUIRE(leaving);
    auto handshake = TcpHandshake::client(host.secret, {2, 0, 3, 0, 1}, host.job, host.checked);
    REQUIRE(send_short(leaving, handshake.output(), deadline));
    std::array<std::byte, sizeof(TcpChallenge)> challenge{};
    REQUIRE(receive_exactly(leaving, challenge, deadline));
    handshake.feed(challenge);
    const Descriptor staying = connect_to(party_of(1, 3, deadline), {address}, 0, 0);
    REQUIRE(send_short(leaving, handshake.output(), deadline));
    const linger reset{1, 0};
    ::setsockopt(leaving.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  }
  gone = true;
  std::string reason;
  Descriptor again;
  try {
    again = connect_to(party_of(2, 3, deadline), {address}, 0, 0);
  } catch (const Error& error) {
    reason = error.what();
  }
  accepting.join();
  CHECK(reason == "");
  CHECK(joined);
  for (const Descriptor& socket : sockets) CHECK(socket);
  CHECK(arrivals == std::vector<int>{1, 2});
}
