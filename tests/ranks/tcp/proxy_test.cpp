// SPDX-License-Identifier: Apache-2.0
// Real ranks with a hostile wire to rank 0: results are right or an Error names the other end; nothing hangs, and no
// byte that was changed is ever taken for data. On loopback, and once more on hosts of their own: see hosts.hpp.
#include "ranks/tcp/proxy.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "ranks/tcp/hosts.hpp"
#include "ranks/tcp/meeting.hpp"
#include "support/errors.hpp"
#include "support/ranks.hpp"
#include "support/shared_page.hpp"
#include "support/worlds.hpp"
#include "tandem/collective/all_reduce.hpp"
#include "tandem/collective/barrier.hpp"
#include "tandem/collective/send_recv.hpp"

using namespace tandem;
using namespace tandem::test;
using namespace std::chrono_literals;

namespace {

using Way = Proxy::Way;

constexpr Hosts::Place of_rank_0 = Hosts::first, of_the_proxy = Hosts::second, of_the_others = Hosts::third;

/// The proxy goes when all ranks have gone, whatever they have met.
struct Gone {
  SharedPage& notes;
  ~Gone() { ++notes->seen; }
};

/// `size` ranks, of which all but rank 0 reach it through a proxy; body(rank) joins by itself. One process more than
/// there are ranks: the proxy.
void through_proxy(int size, const Proxy::Options& options, const std::function<void(int)>& body) {
  const SecretFile secret("a secret of sufficient length");
  const auto host = hosts.address(of_rank_0, free_port());
  const auto door = hosts.address(of_the_proxy, free_port());
  SharedPage notes;
  on_ranks(size + 1, [&](int rank) {
    if (rank == size) {
      hosts.enter(of_the_proxy);
      const Deadline patience = Deadline::after(30s);
      Proxy(door, host, options).run([&] { return notes->seen == size || patience.expired(); });
      return;
    }
    hosts.enter(rank == 0 ? of_rank_0 : of_the_others);
    meet_at(rank == 0 ? host : door, secret.path());
    const Gone gone{notes};
    body(rank);
  });
}
World join_as(int rank, int size, std::chrono::nanoseconds timeout = 20s) {
  JoinOptions options = within(timeout);
  options.identity = Identity{rank, size, rank, size, "behind a proxy", "the test"};
  if (hosts.apart()) {
    options.identity->local_rank = rank == 0 ? 0 : rank - 1;
    options.identity->local_size = rank == 0 ? 1 : size - 1;
  }
  return join<Tcp>(options);
}

/// One round of collectives and messages, `count` elements each. Every element is looked at. Nobody is through with it
/// before all have their messages.
void round_of(World& world, std::size_t count, int turn) {
  const int size = world.size();
  const int rank = world.rank();
  const auto value = [&](int of, std::size_t i) { return static_cast<std::int32_t>(i % 1000) * (of + 1) + turn; };
  std::vector<std::int32_t> data(count);
  for (std::size_t i = 0; i < count; ++i) data[i] = value(rank, i);
  all_reduce(world, std::span(data), Sum{});
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    wrong += data[i] != static_cast<std::int32_t>(i % 1000) * (size * (size + 1) / 2) + size * turn ? 1 : 0;
  }
  for (std::size_t i = 0; i < count; ++i) data[i] = value(rank, i);
  const int before = (rank + size - 1) % size;
  std::vector<std::int32_t> got(count);
  send_recv(world, data, (rank + 1) % size, std::span(got), before);
  for (std::size_t i = 0; i < count; ++i) wrong += got[i] != value(before, i) ? 1 : 0;
  CHECK(wrong == 0);
  barrier(world);
}
Error rounds_until_error(World& world) {
  try {
    for (int turn = 0;; ++turn) round_of(world, turn % 2 == 0 ? 20000 : 50, turn);
  } catch (const Error& error) {
    return error;
  }
}
std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

constexpr int either = -1;
/// Runs into an error on all ranks. `listener`, the end of rank `other`'s link to rank 0 that sees it, names the other
/// end; what the others are told names it too.
void must_fail(int size, int other, int listener, const Proxy::Tamper& tamper, const std::string& said = "",
               std::chrono::nanoseconds timeout = 20s) {
  through_proxy(size, {.tamper = tamper}, [&](int rank) {
    World world = join_as(rank, size, timeout);
    const Error error = rounds_until_error(world);
    CAPTURE(rank);
    CAPTURE(std::string(error.what()));
    CHECK((error.kind() == ErrorKind::dead_peer || (timeout < 20s && error.kind() == ErrorKind::timeout)));
    CHECK(((rank != 0 && says(error, "rank 0")) || (rank != other && says(error, rank_text(other)))));
    if (rank == listener) {
      const int far_end = rank == 0 ? other : 0;
      CHECK(error.peer() == far_end);
      CHECK(says(error, rank_text(far_end) + " (process "));
      CHECK(says(error, said));
    }
  });
}

}  // namespace

TEST_CASE("C036: through a wire that passes on single bytes, results are right") {
  through_proxy(3, {.slice = 1}, [](int rank) {
    World world = join_as(rank, 3);
    for (const std::size_t count : {1, 1000, 5, 700}) round_of(world, count, 3);
    CHECK(world.ledger().balanced());
  });
}

TEST_CASE("through a slow wire, results are right") {
  through_proxy(3, {.delay = 20ms}, [](int rank) {
    World world = join_as(rank, 3);
    for (const std::size_t count : {1, 30000, 50}) round_of(world, count, 5);
    CHECK(world.ledger().balanced());
  });
}

TEST_CASE("C037: a connection that is reset in the middle names the other end; no signal, and SIGPIPE is left alone") {
  struct sigaction before {};
  ::sigaction(SIGPIPE, nullptr, &before);
  for (const int channel : {0, 1}) {
    CAPTURE(channel);
    must_fail(3, 2, either, [=](Proxy::Link& link, Way way, std::uint64_t at, std::vector<std::byte>&) {
      const detail::TcpPurpose& it = link.purpose();
      if (it.from == 2 && it.channel == channel && way == Way::to_host && at > 50000) link.reset();
    });
  }
  on_ranks(2, [&](int) {
    const World world = join<Tcp>(within(20s));
    struct sigaction now {};
    ::sigaction(SIGPIPE, nullptr, &now);
    CHECK((now.sa_handler == before.sa_handler));
  });
}

TEST_CASE("a connection of which one half is closed in the middle names the other end") {
  for (const Way closed : {Way::to_host, Way::from_host}) {
    must_fail(3, 1, closed == Way::to_host ? 0 : 1,
              [=](Proxy::Link& link, Way way, std::uint64_t at, std::vector<std::byte>&) {
                if (link.purpose().from == 1 && link.purpose().channel == 0 && way == closed && at > 50000)
                  link.half_close(way);
              });
  }
}

TEST_CASE("with checksums a flipped bit is an error that names who sent it, and never wrong data") {
  ::setenv("TANDEM_TCP_CRC", "1", 1);
  struct Flip {
    int channel;
    std::uint64_t at;  // after the handshake
    unsigned bit;
    const char* said;
  };
  // In the first header, in a payload, far inside; on the connection of collectives and on that of messages.
  for (const Flip flip : {Flip{0, 4, 1, "bytes arrived that begin no frame"}, Flip{0, 12, 2, "sent what tandem never"},
                          Flip{0, 40, 7, "arrived damaged"}, Flip{0, 60001, 0, "sent what tandem never sends"},
                          Flip{1, 0, 0, ""}, Flip{1, 33, 3, "arrived damaged"}, Flip{1, 60001, 5, "arrived damaged"}}) {
    CAPTURE(flip.channel);
    CAPTURE(flip.at);
    // A frame that seems longer than it is may wait for bytes that do not come: until the deadline.
    must_fail(
        2, 1, 0,
        [=](Proxy::Link& link, Way way, std::uint64_t at, std::vector<std::byte>& bytes) {
          const std::uint64_t place = Proxy::handshake_bytes(way) + flip.at;
          if (link.purpose().channel != flip.channel || way != Way::to_host) return;
          if (place >= at && place < at + bytes.size()) bytes[place - at] ^= static_cast<std::byte>(1U << flip.bit);
        },
        flip.said, 3s);
  }
  ::unsetenv("TANDEM_TCP_CRC");
}

TEST_CASE("a frame that announces more than can be is refused by name, whatever is behind it") {
  detail::FrameHeader header{};
  header.mark = detail::frame_mark;
  const auto inject = [&](Proxy::Link& link, Way way, std::uint64_t at, std::vector<std::byte>& bytes) {
    const std::uint64_t place = Proxy::handshake_bytes(way);
    if (link.purpose().channel != 0 || way != Way::to_host || at > place || at + bytes.size() <= place) return;
    const auto forged = std::as_bytes(std::span(&header, 1));
    bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(place - at), forged.begin(), forged.end());
  };
  header.kind = detail::FrameKind::stream;
  header.length = 0xffffffff;
  must_fail(2, 1, 0, inject, "sent what tandem never sends: a frame that announces 4294967295 bytes");
  header.kind = detail::FrameKind::publication;
  header.length = 8;
  header.position = std::uint64_t{1} << 60;
  must_fail(2, 1, 0, inject, "sent what tandem never sends: a frame that announces 8 bytes at 1152921504606846976");
}

TEST_CASE("a recorded handshake opens neither the meeting nor a connection") {
  struct Recorded {
    Proxy* proxy = nullptr;
    std::vector<std::byte> words[2];  // to meet, to connect
    int replayed = 0;
  };
  const SecretFile secret("a secret of sufficient length");
  const auto host = hosts.address(of_rank_0, free_port());
  const auto door = hosts.address(of_the_proxy, free_port());
  SharedPage notes;
  on_ranks(4, [&](int rank) {
    if (rank == 3) {
      hosts.enter(of_the_proxy);
      Recorded recorded;
      const auto replay = [&](const detail::TcpAddress& to, const std::vector<std::byte>& words) {
        REQUIRE(words.size() == Proxy::handshake_bytes(Way::to_host));
        const Deadline patience = Deadline::after(5s);
        const Descriptor socket = detail::try_connect(to, patience);
        REQUIRE(socket);
        CHECK(detail::send_short(socket, words, patience));
        std::vector<std::byte> answer(sizeof(detail::TcpChallenge));
        CHECK(detail::receive_exactly(socket, answer, patience));  // the server's own proof, which is no secret
        std::byte more{};
        CHECK_FALSE(detail::receive_exactly(socket, std::span(&more, 1), patience));  // but no welcome
        CHECK(errno != ETIMEDOUT);
        ++recorded.replayed;
      };
      Proxy proxy(door, host,
                  {.tamper = [&](Proxy::Link& link, Way way, std::uint64_t at, std::vector<std::byte>& bytes) {
                    const detail::TcpPurpose& it = link.purpose();
                    if (it.from != 1 || way != Way::to_host) return;
                    // What rank 1 has said is said again while rank 0 waits: for rank 2, which comes late, and for rank
                    // 1's second connection.
                    if (it.channel == 1 && at == 0) replay(recorded.proxy->mesh_address(), recorded.words[1]);
                    auto& words = recorded.words[it.channel == -1 ? 0 : 1];
                    const bool before = words.size() < Proxy::handshake_bytes(way);
                    if (it.channel < 1 && before) words.insert(words.end(), bytes.begin(), bytes.end());
                    words.resize(std::min<std::size_t>(words.size(), Proxy::handshake_bytes(way)));
                    if (it.channel == -1 && before && words.size() == Proxy::handshake_bytes(way)) {
                      replay(recorded.proxy->meeting_address(), words);
                    }
                  }});
      recorded.proxy = &proxy;
      const Deadline patience = Deadline::after(30s);
      proxy.run([&] { return notes->seen == 3 || patience.expired(); });
      CHECK(recorded.replayed == 2);
      return;
    }
    if (rank == 2) std::this_thread::sleep_for(500ms);
    const Gone gone{notes};
    hosts.enter(rank == 0 ? of_rank_0 : of_the_others);
    meet_at(rank == 0 ? host : door, secret.path());
    World world = join_as(rank, 3);
    round_of(world, 1000, 1);
  });
}

TEST_CASE("a bit flipped in a handshake: the server hears no more of it, the client names the server") {
  const auto flip = [](Way which, std::uint64_t place, int times) {
    return [=, left = times](Proxy::Link& link, Way way, std::uint64_t at, std::vector<std::byte>& bytes) mutable {
      if (link.purpose().channel != 0 || way != which || left == 0 || place < at || place >= at + bytes.size()) return;
      bytes[place - at] ^= std::byte{4};
      --left;
    };
  };
  // In the client's nonce, once: what both prove differs, the client refuses; a rank that is told so does not go on.
  through_proxy(2, {.tamper = flip(Way::to_host, sizeof(detail::TcpHello) - 1, 1)}, [](int rank) {
    try {
      const World world = join_as(rank, 2, 1500ms);
      FAIL_CHECK("rank " << rank << " joined");
    } catch (const Error& error) {
      CAPTURE(std::string(error.what()));
      CHECK(error.peer() == 1 - rank);
      CHECK(says(error, rank == 0 ? "rank 1 did not connect" : "to a process that does not know the job's secret"));
    }
  });
  // In its mark, twice: the server does not know what that was, and the third attempt is as good as any.
  through_proxy(2, {.tamper = flip(Way::to_host, 0, 2)}, [](int rank) {
    World world = join_as(rank, 2);
    round_of(world, 1000, 1);
  });
}

TEST_CASE("whoever says a byte now and then instead of who it is stands in nobody's way, and is shown out") {
  const SecretFile secret("a secret of sufficient length");
  const auto door = hosts.address(of_rank_0, free_port());
  SharedPage notes;
  on_ranks(3, [&](int rank) {
    hosts.enter(rank == 0 ? of_rank_0 : of_the_others);
    if (rank == 2) {  // not a rank
      detail::TcpHello hello{};
      hello.mark = detail::tcp_mark;
      const auto words = std::as_bytes(std::span(&hello, 1));
      std::vector<Descriptor> guests;
      const Deadline patience = Deadline::after(15s);
      while (guests.size() < 60 && !patience.expired()) {
        if (Descriptor one = detail::try_connect(door, patience)) guests.push_back(std::move(one));
      }
      notes->phase = 1;
      for (std::size_t i = 0; i < words.size() && notes->seen < 2 && !patience.expired(); ++i) {
        for (const Descriptor& guest : guests) (void)::send(guest.get(), &words[i], 1, MSG_NOSIGNAL);
        std::this_thread::sleep_for(20ms);
      }
      CHECK(notes->seen == 2);  // they joined while all of these were at the door
      return;
    }
    if (rank == 1) {
      while (notes->phase == 0) std::this_thread::sleep_for(1ms);
    }
    const Gone gone{notes};
    meet_at(door, secret.path());
    World world = join_as(rank, 2);
    round_of(world, 1000, 1);
  });
  // Nobody stays for longer than 5 s without having proved who it is.
  on_ranks(2, [&](int rank) {
    hosts.enter(rank == 0 ? of_rank_0 : of_the_others);
    if (rank == 0) {
      meet_at(door, secret.path());
      try {
        const World world = join_as(rank, 2, 7s);
        FAIL_CHECK("joined");
      } catch (const Error& error) {
        CHECK(says(error, "did not come within the deadline: rank 1"));
      }
      ++notes->phase;
      return;
    }
    Descriptor guest;
    while (!guest) guest = detail::try_connect(door, Deadline::after(5s));
    std::byte nothing{'t'};
    CHECK(detail::send_short(guest, std::span(&nothing, 1), Deadline::after(1s)));
    CHECK_FALSE(detail::receive_exactly(guest, std::span(&nothing, 1), Deadline::after(15s)));
    CHECK(errno != ETIMEDOUT);
    CHECK(notes->phase == 1);  // while rank 0 was still there
  });
}
