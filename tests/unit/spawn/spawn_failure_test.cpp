// SPDX-License-Identifier: Apache-2.0
// spawn when a rank fails, or is killed, or hangs, or when the parent is signalled or killed: the right status comes
// back soon and no process is left. (It takes about half a second; the limits are for a loaded machine.)
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <termios.h>

#include "program.hpp"

using namespace tandem;
using namespace tandem::test;

TEST_CASE("C048: the status of the first rank that fails comes back, and the others are ended") {
  for (const std::pair<int, int>& one : {std::pair{7, 7}, {1, 1}, {255, 255}, {256, 1}, {-1, 255}}) {
    const int returned = one.first;
    const int expected = one.second;
    CAPTURE(returned);
    const SharedNotes notes;
    const Outcome outcome = run([&] {
      return spawn(
          3,
          [&] {
            notes.arrive(rank_here());
            if (rank_here() == 1) return returned;
            wait_for_ever();
          },
          noticing());
    });
    CHECK(outcome.status == expected);
    CHECK(outcome.seconds < 6);
    CHECK(outcome.err ==
          "notice: rank 1 ended with status " + std::to_string(expected) + "; the other ranks are ended\n");
    CHECK(all_end(notes, 3, 0));
  }
}

TEST_CASE("C048: an exception that leaves main is told with its text, and is status 1") {
  const Outcome known = run([] {
    return spawn(
        2,
        []() -> int {
          if (rank_here() == 0) wait_for_ever();
          throw std::runtime_error("no file of that name");
        },
        noticing());
  });
  CHECK(known.status == 1);
  CHECK(contains(known.err, "notice: rank 1 ended by an exception: no file of that name; the other ranks are ended"));

  const Outcome odd = run([] {
    return spawn(
        1, []() -> int { throw 5; }, noticing());
  });
  CHECK(odd.status == 1);
  CHECK(contains(odd.err, "notice: rank 0 ended by an exception: not a std::exception\n"));

  const Outcome large = run([] {
    return spawn(
        1, []() -> int { throw std::runtime_error(std::string(1'000'000, 'x')); }, noticing());
  });
  CHECK(large.status == 1);
  CHECK(large.err.size() > 4000);
}

TEST_CASE("a rank killed by a signal is named, the others stop within a second") {
  const SharedNotes notes;
  Program program([&] {
    return spawn(
        3,
        [&]() -> int {
          notes.arrive(rank_here());
          wait_for_ever();
        },
        noticing());
  });
  notes.wait_for(3);
  ::kill(notes->process[1], SIGKILL);
  Stopwatch watch;
  const Outcome outcome = program.finish();
  CHECK(watch.seconds() < 4);
  CHECK(outcome.status == 128 + SIGKILL);
  CHECK(outcome.err == "notice: rank 1 was killed by signal 9 (Killed); the other ranks are ended\n");
  CHECK(all_end(notes, 3, 0));
}

TEST_CASE("the other ranks may say in their own words why they end") {
  const Outcome outcome = run([] {
    return spawn(
        3,
        [] {
          if (rank_here() == 1) return 3;
          pause_for(0.2);
          std::fprintf(stderr, "rank %d lost rank 1\n", rank_here());
          return 9;
        },
        noticing());
  });
  CHECK(outcome.status == 3);
  CHECK(contains(outcome.err, "rank 0 lost rank 1\n"));
  CHECK(contains(outcome.err, "rank 2 lost rank 1\n"));
  CHECK(contains(outcome.err, "notice: rank 1 ended with status 3"));
}

TEST_CASE("a rank that died by a signal is the cause, not the rank that noticed it first") {
  for (int round = 0; round < 20; ++round) {
    const SharedNotes notes;
    const Outcome outcome = run([&] {
      return spawn(2, [&]() -> int {
        notes.arrive(rank_here());
        notes.wait_for(2);
        if (rank_here() == 1) {
          pause_for(0.01);
          ::raise(SIGKILL);
        }
        pollfd peer{static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(notes->process[1]), 0)), POLLIN, 0};
        ::poll(&peer, 1, -1);
        ::_exit(1);
      });
    });
    CHECK(outcome.status == 128 + SIGKILL);
  }
}

TEST_CASE("ranks that ignore SIGTERM, or are stopped, are killed after the grace") {
  for (const bool stopped : {false, true}) {
    CAPTURE(stopped);
    const SharedNotes notes;
    const Outcome outcome = run([&] {
      SpawnOptions options;
      options.farewell = std::chrono::milliseconds(100);
      options.grace = std::chrono::milliseconds(300);
      return spawn(
          3,
          [&] {
            if (rank_here() != 1) {
              if (!stopped) ::signal(SIGTERM, SIG_IGN);
              notes.arrive(rank_here());
              if (stopped) ::raise(SIGSTOP);
              wait_for_ever();
            }
            notes.wait_for(2);
            return 4;
          },
          noticing(options));
    });
    CHECK(outcome.status == 4);
    CHECK(outcome.seconds < 6);
    CHECK(contains(outcome.err, "notice: rank 0 did not end when asked to, and was killed"));
    CHECK(contains(outcome.err, "notice: rank 2 did not end when asked to, and was killed"));
    CHECK(all_end(notes, 3, 0));
  }
}

TEST_CASE("C023: a signal to the parent ends all ranks; the status is 128 + signal") {
  const auto before = shared_memory_files();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    for (const bool group : {false, true}) {
      CAPTURE(signal);
      CAPTURE(group);
      const SharedNotes notes;
      Program program([&] {
        const rlimit none{0, 0};  // no core files of SIGQUIT
        ::setrlimit(RLIMIT_CORE, &none);
        return spawn(
            4,
            [&]() -> int {
              notes.arrive(rank_here());
              wait_for_ever();
            },
            noticing());
      });
      notes.wait_for(4);
      ::kill(group ? -program.process() : program.process(), signal);
      Stopwatch watch;
      const Outcome outcome = program.finish();
      CHECK(watch.seconds() < 4);
      CHECK(outcome.status == 128 + signal);
      CHECK(contains(outcome.err, "notice: interrupted by signal " + std::to_string(signal)));
      CHECK(all_end(notes, 4, 0));
    }
  }
  CHECK(shared_memory_files() == before);
}

TEST_CASE("a second signal does not wait for the grace") {
  const SharedNotes notes;
  Program program([&] {
    SpawnOptions options;
    options.grace = std::chrono::seconds(60);
    return spawn(
        2,
        [&]() -> int {
          ::signal(SIGINT, SIG_IGN);
          notes.arrive(rank_here());
          wait_for_ever();
        },
        options);
  });
  notes.wait_for(2);
  ::kill(program.process(), SIGINT);
  pause_for(0.2);
  ::kill(program.process(), SIGINT);
  const Outcome outcome = program.finish(10);
  CHECK(outcome.status == 128 + SIGINT);
  CHECK(outcome.seconds < 8);
  CHECK(all_end(notes, 2, 0));
}

TEST_CASE("Ctrl-C on a terminal reaches every rank exactly once") {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(terminal >= 0);
  REQUIRE(::grantpt(terminal) == 0);
  REQUIRE(::unlockpt(terminal) == 0);
  const std::string name = ::ptsname(terminal);
  const SharedNotes notes;
  Program program([&] {
    // A session of its own with this terminal, from a new process: a leader of a process group cannot make one.
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::setsid();
      const int line = ::open(name.c_str(), O_RDWR);
      ::ioctl(line, TIOCSCTTY, 0);
      const int status = spawn(3, [&] {
        static std::atomic<int>* count = nullptr;
        count = &notes->count[rank_here()];
        ::signal(SIGINT, [](int) { ++*count; });
        notes.arrive(rank_here());
        while (*count == 0) pause_for(0.01);
        pause_for(0.3);
        return 0;
      });
      ::_exit(status);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WEXITSTATUS(status);
  });
  notes.wait_for(3);
  REQUIRE(::write(terminal, "\x03", 1) == 1);
  const Outcome outcome = program.finish();
  ::close(terminal);
  CHECK(outcome.status == 128 + SIGINT);
  for (int rank = 0; rank < 3; ++rank) CHECK(notes->count[rank] == 1);
  CHECK(all_end(notes, 3, 0));
}

TEST_CASE("a signal that the program ignores is no interruption") {
  const SharedNotes notes;
  Program program([&] {
    ::signal(SIGHUP, SIG_IGN);  // nohup
    return spawn(
        2,
        [&] {
          notes.arrive(rank_here());
          pause_for(0.4);
          return 0;
        },
        noticing());
  });
  notes.wait_for(2);
  ::kill(program.process(), SIGHUP);
  const Outcome outcome = program.finish();
  CHECK(outcome.status == 0);
  CHECK(outcome.err.empty());
}

TEST_CASE("C054: ranks do not outlive a parent that is killed") {
  const SharedNotes notes;
  Program program([&] {
    return spawn(3, [&]() -> int {
      notes.arrive(rank_here());
      wait_for_ever();
    });
  });
  notes.wait_for(3);
  ::kill(program.process(), SIGKILL);
  CHECK(program.finish().status == 128 + SIGKILL);
  CHECK(all_end(notes, 3, 2));
}

TEST_CASE("ranks do not outlive a notice that throws") {
  const SharedNotes notes;
  const Outcome outcome = run([&] {
    SpawnOptions options;
    options.notice = [](const std::string&) { throw std::runtime_error("the notice itself"); };
    try {
      spawn(
          3,
          [&] {
            notes.arrive(rank_here());
            notes.wait_for(3);
            if (rank_here() == 1) return 5;
            wait_for_ever();
          },
          options);
    } catch (const std::runtime_error& error) {
      return std::string(error.what()) == "the notice itself" ? 0 : 1;
    }
    return 2;
  });
  CHECK(outcome.status == 0);
  CHECK(all_end(notes, 3, 0));
}

TEST_CASE("when not all ranks can be started, those that were are ended and the reason is told") {
  const SharedNotes notes;
  const Outcome outcome = run([&] {
    if (::geteuid() == 0 && ::setresuid(54321, 54321, 54321) != 0) return 2;  // root has no limit of processes
    const rlimit few{3, 3};
    if (::setrlimit(RLIMIT_NPROC, &few) != 0) return 3;
    try {
      spawn(8, [&]() -> int {
        notes.arrive(rank_here());
        wait_for_ever();
      });
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return error.kind() == ErrorKind::system ? 0 : 1;
    }
    return 4;
  });
  CHECK(outcome.status == 0);
  CHECK(contains(outcome.err, "tandem: spawn: cannot start rank "));
  CHECK(all_end(notes, 8, 1));
}
