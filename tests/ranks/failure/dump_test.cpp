// SPDX-License-Identifier: Apache-2.0
// A stuck job looked at from outside: every rank writes its flight recorder on SIGUSR1 and when an operation fails, and
// scripts/recorder finds in these dumps who is missing and what differs.
#include <doctest/doctest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "support/ranks.hpp"
#include "support/shared_page.hpp"
#include "support/worlds.hpp"
#include "tandem/collective/all_reduce.hpp"
#include "tandem/collective/barrier.hpp"
#include "tandem/collective/broadcast.hpp"
#include "tandem/collective/send_recv.hpp"

using namespace tandem;
using namespace tandem::test;
using namespace std::chrono_literals;

namespace {

/// A folder for dumps, and what the script says of them.
class Dumps {
 public:
  Dumps() {
    std::string name = (std::filesystem::temp_directory_path() / "tandem-dumps-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    folder_ = name;
  }
  ~Dumps() { std::filesystem::remove_all(folder_); }
  Dumps(const Dumps&) = delete;
  Dumps& operator=(const Dumps&) = delete;

  JoinOptions options() const {
    JoinOptions options;
    options.dump = (folder_ / "made when missing").string();
    options.timeout = 30s;
    return options;
  }
  bool has(int rank) const { return std::filesystem::exists(file(rank)); }
  std::filesystem::path file(int rank) const {
    return folder_ / "made when missing" / ("rank" + std::to_string(rank) + ".json");
  }
  struct Verdict {
    int status;
    std::string text;
    bool says(const std::string& part) const { return text.find(part) != std::string::npos; }
  };
  Verdict look() const {
    const std::string command = std::string("'" TANDEM_TEST_PYTHON "' '" TANDEM_TEST_RECORDER "' --patience 0.2 '") +
                                file(0).parent_path().string() + "' 2>&1";
    FILE* const output = ::popen(command.c_str(), "r");
    REQUIRE(output != nullptr);
    Verdict verdict{};
    for (int c = std::fgetc(output); c != EOF; c = std::fgetc(output)) verdict.text += static_cast<char>(c);
    verdict.status = WEXITSTATUS(::pclose(output));
    return verdict;
  }
  /// Asks the ranks for dumps until the script finds something in them.
  Verdict ask(const SharedPage& notes, int count) const {
    const Deadline patience = Deadline::after(20s);
    while (true) {
      for (int rank = 0; rank < count; ++rank) ::kill(notes->process[rank], SIGUSR1);
      std::this_thread::sleep_for(100ms);
      if (has(0) && has(1) && has(count - 1)) {
        const Verdict verdict = look();
        if (verdict.status != 0 || patience.expired()) return verdict;
      }
      if (patience.expired()) return {-1, "no dumps"};
    }
  }

 private:
  std::filesystem::path folder_;
};

/// Who learns of a failure later only because another rank has ended would name that rank instead.
void fail_together(const std::function<void()>& body, SharedPage& notes, int count) {
  CHECK_THROWS_AS(body(), Error);
  ++notes->seen;
  const Deadline patience = Deadline::after(20s);
  while (notes->seen < count && !patience.expired()) std::this_thread::sleep_for(1ms);
}

std::atomic<int> own_signals{0};
void count_signal(int) { ++own_signals; }

}  // namespace

TEST_CASE("a rank that is stuck in its own code is named, and the job goes on as if nobody had looked") {
  const Dumps dumps;
  SharedPage notes;
  on_ranks(3, [&](int rank) {
    ::signal(SIGUSR1, count_signal);  // a program's own use of the signal goes on
    notes->process[rank] = ::getpid();
    World world = join<TestTransport>(dumps.options());
    std::vector<float> data(1000, 1.0F);
    all_reduce(world, std::span(data), Sum{});
    World part = world.split(rank == 0 ? 0 : 1, rank);
    barrier(part);
    if (rank == 1) {
      const auto verdict = dumps.ask(notes, 3);
      CAPTURE(verdict.text);
      CHECK(verdict.status == 1);
      CHECK(verdict.says(
          "In the world, rank 1 has not called operation 3, all_reduce of 1000 float32, Sum, called from "));
      CHECK(verdict.says("ranks 0 and 2 have"));
      CHECK(verdict.says("The last operation of rank 1 is 2, split, called from "));
      CHECK(verdict.says("dump_test.cpp:"));
    }
    all_reduce(world, std::span(data), Sum{});
    CHECK(data[999] == 9.0F);
    CHECK(own_signals > 0);
  });
  const auto after = dumps.look();  // the dumps are those of the stuck job still
  CHECK(after.status == 1);
}

TEST_CASE("a message that nobody sends is named") {
  const Dumps dumps;
  SharedPage notes;
  on_ranks(3, [&](int rank) {
    notes->process[rank] = ::getpid();
    World world = join<TestTransport>(dumps.options());
    barrier(world);
    float value = 1.0F;
    if (rank == 2) send(world, std::span(&value, 1), 0);
    if (rank == 1) {
      const auto verdict = dumps.ask(notes, 3);
      CAPTURE(verdict.text);
      CHECK(verdict.status == 1);
      CHECK(verdict.says("rank 0 waits in message 1 with rank 1, recv of 1 float32, called from "));
      CHECK(verdict.says("rank 1 has not sent it, its last to rank 0 is none"));
      send(world, std::span(&value, 1), 0);
    }
    if (rank == 0) {
      recv(world, std::span(&value, 1), 1);
      recv(world, std::span(&value, 1), 2);
    }
    barrier(world);
  });
}

TEST_CASE("of an exchange, what does not come is named") {
  const Dumps dumps;
  SharedPage notes;
  on_ranks(2, [&](int rank) {
    notes->process[rank] = ::getpid();
    World world = join<TestTransport>(dumps.options());
    barrier(world);
    const std::vector<float> out(3, 1.0F);
    std::vector<float> in(3);
    if (rank == 1) {
      const auto verdict = dumps.ask(notes, 2);
      CAPTURE(verdict.text);
      CHECK(verdict.says("rank 0 waits in message 1 with rank 1, recv of 3 float32, called from "));
      CHECK(verdict.says("rank 1 has not sent it, its last to rank 0 is none"));
    }
    send_recv(world, std::span<const float>(out), 1 - rank, std::span(in), 1 - rank);
    for (const Record& record : world.record()) CHECK(record.progress == Progress::finished);
  });
}

TEST_CASE("a rank that calls another verb is named, with both calls") {
  const Dumps dumps;
  SharedPage notes;
  on_ranks(3, [&](int rank) {
    World world = join<TestTransport>(dumps.options());
    barrier(world);
    std::vector<float> data(10, 1.0F);
    fail_together(
        [&] {
          if (rank == 1)
            broadcast(world, std::span(data), 0);
          else
            all_reduce(world, std::span(data), Sum{});
        },
        notes, 3);
  });
  const auto verdict = dumps.look();
  CAPTURE(verdict.text);
  CHECK(verdict.status == 1);
  CHECK(verdict.says("In the world, operation 2 is the first that differs, in the operation"));
  CHECK(verdict.says("ranks 0 and 2 have all_reduce of 10 float32, Sum, called from "));
  CHECK(verdict.says("rank 1 has broadcast of 10 float32, root 0, called from "));
}

TEST_CASE("a rank that left a call out is named, with the call") {
  const Dumps dumps;
  SharedPage notes;
  on_ranks(3, [&](int rank) {
    World world = join<TestTransport>(dumps.options());
    std::vector<float> data(10, 1.0F);
    fail_together(
        [&] {
          for (int round = 0; round < 5; ++round) {
            barrier(world);
            if (rank != 2 || round != 3) all_reduce(world, std::span(data), Max{});
            broadcast(world, std::span(data), 1);
          }
        },
        notes, 3);
  });
  const auto verdict = dumps.look();
  CAPTURE(verdict.text);
  CHECK(verdict.status == 1);
  CHECK(verdict.says("operation 11 is the first that differs"));
  CHECK(verdict.says("Rank 2 seems to have left out all_reduce of 10 float32, Max, called from "));
}

TEST_CASE("a dead rank is the one without a dump") {
  const Dumps dumps;
  const auto endings = run_ranks(3, [&](int rank) {
    World world = join<TestTransport>(dumps.options());
    barrier(world);
    if (rank == 1) ::kill(::getpid(), SIGKILL);
    CHECK_THROWS_AS(barrier(world), Error);
  });
  CHECK(endings[0].clean());
  CHECK(endings[2].clean());
  const auto verdict = dumps.look();
  CAPTURE(verdict.text);
  CHECK(verdict.status == 1);
  CHECK(verdict.says("Rank 1 has no dump"));
  CHECK(verdict.says("In the world, operation 2, barrier, called from "));
  CHECK(verdict.says("waited for rank 1 (begun "));
  CHECK(verdict.says("has failed: tandem: barrier (operation 2"));
}

TEST_CASE("dumps are whole at any moment, while communicators come and go") {
  const Dumps dumps;
  on_ranks(2, [&](int rank) {
    World world = join<TestTransport>(dumps.options());
    std::atomic<bool> through{false};
    std::thread asker([&] {
      while (!through) {
        ::kill(::getpid(), SIGUSR1);
        std::this_thread::sleep_for(2ms);
        if (rank == 0 && dumps.has(0) && dumps.has(1)) CHECK(dumps.look().status != 2);
      }
    });
    for (int turn = 0; turn < 100; ++turn) {
      World part = world.split(turn % 2 == 0 ? 0 : world.rank(), 0);
      std::vector<int> data(10, 1);
      all_reduce(part, std::span(data), Sum{});
      if (data[9] != part.size()) FAIL_CHECK("turn " << turn);
    }
    through = true;
    asker.join();
  });
}

TEST_CASE("nothing is installed or written unless asked, and a forked child writes nothing for its parent") {
  const Dumps dumps;
  on_ranks(1, [&](int) {
    struct sigaction now {};
    {
      const World world = join<TestTransport>();
      ::sigaction(SIGUSR1, nullptr, &now);
      CHECK((now.sa_handler == SIG_DFL));
    }
    ::setenv("TANDEM_DUMP", dumps.options().dump->c_str(), 1);  // as good as the option
    World world = join<TestTransport>();
    const pid_t child = ::fork();
    if (child == 0) {
      ::raise(SIGUSR1);
      ::unsetenv("TANDEM_DUMP");
      JoinOptions alone;
      alone.identity = Identity{0, 1, 0, 1, fresh_rendezvous(), "the test"};
      World own = join<TestTransport>(alone);  // a rank itself now, that has not asked
      ::raise(SIGUSR1);
      own.poison(Error(ErrorKind::poisoned, "on purpose", 0, 0));
      ::_exit(dumps.has(0) ? 1 : 0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
    ::raise(SIGUSR1);
    CHECK(dumps.has(0));
    CHECK(dumps.look().status == 0);
    CHECK(dumps.look().says("rank 0 agrees"));
  });
}

TEST_CASE("a folder that cannot be written into is named at the join") {
  on_ranks(1, [](int) {
    JoinOptions options;
    options.dump = "/proc/no such folder";
    try {
      const World world = join<TestTransport>(options);
      FAIL_CHECK("joined");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::environment);
      CHECK(std::string(error.what()).find("\"/proc/no such folder\" (TANDEM_DUMP): ") != std::string::npos);
    }
  });
}
