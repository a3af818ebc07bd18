// SPDX-License-Identifier: Apache-2.0
// The flight recorder keeps the last 1,024 operations in order, and the ledger its balance.
#include "tandem/comm/recorder.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "tandem/comm/ledger.hpp"

using namespace tandem;

TEST_CASE("the recorder tells finished operations from begun ones") {
  Recorder recorder;
  Call call;
  call.verb = Verb::all_gather;
  call.count = 5;
  const auto first = recorder.begin(1, call);
  recorder.begin(2, call);
  recorder.finish(first);
  const auto records = recorder.last();
  REQUIRE(records.size() == 2);
  CHECK(records[0].sequence == 1);
  CHECK(records[0].progress == Progress::finished);
  CHECK(records[0].call.verb == Verb::all_gather);
  CHECK(records[1].progress == Progress::begun);
  CHECK(records[0].begun_at <= records[1].begun_at);
}

TEST_CASE("the recorder forgets the oldest") {
  Recorder recorder;
  const auto lost = recorder.begin(1, {});
  for (std::uint64_t i = 2; i <= 3000; ++i) recorder.begin(i, {});
  recorder.finish(lost);  // must not mark the operation that took its place
  const auto records = recorder.last();
  REQUIRE(records.size() == Recorder::capacity);
  for (std::size_t i = 0; i < records.size(); ++i) {
    REQUIRE(records[i].sequence == 3000 - Recorder::capacity + 1 + i);
    REQUIRE(records[i].progress == Progress::begun);
  }
}

TEST_CASE("the recorder knows for whom an operation that failed had waited") {
  Recorder recorder;
  const auto one = recorder.begin(1, {});
  const auto two = recorder.begin(2, {});
  CHECK(recorder.last()[0].waits_for == -1);
  recorder.waits(one, 0);
  recorder.waits(one, 3);
  recorder.finish(two);
  CHECK(recorder.at(one)->waits_for == 3);
  CHECK(recorder.at(one)->progress == Progress::begun);
  recorder.fail(one);
  CHECK(recorder.at(one)->waits_for == 3);
  CHECK(recorder.at(one)->progress == Progress::failed);
  CHECK(recorder.at(two)->waits_for == -1);
}

// As a dump sees it: from a thread that knows nothing of what the communicator's thread is doing.
TEST_CASE("a record that is seen from elsewhere is whole, or known to be torn") {
  Recorder recorder;
  std::atomic<bool> through{false};
  std::thread writer([&] {
    for (std::uint64_t i = 0; !through; ++i) {
      Call call;
      call.count = 3 * i;
      call.reduction = static_cast<std::uint32_t>(i);
      call.layout = ~static_cast<std::uint32_t>(i);
      recorder.begin(i, call);
    }
  });
  for (std::uint64_t whole = 0; whole < 100000;) {
    const std::uint64_t end = recorder.count();
    for (std::uint64_t i = end; i-- > 0 && end - i <= Recorder::capacity;) {  // the oldest are overwritten meanwhile
      const auto record = recorder.at(i);
      if (!record) break;
      ++whole;
      const Call& call = record->call;
      const bool right = record->sequence == i && call.count == 3 * i &&
                         call.reduction == static_cast<std::uint32_t>(i) &&
                         call.layout == ~static_cast<std::uint32_t>(i);
      if (!right) FAIL_CHECK("ticket " << i << " shows operation " << record->sequence);
    }
  }
  through = true;
  writer.join();
  const std::uint64_t end = recorder.count();
  REQUIRE(end > Recorder::capacity);
  CHECK(recorder.at(end - 1)->sequence == end - 1);
  CHECK(recorder.at(end - Recorder::capacity + 1)->sequence == end - Recorder::capacity + 1);
  CHECK_FALSE(recorder.at(end - Recorder::capacity));
}

TEST_CASE("ledgers subtract") {
  const Ledger early{2, 100, 100};
  const Ledger late{5, 180, 170};
  const Ledger used = late - early;
  CHECK(used.operations == 3);
  CHECK(used.predicted == 80);
  CHECK(used.measured == 70);
  CHECK(early.balanced());
  CHECK_FALSE(used.balanced());
}
