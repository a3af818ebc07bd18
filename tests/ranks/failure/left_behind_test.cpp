// SPDX-License-Identifier: Apache-2.0
// Nothing is left behind, whatever ends a rank and however often: no descriptor, no mapping, no process, no name.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "support/process_state.hpp"
#include "support/ranks.hpp"
#include "support/traffic.hpp"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr int turns = 200;
/// Threads' stacks and the allocator's arenas come and go; something that is left once a turn shows all the same.
constexpr int some = 20;

struct Held {
  std::size_t descriptors = open_descriptors();
  Mappings mapped = mappings();
};
void must_not_have_grown(const Held& before, const Held& after) {
  CHECK(after.descriptors <= before.descriptors);
  CHECK(after.mapped.windows == 0);
  CHECK(after.mapped.all < before.mapped.all + some);
  // Twenty communicators' control memory; the arenas of 200 worlds would be far more.
  CHECK(after.mapped.pages < before.mapped.pages + some * (std::size_t{8} << 20) / page_bytes);
}

}  // namespace

TEST_CASE("200 killed ranks leave nothing to their survivor, which joins again each time") {
  const auto shared_memory = entries("/dev/shm");
  on_ranks(
      1,
      [](int) {
        const std::string name = fresh_rendezvous() + "-";
        std::optional<Held> before;
        for (int turn = 0; turn < turns; ++turn) {
          const auto traffic = all_traffic[static_cast<std::size_t>(turn) % std::size(all_traffic)];
          const pid_t victim = ::fork();
          if (victim == 0) {
            World world = join_again(name + std::to_string(turn), 1, 2);
            barrier(world);
            TrafficBuffers buffers(world);
            for (int round = 0;; ++round) {
              run_once(world, traffic, buffers, {}, [round] {
                if (round == 3) ::raise(SIGKILL);
              });
            }
          }
          {
            World world = join_again(name + std::to_string(turn), 0, 2);
            barrier(world);
            const Error error = run_until_error(world, traffic);
            if (error.kind() != ErrorKind::dead_peer || error.peer() != 1) FAIL_CHECK("turn " << turn << error.what());
          }
          int status = 0;
          CHECK(::waitpid(victim, &status, 0) == victim);
          CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
          if (turn == 20) before.emplace();
        }
        must_not_have_grown(*before, Held{});
        CHECK((::waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD));
      },
      std::chrono::seconds(100));
  CHECK((::waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD));
  CHECK(entries("/dev/shm") == shared_memory);
}

TEST_CASE("200 joins hold no more than the first few") {
  const auto shared_memory = entries("/dev/shm");
  const std::string name = fresh_rendezvous() + "-";
  on_ranks(
      2,
      [&](int rank) {
        std::optional<Held> before;
        for (int turn = 0; turn < turns; ++turn) {
          {
            World world = join_again(name + std::to_string(turn), rank, 2);
            World part = world.split(0, 0);
            std::vector<float> data(20000, 1.0F);
            all_reduce(part, std::span(data), Sum{});
            ArenaArray<float> registered(world.arena(), 20000);
            for (float& it : registered) it = 1.0F;
            all_reduce(world, std::span(registered.data(), registered.size()), Sum{});
            if (data[0] != 2.0F || registered[19999] != 2.0F) FAIL_CHECK("turn " << turn);
          }
          if (turn == 5) before.emplace();
        }
        must_not_have_grown(*before, Held{});
      },
      std::chrono::seconds(100));
  CHECK(entries("/dev/shm") == shared_memory);
}

TEST_CASE("C023: ranks that a signal, exit(1) or abort() ends leave no name and no process") {
  const auto shared_memory = entries("/dev/shm");
  const auto endings = run_ranks(4, [](int rank) {
    const rlimit none{0, 0};  // no core file of abort()
    ::setrlimit(RLIMIT_CORE, &none);
    ::signal(SIGABRT, SIG_DFL);  // doctest has handlers of its own
    ::signal(SIGINT, SIG_DFL);
    ::signal(SIGTERM, SIG_DFL);
    World world = join<TestTransport>();
    ArenaArray<float> registered(world.arena(), 100000);
    for (float& it : registered) it = 1.0F;
    all_reduce(world, std::span(registered.data(), registered.size()), Sum{});
    if (rank == 0) std::abort();
    if (rank == 1) std::exit(1);
    ::raise(rank == 2 ? SIGINT : SIGTERM);
  });
  CHECK(endings[0].signal == SIGABRT);
  CHECK(endings[1].code == 1);
  CHECK(endings[2].signal == SIGINT);
  CHECK(endings[3].signal == SIGTERM);
  CHECK(entries("/dev/shm") == shared_memory);
}
