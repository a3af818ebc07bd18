// SPDX-License-Identifier: Apache-2.0
// Fingerprints: each field that must agree is compared and named with both values; call sites alone are no mismatch.
#include "tandem/comm/fingerprint.hpp"

#include <doctest/doctest.h>

#include <functional>

using namespace tandem;

TEST_CASE("every field of a call is compared and put into words") {
  const CallSite site{"train.cpp", "main", 12};
  const Call call{Verb::all_reduce, Dtype::float32, 0, 4, -1, 1, 100, site};
  const Fingerprint mine = Fingerprint::of(call, 7);
  CHECK(mine.agrees(mine));
  struct Change {
    std::function<void(Call&)> apply;
    const char* said;
  };
  const Change changes[] = {
      {[](Call& it) { it.verb = Verb::broadcast; }, "the operation is all_reduce on rank 0 and broadcast on rank 3"},
      {[](Call& it) { it.dtype = Dtype::int32; }, "dtype is float32 on rank 0 and int32 on rank 3"},
      {[](Call& it) { it.element_bytes = 12; }, "bytes is 4 on rank 0 and 12 on rank 3"},
      {[](Call& it) { it.count = 99; }, "elements is 100 on rank 0 and 99 on rank 3"},
      {[](Call& it) { it.reduction = 2; }, "the reduction is"},
      {[](Call& it) { it.root = 1; }, "root is -1 on rank 0 and 1 on rank 3"},
      {[](Call& it) { it.algorithm = 2; }, "the forced algorithm is"},
      {[](Call& it) { it.order = 9; },
       "the order of addition is GlooRing on rank 0 and a user's own (number 9) on rank 3"},
      {[](Call& it) { it.layout = 5; }, "the hash of the counts by rank is 0 on rank 0 and 5 on rank 3"},
  };
  for (const Change& change : changes) {
    Call other = call;
    change.apply(other);
    const Fingerprint theirs = Fingerprint::of(other, 7);
    CHECK_FALSE(mine.agrees(theirs));
    CAPTURE(difference(mine, 0, theirs, 3));
    CHECK(difference(mine, 0, theirs, 3).find(change.said) != std::string::npos);
  }
  CHECK_FALSE(mine.agrees(Fingerprint::of(call, 8)));
  CHECK(difference(mine, 0, Fingerprint::of(call, 8), 3).find("communicator is 7 on rank 0 and 8 on rank 3") !=
        std::string::npos);
}

TEST_CASE("two factors of PreMulSum are told apart, and each rank's words have its own") {
  Call call{Verb::all_reduce, Dtype::float32, 0, 4, -1, 17 | 5 << 8, 100, {"train.cpp", "main", 12}};
  call.factor = 0.5;
  const Fingerprint mine = Fingerprint::of(call, 7);
  Call other = call;
  other.reduction = 17 | 6 << 8;
  other.factor = 1.0 / 3.0;
  CHECK(difference(mine, 0, Fingerprint::of(other, 7), 3, call.factor) ==
        "the factor of PreMulSum is 0.5 on rank 0 and another on rank 3");
  CHECK(call.origin() == "with the factor 0.5 from train.cpp:12 (main)");
  CHECK(other.origin() == "with the factor 0.3333333333333333 from train.cpp:12 (main)");
  other.reduction = 16 | 5 << 8;
  CHECK(difference(mine, 0, Fingerprint::of(other, 7), 3, call.factor) ==
        "the reduction is PreMulSum of float64 on rank 0 and PreMulSum of float32 on rank 3");
  other.reduction = 1;
  CHECK(other.origin() == "from train.cpp:12 (main)");
  CHECK(reduction_text(11) == "LogicalXor");
}

TEST_CASE("another call site is seen but agrees") {
  Call call{Verb::barrier, Dtype::opaque, 0, 1, -1, 0, 0, {"a.cpp", "f", 1}};
  const Fingerprint mine = Fingerprint::of(call, 1);
  call.site.line = 2;
  const Fingerprint line = Fingerprint::of(call, 1);
  CHECK(mine.agrees(line));
  CHECK(mine.site != line.site);
  call.site = {"b.cpp", "f", 1};
  CHECK(mine.site != Fingerprint::of(call, 1).site);
  call.site = {"/elsewhere/built/a.cpp", "f", 1};
  CHECK(CallSite{"/here/built/a.cpp", "f", 1}.hash() == call.site.hash());
  CHECK(call.site.text() == "/elsewhere/built/a.cpp:1 (f)");
}
