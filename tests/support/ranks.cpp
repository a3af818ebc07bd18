// SPDX-License-Identifier: Apache-2.0
// The forking behind ranks.hpp.
#include "support/ranks.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>

namespace tandem::test {
namespace {

[[noreturn]] void run_rank(int rank, int count, const std::string& rendezvous, pid_t parent,
                           const std::function<void(int)>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  const std::string own = std::to_string(rank);
  const std::string all = std::to_string(count);
  setenv("TANDEM_RANK", own.c_str(), 1);
  setenv("TANDEM_SIZE", all.c_str(), 1);
  setenv("TANDEM_LOCAL_RANK", own.c_str(), 1);
  setenv("TANDEM_LOCAL_SIZE", all.c_str(), 1);
  setenv("TANDEM_RENDEZVOUS", rendezvous.c_str(), 1);
  const int before = failed_assertions();
  int status = 0;
  try {
    body(rank);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d of %d threw: %s\n", rank, count, error.what());
    status = 1;
  } catch (...) {
    // A failed REQUIRE, which doctest has reported.
    status = 1;
  }
  if (failed_assertions() != before) status = 1;
  std::fflush(nullptr);
  _exit(status);
}

}  // namespace

int ranks() {
  const char* const text = std::getenv("TANDEM_TEST_RANKS");
  const int count = text == nullptr ? 2 : std::atoi(text);
  if (count < 1) throw std::runtime_error("TANDEM_TEST_RANKS must be a number of at least 1");
  return count;
}

std::string fresh_rendezvous() {
  static int calls = 0;
  return "tandem-test-" + std::to_string(getpid()) + "-" + std::to_string(++calls);
}

std::vector<Ending> run_ranks(int count, const std::function<void(int rank)>& body, std::chrono::seconds limit) {
  const std::string rendezvous = fresh_rendezvous();
  const pid_t parent = getpid();
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < count; ++rank) {
    const pid_t child = fork();
    if (child == 0) run_rank(rank, count, rendezvous, parent, body);
    if (child < 0) {
      for (const pid_t started : children) {
        kill(started, SIGKILL);
        waitpid(started, nullptr, 0);
      }
      throw std::runtime_error("fork failed");
    }
    children.push_back(child);
  }

  std::vector<Ending> endings(static_cast<std::size_t>(count));
  std::vector<bool> ended(static_cast<std::size_t>(count), false);
  const auto deadline = std::chrono::steady_clock::now() + limit;
  bool late = false;
  for (int running = count; running > 0;) {
    for (std::size_t rank = 0; rank < children.size(); ++rank) {
      int status = 0;
      if (ended[rank] || waitpid(children[rank], &status, WNOHANG) != children[rank]) continue;
      ended[rank] = true;
      --running;
      if (WIFSIGNALED(status)) {
        endings[rank].signal = WTERMSIG(status);
        if (late) endings[rank] = {124, 0};
      } else {
        endings[rank].code = WEXITSTATUS(status);
      }
    }
    if (!late && std::chrono::steady_clock::now() >= deadline) {
      late = true;
      for (std::size_t rank = 0; rank < children.size(); ++rank) {
        if (!ended[rank]) kill(children[rank], SIGKILL);
      }
    }
    const timespec pause{0, 500'000};
    nanosleep(&pause, nullptr);
  }
  return endings;
}

void on_ranks(int count, const std::function<void(int rank)>& body, std::chrono::seconds limit) {
  const std::vector<Ending> endings = run_ranks(count, body, limit);
  for (std::size_t rank = 0; rank < endings.size(); ++rank) {
    CAPTURE(rank);
    CAPTURE(count);
    CHECK(endings[rank].code == 0);
    CHECK(endings[rank].signal == 0);
  }
}

}  // namespace tandem::test
