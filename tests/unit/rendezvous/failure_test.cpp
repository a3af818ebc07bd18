// SPDX-License-Identifier: Apache-2.0
// Meetings that fail: every rank that can be reached is told, soon, and with the names of those to blame. "Soon" is 6 s
// here, where a rank that is not told waits for 20 s or more: a loaded machine must not fail a test.
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>

#include "meeting.hpp"

using namespace tandem;
using namespace tandem::test;

namespace {

struct Claim {
  int rank;
  int size;
  double delay = 0;
};

/// One process for each claim; every one must fail as `check` demands.
void every_claim_fails(const std::vector<Claim>& claims, double seconds,
                       const std::function<void(const Claim&, const Error&, double)>& check) {
  const std::string name = fresh_rendezvous();
  on_ranks(static_cast<int>(claims.size()), [&](int process) {
    const Claim& claim = claims[static_cast<std::size_t>(process)];
    const int before = open_files();
    pause_for(claim.delay);
    Stopwatch watch;
    const auto error = failed_meeting(name, claim.rank, claim.size, seconds, introduction(claim.rank, 9, 2));
    const double taken = watch.seconds();
    REQUIRE(error);
    INFO(std::string(error->what()));
    CAPTURE(taken);
    CHECK(error->rank() == claim.rank);
    CHECK(error->verb() == "join");
    CHECK(open_files() == before);
    check(claim, *error, taken);
  });
}

/// Says hello as a rank would, and returns the open socket.
Descriptor say_hello(const std::string& name, int rank, int size) {
  const detail::Meeting meeting{name, rank, size, Deadline::never()};
  const auto address = detail::rendezvous_address(name);
  for (int attempt = 0; attempt < 2000; ++attempt) {
    Descriptor socket = detail::open_rendezvous_socket();
    if (::connect(socket.get(), address.get(), address.length) == 0) {
      REQUIRE(detail::send_message(socket.get(), meeting.header(detail::MessageKind::hello, rank)) ==
              detail::Transfer::done);
      return socket;
    }
    pause_for(0.002);
  }
  FAIL("nobody listens");
  return {};
}

}  // namespace

TEST_CASE("C044: a missing rank is named on all others at the deadline") {
  every_claim_fails({{0, 3}, {2, 3}}, 1.0, [](const Claim&, const Error& error, double taken) {
    CHECK(error.kind() == ErrorKind::timeout);
    CHECK(error.peer() == 1);
    CHECK(contains(error.what(), "rank 1 of 3 did not come within 1 s"));
    CHECK(taken > 0.9);
    CHECK(taken < 6.0);
  });
}

TEST_CASE("C044: several missing ranks are all named") {
  every_claim_fails({{0, 6}, {2, 6}, {4, 6}}, 1.0, [](const Claim&, const Error& error, double) {
    CHECK(error.kind() == ErrorKind::timeout);
    CHECK(contains(error.what(), "ranks 1, 3, 5 of 6 did not come"));
  });
}

TEST_CASE("C044: without rank 0 the others name it") {
  every_claim_fails({{1, 3}, {2, 3}}, 0.7, [](const Claim&, const Error& error, double taken) {
    CHECK(error.kind() == ErrorKind::timeout);
    CHECK(error.peer() == 0);
    CHECK(contains(error.what(), "rank 0 of 3 did not come"));
    CHECK(taken < 6.0);
  });
}

TEST_CASE("the earliest deadline of any rank ends the meeting for all, and names the missing") {
  const std::string name = fresh_rendezvous();
  on_ranks(2, [&](int process) {
    Stopwatch watch;
    const auto error = failed_meeting(name, process == 0 ? 0 : 2, 3, process == 0 ? 30.0 : 0.6);
    REQUIRE(error);
    INFO(std::string(error->what()));
    CHECK(error->kind() == ErrorKind::timeout);
    CHECK(error->peer() == 1);
    CHECK(contains(error->what(), "rank 1 of 3"));
    CHECK(watch.seconds() < 6.0);
  });
}

TEST_CASE("two processes that claim one rank are both named, on all ranks") {
  for (const std::vector<Claim>& claims :
       {std::vector<Claim>{{0, 3}, {1, 3}, {1, 3}}, std::vector<Claim>{{0, 3}, {1, 3}, {1, 3, 0.1}, {2, 3, 0.3}}}) {
    every_claim_fails(claims, 20, [](const Claim&, const Error& error, double taken) {
      CHECK(error.kind() == ErrorKind::mismatch);
      CHECK(error.peer() == 1);
      CHECK(contains(error.what(), "both say that they are rank 1 of 3"));
      CHECK(contains(error.what(), "process "));
      CHECK(taken < 6.0);
    });
  }
}

TEST_CASE("two ranks 0 are both named, on all ranks") {
  every_claim_fails({{0, 3}, {0, 3}, {1, 3}}, 20, [](const Claim&, const Error& error, double taken) {
    CHECK(error.kind() == ErrorKind::mismatch);
    CHECK(contains(error.what(), "both say that they are rank 0 of 3"));
    CHECK(taken < 6.0);
  });
}

TEST_CASE("different world sizes are both named, on all ranks, also on one that comes late") {
  every_claim_fails({{0, 3}, {1, 2}, {2, 3, 0.3}}, 20, [](const Claim&, const Error& error, double taken) {
    CHECK(error.kind() == ErrorKind::mismatch);
    CHECK(error.peer() == 1);
    CHECK(contains(error.what(), "rank 1 (process"));
    CHECK(contains(error.what(), "the world has 2 ranks, rank 0 (process"));
    CHECK(contains(error.what(), "says 3"));
    CHECK(taken < 6.0);
  });
}

TEST_CASE("a rank that dies during the rendezvous is named at once") {
  const std::string name = fresh_rendezvous();
  for (const bool everybody : {true, false}) {  // with and without a rank that is still missing
    CAPTURE(everybody);
    const auto endings = run_ranks(3, [&](int rank) {
      if (rank == 1) {
        const Descriptor socket = say_hello(name, 1, everybody ? 3 : 4);
        pause_for(0.5);
        ::raise(SIGKILL);
      }
      Stopwatch watch;
      const auto error = failed_meeting(name, rank, everybody ? 3 : 4, 30);
      REQUIRE(error);
      INFO(std::string(error->what()));
      CHECK(error->kind() == ErrorKind::dead_peer);
      CHECK(error->peer() == 1);
      CHECK(contains(error->what(), "rank 1 (process"));
      CHECK(watch.seconds() < 6.0);
    });
    CHECK(endings[0].clean());
    CHECK(endings[1].signal == SIGKILL);
    CHECK(endings[2].clean());
  }
}

TEST_CASE("a rank 0 that dies during the rendezvous is named at once") {
  const std::string name = fresh_rendezvous();
  const auto endings = run_ranks(3, [&](int rank) {
    if (rank == 0) ::alarm(1);  // kills it while it waits for rank 3
    Stopwatch watch;
    const auto error = failed_meeting(name, rank, 4, 30);
    REQUIRE(error);
    INFO(std::string(error->what()));
    CHECK(error->kind() == ErrorKind::dead_peer);
    CHECK(error->peer() == 0);
    CHECK(contains(error->what(), "rank 0 (process"));
    CHECK(watch.seconds() < 6.0);
  });
  CHECK(endings[0].signal == SIGALRM);
  CHECK(endings[1].clean());
  CHECK(endings[2].clean());
}

TEST_CASE("a rank 0 that is stopped is named at the deadline") {
  const std::string name = fresh_rendezvous();
  const auto endings = run_ranks(2, [&](int rank) {
    if (rank == 0) {
      const detail::Meeting meeting{name, 0, 3, Deadline::never()};
      const auto address = detail::rendezvous_address(name);
      const Descriptor socket = detail::open_rendezvous_socket();
      REQUIRE(::bind(socket.get(), address.get(), address.length) == 0);
      REQUIRE(::listen(socket.get(), 8) == 0);
      pause_for(1.4);  // the kernel accepts connections for it
      return;
    }
    const auto error = failed_meeting(name, rank, 3, 0.7);
    REQUIRE(error);
    INFO(std::string(error->what()));
    CHECK(error->kind() == ErrorKind::timeout);
    CHECK(error->peer() == 0);
    CHECK(contains(error->what(), "did not answer within"));
  });
  CHECK(endings[0].clean());
  CHECK(endings[1].clean());
}

TEST_CASE("a rank that gives up tells its reason to all") {
  // Rank 1 may open so few files that it cannot take what the others give.
  const std::string name = fresh_rendezvous();
  on_ranks(3, [&](int rank) {
    Introduction mine = introduction(rank, 4, 16);
    if (rank == 1) {
      const auto now = static_cast<rlim_t>(open_files());
      const rlimit limit{now + 4, now + 4};
      REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
    }
    const auto error = failed_meeting(name, rank, 3, 20, std::move(mine));
    REQUIRE(error);
    INFO(std::string(error->what()));
    CHECK(error->kind() == ErrorKind::environment);
    CHECK(error->peer() == 1);
    CHECK(contains(error->what(), "rank 1 cannot take the files of the other ranks"));
    CHECK(contains(error->what(), "ulimit -n"));
  });
}

TEST_CASE("what cannot be asked for is refused before any socket is opened") {
  const int before = open_files();
  for (const Claim& claim : {Claim{-1, 2}, Claim{2, 2}, Claim{0, 0}, Claim{0, -1}, Claim{0, 1'000'000}}) {
    const auto error = failed_meeting("x", claim.rank, claim.size, 1);
    REQUIRE(error);
    CHECK(error->kind() == ErrorKind::argument);
  }
  for (const auto& [bytes, files] : {std::pair<std::size_t, int>{65537, 0}, {0, 17}}) {
    const auto error = failed_meeting("x", 0, 2, 1, introduction(0, bytes, files));
    REQUIRE(error);
    CHECK(error->kind() == ErrorKind::argument);
  }
  CHECK(open_files() == before);
}

TEST_CASE("C027: a rank in another network namespace is explained, not waited for") {
  const std::string name = fresh_rendezvous();
  on_ranks(2, [&](int rank) {
    if (rank == 1 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
      MESSAGE("left out here: a network namespace (no right to one); a rank of another job instead");
      const auto error = failed_meeting(name + "-other", rank, 2, 0.7);
      CHECK(error.has_value());
      return;
    }
    const auto error = failed_meeting(name, rank, 2, 0.7);
    REQUIRE(error);
    INFO(std::string(error->what()));
    CHECK(error->kind() == ErrorKind::timeout);
    CHECK(contains(error->what(), "network namespace"));
  });
}
