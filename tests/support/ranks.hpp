// SPDX-License-Identifier: Apache-2.0
// Ranks as real processes for tests: fork, run a body in each with TANDEM_* set, collect how each one ended.
// Deliberately not tandem::spawn: a test of a dying rank needs the others to live on and be looked at.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace tandem::test {

/// How many ranks this run of the test is for: TANDEM_TEST_RANKS as ctest sets it, 2 when run by hand.
int ranks();

/// Assertions that failed so far in this process.
int failed_assertions() noexcept;

/// A rendezvous name no other test uses.
std::string fresh_rendezvous();

/// How one rank ended: `code` is its exit status (0: body returned and no assertion failed; 1: one failed or something
/// was thrown; 124: killed at the time limit) or, with `signal` not 0, the signal that ended it.
struct Ending {
  int code = 0;
  int signal = 0;
  bool clean() const noexcept { return code == 0 && signal == 0; }
};

/// Forks `count` ranks with TANDEM_RANK, TANDEM_SIZE, TANDEM_LOCAL_RANK, TANDEM_LOCAL_SIZE and TANDEM_RENDEZVOUS set,
/// runs body(rank) in each, and waits for all. CHECK and REQUIRE work inside. A rank alive at the limit is killed (also
/// when it is stopped). The caller must not have started threads, nor have called libtorch.
std::vector<Ending> run_ranks(int count, const std::function<void(int rank)>& body,
                              std::chrono::seconds limit = std::chrono::seconds(40));

/// run_ranks, and a failed CHECK in this process for each rank that did not end cleanly.
void on_ranks(int count, const std::function<void(int rank)>& body,
              std::chrono::seconds limit = std::chrono::seconds(40));

}  // namespace tandem::test
