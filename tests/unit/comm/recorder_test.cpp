// SPDX-License-Identifier: Apache-2.0
// The flight recorder keeps the last 1,024 operations in order, and the ledger its balance.
#include "tandem/comm/recorder.hpp"

#include <doctest/doctest.h>

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
