// SPDX-License-Identifier: Apache-2.0
// spawn when all goes well: who the ranks are, what they inherit, what stays as it was in the parent.
#include <cstring>
#include <thread>

#include "program.hpp"
#include "tandem/transport/rendezvous.hpp"

using namespace tandem;
using namespace tandem::test;

TEST_CASE("each rank is one of n, and they can meet") {
  for (const int ranks : {1, 2, 3, 5}) {
    CAPTURE(ranks);
    const SharedNotes notes;
    const int status = spawn(ranks, [&]() -> int {
      const Identity me = identity_from_environment();
      const bool right = launched() && me.size == ranks && me.local_size == ranks && me.rank == me.local_rank;
      const auto all = meet(me.rendezvous, me.rank, me.size, {}, Deadline::after(std::chrono::seconds(20)));
      ++notes->count[me.rank];
      return right && all.size() == static_cast<std::size_t>(ranks) ? 0 : 1;
    });
    CHECK(status == 0);
    for (int rank = 0; rank < 8; ++rank) CHECK(notes->count[rank] == (rank < ranks ? 1 : 0));
  }
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);  // no child is left
}

TEST_CASE("two jobs of one program do not meet each other") {
  const auto job = [] {
    const Identity me = identity_from_environment();
    meet(me.rendezvous, me.rank, me.size, {}, Deadline::after(std::chrono::seconds(20)));
    return 0;
  };
  Program first([&] { return spawn(3, job); });
  Program second([&] { return spawn(3, job); });
  CHECK(first.finish().status == 0);
  CHECK(second.finish().status == 0);
}

TEST_CASE("a launcher around the program does not confuse its own ranks") {
  const Outcome outcome = run([] {
    for (const char* const name :
         {"RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "SLURM_STEP_ID"}) {
      ::setenv(name, "0", 1);
    }
    for (const char* const name :
         {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"}) {
      ::setenv(name, "1", 1);
    }
    return spawn(3, [] { return identity_from_environment().size == 3 ? 0 : 1; });
  });
  CHECK(outcome.status == 0);
}

TEST_CASE("signals: ranks start with the defaults, the parent keeps its own handlers and mask") {
  const Outcome outcome = run([] {
    static volatile sig_atomic_t handled = 0;
    struct sigaction mine {};
    mine.sa_handler = [](int) { handled = handled + 1; };
    ::sigaction(SIGINT, &mine, nullptr);
    ::sigaction(SIGUSR1, &mine, nullptr);
    ::signal(SIGCHLD, SIG_IGN);  // would throw statuses away
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
    const int status = spawn(2, [] {
      struct sigaction action {};
      sigset_t mask;
      ::sigprocmask(SIG_SETMASK, nullptr, &mask);
      for (const int signal : {SIGINT, SIGUSR1, SIGTERM, SIGCHLD}) {
        ::sigaction(signal, nullptr, &action);
        if (action.sa_handler != SIG_DFL || sigismember(&mask, signal) != 0) return 1;
      }
      return 3;  // and a status that must not be lost
    });
    struct sigaction after {};
    ::sigaction(SIGINT, nullptr, &after);
    sigset_t mask;
    ::sigprocmask(SIG_SETMASK, nullptr, &mask);
    const bool kept = after.sa_handler == mine.sa_handler && sigismember(&mask, SIGUSR2) == 1 &&
                      sigismember(&mask, SIGINT) == 0 && sigismember(&mask, SIGTERM) == 0;
    ::sigaction(SIGCHLD, nullptr, &after);
    ::raise(SIGINT);
    return kept && after.sa_handler == SIG_IGN && handled == 1 && status == 3 ? 0 : 1;
  });
  CHECK(outcome.status == 0);
}

TEST_CASE("other children of the program are left alone") {
  const Outcome outcome = run([] {
    const pid_t own = ::fork();
    if (own == 0) ::_exit(5);
    pause_for(0.05);
    const int status = spawn(2, [] { return 0; });
    int ending = 0;
    return status == 0 && ::waitpid(own, &ending, 0) == own && WEXITSTATUS(ending) == 5 ? 0 : 1;
  });
  CHECK(outcome.status == 0);
}

TEST_CASE("no file is left open, and ranks do not inherit each other's") {
  const auto open_files = [] {
    int count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
    return count;
  };
  for (const bool prefix : {false, true}) {
    const Outcome outcome = run([&] {
      const SharedNotes notes;
      const int before = open_files();
      SpawnOptions options;
      options.prefix_output = prefix;
      const int status = spawn(
          4, [&] { return notes->count[rank_here()] = open_files(), 0; }, options);
      for (int rank = 0; rank < 4; ++rank) {
        if (notes->count[rank] > before + 1) return 2;  // the pipe for an exception's text, and nothing else
      }
      return status == 0 && open_files() == before ? 0 : 1;
    });
    CHECK(outcome.status == 0);
  }
}

TEST_CASE("input goes to rank 0") {
  const Outcome outcome = run([] {
    const int file = ::memfd_create("input", 0);
    if (::write(file, "hello", 5) != 5 || ::lseek(file, 0, SEEK_SET) != 0 || ::dup2(file, 0) != 0) return 2;
    return spawn(3, [] {
      char text[8];
      return ::read(0, text, sizeof(text)) == (rank_here() == 0 ? 5 : 0) ? 0 : 1;
    });
  });
  CHECK(outcome.status == 0);
}

TEST_CASE("C051: a rank ends as a program does: objects with static lifetime are destroyed, buffers are written") {
  const SharedNotes notes;
  const Outcome outcome = run([&] {
    return spawn(2, [&] {
      struct Last {
        const SharedNotes* notes;
        int rank;
        ~Last() { (*notes)->count[rank] = 7; }
      };
      static Last last{&notes, rank_here()};
      std::printf("no line end");
      return 0;
    });
  });
  CHECK(outcome.status == 0);
  CHECK(notes->count[0] == 7);
  CHECK(notes->count[1] == 7);
  CHECK(outcome.out == "no line endno line end");
}

TEST_CASE("what the parent had printed is not printed again") {
  const Outcome outcome = run([] {
    std::printf("once");
    return spawn(3, [] { return 0; });
  });
  CHECK(outcome.out == "once");
}

TEST_CASE("a program that runs threads already is refused in one sentence") {
  if (detail::thread_sanitized) {
    MESSAGE("left out here: ThreadSanitizer's own threads cannot be told from the program's");
    return;
  }
  const Outcome outcome = run([] {
    std::atomic<bool> done{false};
    std::thread other([&] {
      while (!done) pause_for(0.001);
    });
    int result = 1;
    try {
      spawn(2, [] { return 0; });
    } catch (const Error& error) {
      std::fprintf(stderr, "%s", error.what());
      result = error.kind() == ErrorKind::environment ? 0 : 1;
    }
    done = true;
    other.join();
    return result == 0 ? spawn(2, [] { return 0; }) : result;  // and possible again once it has ended
  });
  CHECK(outcome.status == 0);
  CHECK(contains(outcome.err, "tandem: spawn: this process already runs"));
  CHECK(contains(outcome.err, "call spawn first"));
}

TEST_CASE("what cannot be asked for is refused") {
  for (const int ranks : {0, -1, 1025}) {
    CAPTURE(ranks);
    CHECK_THROWS_WITH_AS(spawn(ranks, [] { return 0; }),
                         doctest::Contains((std::to_string(ranks) + " ranks cannot be").c_str()), Error);
  }
  CHECK_THROWS_AS(spawn(2, nullptr), Error);
}
