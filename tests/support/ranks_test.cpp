// SPDX-License-Identifier: Apache-2.0
// The rank harness itself: a failure in one rank must never pass unseen.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "support/ranks.hpp"

using tandem::test::Ending;
using tandem::test::run_ranks;

TEST_CASE("every rank runs with its own identity") {
  const std::vector<Ending> endings = run_ranks(3, [](int rank) {
    const bool right = std::getenv("TANDEM_RANK") == std::to_string(rank) &&
                       std::getenv("TANDEM_SIZE") == std::string("3") && std::getenv("TANDEM_RENDEZVOUS") != nullptr;
    _exit(right ? 10 + rank : 1);
  });
  REQUIRE(endings.size() == 3);
  for (std::size_t rank = 0; rank < 3; ++rank) CHECK(endings[rank].code == static_cast<int>(10 + rank));
}

TEST_CASE("what goes wrong in one rank is reported for that rank") {
  SUBCASE("an exception") {
    const auto endings = run_ranks(2, [](int rank) {
      if (rank == 1) throw std::runtime_error("on purpose");
    });
    CHECK(endings[0].clean());
    CHECK(endings[1].code == 1);
  }
  SUBCASE("a signal") {
    const auto endings = run_ranks(2, [](int rank) {
      if (rank == 0) raise(SIGKILL);
    });
    CHECK(endings[0].signal == SIGKILL);
    CHECK(endings[1].clean());
  }
  SUBCASE("a rank that never ends, stopped or not") {
    const auto endings = run_ranks(
        2, [](int rank) { rank == 0 ? static_cast<void>(pause()) : static_cast<void>(raise(SIGSTOP)); },
        std::chrono::seconds(1));
    CHECK(endings[0].code == 124);
    CHECK(endings[1].code == 124);
  }
}

// Its output would look like a failure of this binary, so doctest's words are sent nowhere.
TEST_CASE("a failed assertion inside a rank is its status") {
  const auto endings = run_ranks(3, [](int rank) {
    if (rank == 0) return;
    if (freopen("/dev/null", "w", stdout) == nullptr) _exit(2);
    if (rank == 1) CHECK(1 + 1 == 3);
    if (rank == 2) REQUIRE(1 + 1 == 3);
  });
  CHECK(endings[0].clean());
  CHECK(endings[1].code == 1);
  CHECK(endings[2].code == 1);
}
