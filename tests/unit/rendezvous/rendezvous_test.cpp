// SPDX-License-Identifier: Apache-2.0
// Meetings that succeed: every rank has what every rank gave, under any name, any number of times, in any order.
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>

#include "meeting.hpp"

using namespace tandem;
using namespace tandem::test;

TEST_CASE("one rank meets itself without a socket") {
  const int before = open_files();
  {
    const auto all = meet("alone", 0, 1, introduction(0, 100, 3), soon(0));
    check_introductions(all, 1, 100, 3);
  }
  CHECK(open_files() == before);
}

TEST_CASE("all ranks get all introductions") {
  struct Shape {
    int size;
    std::size_t bytes;
    int files;
  };
  for (const Shape& shape : {Shape{2, 0, 0}, Shape{2, 1, 1}, Shape{3, 100, 2}, Shape{4, 65536, 16}, Shape{5, 8, 0}}) {
    CAPTURE(shape.size);
    const std::string name = fresh_rendezvous();
    on_ranks(shape.size, [&](int rank) {
      const int before = open_files();
      {
        const auto all = meet(name, rank, shape.size, introduction(rank, shape.bytes, shape.files), soon(20));
        check_introductions(all, shape.size, shape.bytes, shape.files);
        CHECK(open_files() == before + shape.size * shape.files);
      }
      CHECK(open_files() == before);
    });
  }
}

TEST_CASE("64 ranks meet") {
  const std::string name = fresh_rendezvous();
  on_ranks(64, [&](int rank) {
    check_introductions(meet(name, rank, 64, introduction(rank, 100, 2), soon(30)), 64, 100, 2);
  });
}

TEST_CASE("C039: many ranks start before rank 0 listens") {
  const std::string name = fresh_rendezvous();
  on_ranks(25, [&](int rank) {
    if (rank == 0) pause_for(1.0);
    Stopwatch watch;
    check_introductions(meet(name, rank, 25, introduction(rank, 10, 1), soon(30)), 25, 10, 1);
    CHECK(watch.seconds() < 15);
  });
}

TEST_CASE("C029: any text is a name, and different names do not meet") {
  const std::vector<std::string> names{
      std::string(300, 'a'), std::string(299, 'a') + "b", "", "/", "a/b c", "Grüße, 世界", std::string("\0x", 2),
      std::string("\0y", 2), fresh_rendezvous()};
  // All at once: names that were the same to the rendezvous would give two ranks 0.
  const int count = static_cast<int>(names.size());
  on_ranks(2 * count, [&](int process) {
    const int job = process % count;
    const int rank = process / count;
    Introduction mine = introduction(rank, 3, 1);
    mine.data[0] = std::byte(job);
    const auto all = meet(names[static_cast<std::size_t>(job)], rank, 2, std::move(mine), soon(20));
    CHECK(all[0].data[0] == std::byte(job));
    CHECK(all[1].data[0] == std::byte(job));
  });
}

TEST_CASE("the same processes meet again under the same name") {
  const std::string name = fresh_rendezvous();
  on_ranks(3, [&](int rank) {
    const int before = open_files();
    for (int round = 0; round < 40; ++round) {
      pause_for(0.001 * ((round * 7 + rank * 5) % 4));
      Introduction mine = introduction(rank, 2, 1);
      mine.data[0] = std::byte(round);
      const auto all = meet(name, rank, 3, std::move(mine), soon(20));
      for (const Introduction& one : all) REQUIRE(one.data[0] == std::byte(round));  // never one of another round
    }
    CHECK(open_files() == before);
  });
}

TEST_CASE("a meeting that failed does not stand in the way of the next") {
  const std::string name = fresh_rendezvous();
  on_ranks(3, [&](int rank) {
    if (rank == 1) {
      pause_for(1.5);  // it misses the first meeting
    } else {
      const auto error = failed_meeting(name, rank, 3, 0.5);
      REQUIRE(error);
      CHECK(error->kind() == ErrorKind::timeout);
    }
    check_introductions(meet(name, rank, 3, introduction(rank, 5, 1), soon(20)), 3, 5, 1);
  });
}

TEST_CASE("C036: signals that interrupt every call do no harm") {
  const std::string name = fresh_rendezvous();
  on_ranks(3, [&](int rank) {
    struct sigaction action {};
    action.sa_handler = [](int) {};  // without SA_RESTART
    ::sigaction(SIGALRM, &action, nullptr);
    const itimerval often{{0, 300}, {0, 300}};
    ::setitimer(ITIMER_REAL, &often, nullptr);
    for (int round = 0; round < 10; ++round) {
      check_introductions(meet(name, rank, 3, introduction(rank, 1000, 4), soon(30)), 3, 1000, 4);
    }
    const itimerval never{};
    ::setitimer(ITIMER_REAL, &never, nullptr);
  });
}

TEST_CASE("more descriptors in flight than a user may have open at once") {
  // The kernel counts a user's descriptors in flight against RLIMIT_NOFILE, unless the user is root.
  const std::string name = fresh_rendezvous();
  on_ranks(12, [&](int rank) {
    if (::geteuid() == 0) REQUIRE(::setresuid(65534, 65534, 65534) == 0);
    const rlimit limit{100, 100};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
    check_introductions(meet(name, rank, 12, introduction(rank, 10, 5), soon(30)), 12, 10, 5);
  });
}

TEST_CASE("C027: a rank in its own mount namespace shares memory all the same") {
  const std::string name = fresh_rendezvous();
  on_ranks(2, [&](int rank) {
    if (rank == 1 && ::unshare(CLONE_NEWNS) != 0) MESSAGE("left out here: a mount namespace (no right to one)");
    check_introductions(meet(name, rank, 2, introduction(rank, 10, 2), soon(20)), 2, 10, 2);
  });
}
