// SPDX-License-Identifier: Apache-2.0
// Ranks that meet at rank 0's port, as on several hosts: who is let in, who is missing, and what a stranger can do.
#include <doctest/doctest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "ranks/tcp/meeting.hpp"
#include "support/collective_laws.hpp"
#include "support/full.hpp"
#include "support/ranks.hpp"
#include "support/worlds.hpp"
#include "tandem/collective/all_reduce.hpp"
#include "tandem/collective/barrier.hpp"
#include "tandem/collective/send_recv.hpp"

using namespace tandem;
using namespace tandem::test;
using namespace std::chrono_literals;

namespace {

/// What listen() grants in this program at the most.
int longest_queue = SOMAXCONN;

}  // namespace

// In place of the system library's.
extern "C" int listen(int socket, int backlog) noexcept {
  return static_cast<int>(::syscall(SYS_listen, socket, std::min(backlog, longest_queue)));
}

namespace {

std::string join_failure(ErrorKind kind, std::chrono::nanoseconds timeout) {
  try {
    join<Tcp>(within(timeout));
    FAIL_CHECK("the join succeeded");
    return "";
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("C041: ranks meet at an address, at a name, and over IPv6") {
  const SecretFile secret("a secret of sufficient length");
  for (const std::string host : {"127.0.0.1", "localhost", "::1", "[::1]"}) {
    if (host.find(':') != std::string::npos) {
      try {
        detail::listen_on(detail::resolve("::1", 0).front(), {});
      } catch (const Error&) {
        continue;  // a host without IPv6
      }
    }
    CAPTURE(host);
    const int port = free_port();
    on_ranks(3, [&](int) {
      meet_at(host, port, secret.path());
      World world = join<Tcp>(within(20s));
      add_up(world);
    });
  }
}

TEST_CASE("a job can meet at the same port again at once, and a process can join again") {
  const SecretFile secret("a secret of sufficient length");
  const int port = free_port();
  for (int turn = 0; turn < 3; ++turn) {
    on_ranks(2, [&](int) {
      meet_at("127.0.0.1", port, secret.path());
      for (int again = 0; again < 2; ++again) {
        World world = join<Tcp>(within(20s));
        add_up(world);
      }
    });
  }
}

// Where the queue at a door is short, most of those who knock at the same time are not let in.
TEST_CASE("C039: many ranks that come long before rank 0 wait for it, however few the system lets wait at a door") {
  const SecretFile secret("a secret of sufficient length");
  const auto early = std::chrono::milliseconds(in_full(500, 2000));
  for (const int queue : {SOMAXCONN, 1}) {
    CAPTURE(queue);
    const int port = free_port();
    longest_queue = queue;
    const auto body = [&](int rank) {
      if (rank == 0) std::this_thread::sleep_for(early);
      meet_at("127.0.0.1", port, secret.path());
      World world = join<Tcp>(within(60s));
      barrier(world);
    };
    on_ranks(in_full(8, 25), body, 60s);
  }
  longest_queue = SOMAXCONN;
}

TEST_CASE("C044: who is missing is named at the deadline") {
  const SecretFile secret("a secret of sufficient length");
  const int port = free_port();
  on_ranks(4, [&](int rank) {
    if (rank >= 2) return;
    meet_at("127.0.0.1", port, secret.path());
    const std::string what = join_failure(ErrorKind::timeout, 1s);
    CAPTURE(what);
    CHECK(contains(what, "did not come within the deadline: rank 2, 3"));
  });
}

// They blamed rank 0, which had hung up on them.
TEST_CASE("who came is told which rank spoilt the meeting, and how") {
  const SecretFile secret("a secret of sufficient length");
  for (const bool silent : {false, true}) {
    CAPTURE(silent);
    const int port = free_port();
    on_ranks(3, [&](int rank) {
      meet_at("127.0.0.1", port, secret.path());
      if (rank == 2) {  // proves who it is, and never says where it listens
        detail::TcpParty party;
        party.rank = 2;
        party.size = 3;
        party.secret = *detail::configured_secret();
        party.deadline = Deadline::after(20s);
        const auto socket =
            detail::connect_to(party, detail::resolve("127.0.0.1", static_cast<std::uint16_t>(port)), 0, -1);
        while (silent) {
          std::byte word{};
          if (!detail::receive_exactly(socket, std::span(&word, 1), party.deadline)) break;
        }
        return;
      }
      try {
        join<Tcp>(within(silent ? 1s : 20s));
        FAIL_CHECK("the join succeeded");
      } catch (const Error& error) {
        const std::string what = error.what();
        CAPTURE(what);
        CHECK(error.kind() == (silent ? ErrorKind::timeout : ErrorKind::dead_peer));
        CHECK(error.peer() == 2);
        CHECK(contains(what, silent ? "rank 2 came, and did not do its part of the meeting within the deadline"
                                    : "rank 2 gave the meeting up"));
      }
    });
  }
}

TEST_CASE("nobody at rank 0's address is a timeout that says so") {
  const SecretFile secret("a secret of sufficient length");
  const int port = free_port();
  on_ranks(2, [&](int rank) {
    if (rank == 0) return;
    meet_at("127.0.0.1", port, secret.path());
    const std::string what = join_failure(ErrorKind::timeout, 1s);
    CAPTURE(what);
    CHECK(contains(what, "rank 0 was not reached (127.0.0.1:"));
    CHECK(contains(what, "Connection refused"));
  });
}

TEST_CASE("C042: an address that does not answer is named") {
  const SecretFile secret("a secret of sufficient length");
  on_ranks(2, [&](int rank) {
    if (rank == 0) return;
    meet_at("192.0.2.1", 29500, secret.path());  // an address that is nobody's
    const std::string what = join_failure(ErrorKind::timeout, 1s);
    CAPTURE(what);
    CHECK(contains(what, "rank 0 was not reached (192.0.2.1:29500: "));
  });
}

TEST_CASE("an unknown host is named, with what to do") {
  const SecretFile secret("a secret of sufficient length");
  on_ranks(2, [&](int) {
    meet_at("no-such-host.invalid", 4711, secret.path());
    const std::string what = join_failure(ErrorKind::environment, 1s);
    CAPTURE(what);
    CHECK(contains(what, "the host \"no-such-host.invalid\" has no address"));
    CHECK(contains(what, "set MASTER_ADDR"));
  });
}

TEST_CASE("without a secret, and without saying that none is wanted, ranks of several hosts do not join") {
  on_ranks(2, [&](int) {
    meet_at("127.0.0.1", 4711, "");
    const std::string what = join_failure(ErrorKind::environment, 1s);
    CAPTURE(what);
    CHECK(contains(what, "set TANDEM_SECRET_FILE"));
  });
  const int port = free_port();
  on_ranks(2, [&](int) {
    meet_at("127.0.0.1", port, "");
    ::setenv("TANDEM_INSECURE", "1", 1);
    JoinOptions options = within(20s);
    std::string notices;
    options.notice = [&](const std::string& text) { notices += text; };
    World world = join<Tcp>(options);
    add_up(world);
    CHECK(contains(notices, "ranks do not prove who they are") == (world.rank() == 0));  // once a job
  });
}

TEST_CASE("a rank with another secret is told so, and rank 0 says whom it refused") {
  const SecretFile right("the secret of this job");
  const SecretFile wrong("the secret of another one");
  const int port = free_port();
  on_ranks(2, [&](int rank) {
    meet_at("127.0.0.1", port, rank == 0 ? right.path() : wrong.path());
    const std::string what = join_failure(rank == 0 ? ErrorKind::timeout : ErrorKind::environment, 1s);
    CAPTURE(what);
    CHECK(contains(what, rank == 0 ? "did not come within the deadline: rank 1" : "does not know the job's secret"));
    if (rank == 0) CHECK(contains(what, "hung up in the middle of the handshake, as one with another secret does"));
  });
}

TEST_CASE("strangers at the door neither get in nor stand in the way") {
  const SecretFile secret("a secret of sufficient length");
  const int port = free_port();
  on_ranks(4, [&](int rank) {
    if (rank == 3) {  // not a rank at all: three join
      std::vector<Descriptor> silent;
      const auto address = detail::TcpAddress::loopback().with_port(static_cast<std::uint16_t>(port));
      const auto end = Clock::now() + 2s;
      std::vector<std::byte> garbage(4096, std::byte{0x41});
      while (Clock::now() < end) {
        Descriptor one = detail::try_connect(address, Deadline::after(1s));
        if (!one) {
          std::this_thread::sleep_for(1ms);
          continue;
        }
        if (silent.size() % 2 == 0) (void)::send(one.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
        silent.push_back(std::move(one));
        if (silent.size() > 300) silent.erase(silent.begin(), silent.begin() + 100);
      }
      return;
    }
    if (rank != 0) std::this_thread::sleep_for(500ms);
    meet_at("127.0.0.1", port, secret.path());
    JoinOptions options = within(20s);
    options.identity = Identity{rank, 3, rank, 3, "three of four", "the test"};
    World world = join<Tcp>(options);
    add_up(world);
  });
}

TEST_CASE("ports come from the range that is given, and a range that is too short is named") {
  const SecretFile secret("a secret of sufficient length");
  const int first = free_port();
  on_ranks(2, [&](int) {
    meet_at("127.0.0.1", free_port(), secret.path());
    ::unsetenv("TANDEM_PORT");  // on one host: no meeting port, but the range counts
    ::setenv("TANDEM_TCP_PORTS", (std::to_string(first) + "-" + std::to_string(std::min(first + 20, 65535))).c_str(),
             1);
    World world = join<Tcp>(within(20s));
    add_up(world);
  });
  for (const char* const wrong : {"1", "a-b", "2-1", "0-5", "1-70000", "1-2x", "-"}) {
    CAPTURE(wrong);
    ::setenv("TANDEM_TCP_PORTS", wrong, 1);
    CHECK_THROWS_AS(detail::ports_from_environment(), Error);
  }
  ::unsetenv("TANDEM_TCP_PORTS");
}

TEST_CASE("under torchrun the meeting is not at MASTER_PORT, where its own store listens") {
  ::setenv("MASTER_PORT", "29500", 1);
  CHECK(detail::meeting_port() == 29500);
  ::setenv("TORCHELASTIC_RUN_ID", "a run", 1);
  CHECK(detail::meeting_port() == 29501);
  ::setenv("TANDEM_PORT", "29510", 1);
  CHECK(detail::meeting_port() == 29510);
  for (const char* const name : {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TANDEM_PORT"}) ::unsetenv(name);
}

TEST_CASE("C034: two ranks that both send first, more than all buffers hold") {
  for (const std::size_t count : {std::size_t{100'003}, std::size_t{16} << 20}) {
    on_ranks(2, [&](int rank) {
      World world = join<Tcp>(within(30s));
      std::vector<float> mine(count, static_cast<float>(rank));
      std::vector<float> theirs(count, -1.0F);
      send(world, std::span<const float>(mine), 1 - rank);
      recv(world, std::span(theirs), 1 - rank);
      CHECK(theirs.front() == static_cast<float>(1 - rank));
      CHECK(theirs.back() == static_cast<float>(1 - rank));
    });
  }
}

TEST_CASE("C036: signals that interrupt every call of the system do no harm") {
  on_ranks(2, [&](int rank) {
    struct sigaction action {};
    action.sa_handler = [](int) {};  // without SA_RESTART
    ::sigaction(SIGALRM, &action, nullptr);
    const itimerval often{{0, 300}, {0, 300}};
    ::setitimer(ITIMER_REAL, &often, nullptr);
    World world = join<Tcp>(within(30s));
    std::vector<std::int64_t> values(std::size_t{1} << 17);
    for (int turn = 0; turn < 10; ++turn) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i) * (rank + 1) + turn;
      all_reduce(world, std::span(values), Sum{});
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < values.size(); ++i) wrong += values[i] != static_cast<std::int64_t>(i) * 3 + 2 * turn;
      CHECK(wrong == 0);
    }
  });
}

// Floats do not add up to the same in another order: the order is a contract, and no wire, pace or rank changes it.
TEST_CASE("the bits of a sum are the contract's, on every rank") {
  const Case<float, Sum> c(3, 100'000, Sum{}, 5);
  on_ranks(3, [&](int rank) {
    World world = join<Tcp>(within(30s));
    std::vector<float> values = c.inputs[static_cast<std::size_t>(rank)];
    all_reduce(world, std::span(values), Sum{});
    CHECK(std::memcmp(values.data(), c.result.data(), values.size() * sizeof(float)) == 0);
  });
  // And it is a contract worth having: rank after rank, the same floats give other bits.
  std::size_t different = 0;
  for (std::size_t i = 0; i < c.count(); ++i) {
    different += c.inputs[0][i] + c.inputs[1][i] + c.inputs[2][i] != c.result[i] ? 1 : 0;
  }
  CHECK(different > 0);
}

TEST_CASE("messages are received after their sender has left, however large they are") {
  on_ranks(2, [&](int rank) {
    for (const std::size_t count : {std::size_t{5}, std::size_t{30'000}, std::size_t{5'000'000}}) {
      World world = join_again("left " + std::to_string(::getppid()) + " " + std::to_string(count), rank, 2);
      std::vector<float> values(count, static_cast<float>(rank));
      if (rank == 0) {
        send(world, std::span<const float>(values), 1);
        send(world, std::span<const float>(values).first(count / 2 + 1), 1);
      } else {
        recv(world, std::span(values), 0);
        CHECK(values.back() == 0.0F);
        std::this_thread::sleep_for(20ms);
        recv(world, std::span(values).first(count / 2 + 1), 0);
      }
    }
  });
}

// Each told the others again and again for whom it waited, which ended their naps: two ranks kept each other awake.
TEST_CASE("ranks that wait side by side for a third one sleep") {
  on_ranks(3, [&](int rank) {
    World world = join<Tcp>(within(30s));
    barrier(world);
    rusage before{};
    ::getrusage(RUSAGE_SELF, &before);
    if (rank == 2) std::this_thread::sleep_for(1s);
    barrier(world);
    rusage after{};
    ::getrusage(RUSAGE_SELF, &after);
    CHECK(after.ru_nvcsw - before.ru_nvcsw < 2000);  // 130 naps of 10 ms, and some at the beginning; 9,000 were seen
  });
}

TEST_CASE("with checksums the results are the same") {
  on_ranks(3, [&](int) {
    ::setenv("TANDEM_TCP_CRC", "1", 1);
    World world = join<Tcp>(within(20s));
    for (int turn = 0; turn < 5; ++turn) add_up(world);
  });
}
