// SPDX-License-Identifier: Apache-2.0
// Who waits at the door of a rank: everybody in this process, so that what strangers do is exact.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tandem/core/sanitized.hpp"
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

/// The error of connecting, or nothing; never an exception, since threads are to be joined.
struct Attempt {
  Descriptor socket;
  std::optional<Error> error;

  std::string what() const { return error ? error->what() : ""; }
  bool says(const std::string& words) const { return what().find(words) != std::string::npos; }
};
Attempt attempt(const TcpParty& party, const std::vector<TcpAddress>& addresses) {
  Attempt it;
  try {
    it.socket = connect_to(party, addresses, 0, 0);
  } catch (const Error& error) {
    it.error = error;
  }
  return it;
}

/// Rank 0 of 2 in a thread, until rank 1 has come or the deadline.
class Host {
 public:
  explicit Host(const TcpParty& party)
      : party_(party), door_(listen_on(TcpAddress::loopback(), {})), thread_([this] {
          TcpAcceptor acceptor(party_, door_);
          joined_ = acceptor.run([this](Descriptor socket, const TcpPurpose&) {
            socket_ = std::move(socket);
            return true;
          });
        }) {}
  ~Host() {
    if (thread_.joinable()) thread_.join();
  }
  TcpAddress address() const { return local_address(door_); }
  bool joined() {
    thread_.join();
    return joined_;
  }

 private:
  TcpParty party_;
  Descriptor door_;
  Descriptor socket_;
  bool joined_ = false;
  std::thread thread_;
};

/// A program that greets everybody in a language of its own.
class ForeignServer {
 public:
  ~ForeignServer() {
    stop_ = true;
    thread_.join();
  }
  TcpAddress address() const { return local_address(door_); }

 private:
  void serve() {
    std::vector<Descriptor> guests;
    const std::vector<std::byte> words(200, std::byte{'x'});
    while (!stop_) {
      if (!await_socket(door_, POLLIN, Deadline::after(10ms))) continue;
      guests.emplace_back(::accept4(door_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (guests.back()) send_short(guests.back(), words, Deadline::after(1s));
    }
  }
  Descriptor door_ = listen_on(TcpAddress::loopback(), {});
  std::atomic<bool> stop_{false};
  std::thread thread_{[this] { serve(); }};
};

/// So long, this process can open no more descriptors than `more`.
class FewDescriptors {
 public:
  explicit FewDescriptors(int more) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const Descriptor first_free(::dup(0));
    rlimit now = before_;
    now.rlim_cur = static_cast<rlim_t>(first_free.get() + more);
    ::setrlimit(RLIMIT_NOFILE, &now);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

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
  const Attempt rank = attempt(party_of(1, 2, deadline), {address});
  accepting.join();
  CHECK(rank.what() == "");
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
  const Attempt again = attempt(party_of(2, 3, deadline), {address});
  accepting.join();
  CHECK(again.what() == "");
  CHECK(joined);
  for (const Descriptor& socket : sockets) CHECK(socket);
  CHECK(arrivals == std::vector<int>{1, 2});
}

// It was said to have closed the connection.
TEST_CASE("an address that accepts and stays silent is said to be silent") {
  const Descriptor door = listen_on(TcpAddress::loopback(), {});
  const Attempt rank = attempt(party_of(1, 2, Deadline::after(300ms)), {local_address(door)});
  REQUIRE(rank.error);
  CAPTURE(rank.what());
  CHECK(rank.error->kind() == ErrorKind::timeout);
  CHECK(rank.error->peer() == 0);
  CHECK(rank.says(local_address(door).text() + " accepted the connection and then said nothing until the deadline"));
}

TEST_CASE("a silent address is left for the next one") {
  const Deadline deadline = Deadline::after(30s);
  const Descriptor silent = listen_on(TcpAddress::loopback(), {});
  Host host(party_of(0, 2, deadline));
  const Attempt rank = attempt(party_of(1, 2, deadline), {local_address(silent), host.address()});
  CHECK(rank.what() == "");
  CHECK(host.joined());
}

TEST_CASE("an address that speaks another language is left for the next one") {
  const Deadline deadline = Deadline::after(30s);
  const ForeignServer foreign;
  Host host(party_of(0, 2, deadline));
  const Attempt rank = attempt(party_of(1, 2, deadline), {foreign.address(), host.address()});
  CHECK(rank.what() == "");
  CHECK(host.joined());
}

TEST_CASE("only a wrong proof is blamed on the secret") {
  const ForeignServer foreign;
  const Attempt at_foreign = attempt(party_of(1, 2, Deadline::after(30s)), {foreign.address()});
  REQUIRE(at_foreign.error);
  CAPTURE(at_foreign.what());
  CHECK(at_foreign.error->kind() == ErrorKind::environment);
  CHECK(at_foreign.says("does not speak tandem's language, at " + foreign.address().text()));
  CHECK_FALSE(at_foreign.says("TANDEM_SECRET_FILE"));

  TcpParty other = party_of(0, 2, Deadline::after(1s));
  other.secret.assign(32, std::uint8_t{9});
  Host host(other);
  const Attempt at_other = attempt(party_of(1, 2, Deadline::after(30s)), {host.address()});
  REQUIRE(at_other.error);
  CHECK(at_other.error->kind() == ErrorKind::environment);
  CHECK(at_other.says("TANDEM_SECRET_FILE"));
  CHECK_FALSE(host.joined());
}

TEST_CASE("who cannot be taken for want of descriptors is told of") {
  if (address_sanitized) return;  // UBSan, beside it, looks at virtual calls through a pipe of its own
  const TcpParty host = party_of(0, 2, Deadline::after(200ms));
  const Descriptor door = listen_on(TcpAddress::loopback(), {});
  const Descriptor waiting = try_connect(local_address(door), host.deadline);
  REQUIRE(waiting);
  TcpAcceptor acceptor(host, door);
  {
    const FewDescriptors none(0);
    CHECK_FALSE(acceptor.run([](const Descriptor&, const TcpPurpose&) { return true; }));
  }
  CHECK(acceptor.refusals() == "connections could not be taken: no descriptor is free in this process");
}

TEST_CASE("the last descriptor is not left to a silent stranger") {
  if (address_sanitized) return;                  // UBSan, beside it, looks at virtual calls through a pipe of its own
  const Deadline deadline = Deadline::after(4s);  // shorter than such a guest would be waited for
  const TcpParty host = party_of(0, 2, deadline);
  const Descriptor door = listen_on(TcpAddress::loopback(), {});
  const Descriptor stranger = try_connect(local_address(door), deadline);
  const Descriptor rank = try_connect(local_address(door), deadline);
  REQUIRE(stranger);
  REQUIRE(rank);
  auto handshake = TcpHandshake::client(host.secret, {1, 0, 2, 0, 1}, host.job, host.checked);
  bool joined = false;
  {
    const FewDescriptors one(1);
    std::thread accepting([&] {
      TcpAcceptor acceptor(host, door);
      joined = acceptor.run([](const Descriptor&, const TcpPurpose& purpose) { return purpose.from == 1; });
    });
    shake_hands(rank, handshake, deadline, deadline);
    accepting.join();
  }
  CHECK(joined);
  CHECK(handshake.state() == TcpHandshake::State::done);
}

TEST_CASE("C039: ranks that wait for rank 0 come again at different times, soon at first and seldom later") {
  for (int attempt = 0; attempt < 20; ++attempt) {
    std::set<std::chrono::milliseconds> rests;
    for (int rank = 1; rank < 64; ++rank) rests.insert(rest_after(attempt, rank));
    CAPTURE(attempt);
    CHECK(rests.size() > (attempt < 4 ? 5 : 32));
    if (attempt == 0) CHECK(*rests.rbegin() <= 15ms);
    if (attempt >= 4) CHECK(*rests.begin() >= 80ms);
    CHECK(*rests.rbegin() <= 240ms);
  }
}
