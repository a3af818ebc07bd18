// SPDX-License-Identifier: Apache-2.0
// A rank is stopped in the middle of a fold, just before it would store into the others' buffers. What is stopped
// between two of its instructions elsewhere: see matrix_test.cpp.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "support/ranks.hpp"
#include "support/samples.hpp"
#include "support/shared_page.hpp"
#include "support/worlds.hpp"
#include "tandem/collective/all_reduce.hpp"
#include "tandem/collective/barrier.hpp"

using namespace tandem;
using namespace tandem::test;
using namespace std::chrono_literals;

namespace {
/// Stops its process between its elements: a straggler that has read everything and has not stored yet.
struct StopsOnce {
  static inline bool armed = false;
  float operator()(float a, float b) const {
    if (armed) {
      armed = false;
      ::raise(SIGSTOP);
    }
    return a + b;  // never what the survivors have put there
  }
};
}  // namespace

// The straggler is in the middle of a direct all-reduce when it stops: what it stores after it resumed would go into
// buffers that the survivors have long filled with something else.
TEST_CASE("a straggler that resumes in a direct all-reduce reaches nobody's memory") {
  const int count = ranks();
  SharedPage notes;
  const auto endings = run_ranks(count, [&](int rank) {
    const int victim = count - 1;
    World world = join<TestTransport>();
    CallOptions options;
    options.timeout = 500ms;
    notes->process[rank] = ::getpid();
    ArenaArray<float> data(world.arena(), 1 << 20);
    for (float& it : data) it = static_cast<float>(rank);
    barrier(world);
    StopsOnce::armed = rank == victim;
    try {
      all_reduce<DirectIfAny>(world, std::span(data.data(), data.size()), StopsOnce{}, options);
      // The straggler has all it needs once it has done its own part: it learns of the failure in its next call.
      CHECK(rank == victim);
      barrier(world);
      FAIL_CHECK("rank " << rank << " noticed nothing");
    } catch (const Error& error) {
      CAPTURE(std::string(error.what()));
      if (rank == victim) {
        notes->phase = 2;
        return;
      }
      CHECK(error.kind() == ErrorKind::timeout);
      CHECK(error.peer() == victim);
    }
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i % 1000 + 7);
    if (notes->seen.fetch_add(1) + 1 == count - 1) ::kill(notes->process[victim], SIGCONT);
    const Deadline patience = Deadline::after(10s);
    while (notes->phase != 2 && !patience.expired()) std::this_thread::sleep_for(5ms);
    CHECK(notes->phase == 2);
    std::size_t changed = 0;
    for (std::size_t i = 0; i < data.size(); ++i) changed += data[i] != static_cast<float>(i % 1000 + 7) ? 1 : 0;
    CHECK(changed == 0);
  });
  for (const auto& ending : endings) CHECK(ending.clean());
}
