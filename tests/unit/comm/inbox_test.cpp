// SPDX-License-Identifier: Apache-2.0
// The inbox gives each communicator its own messages, in the order in which they came, however the bytes are cut.
#include "tandem/comm/inbox.hpp"

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <vector>

using tandem::Inbox;
using tandem::detail::Envelope;

namespace {

using Bytes = std::vector<std::byte>;

/// A header and `count` bytes, no two messages alike.
Bytes message(std::uint32_t communicator, std::uint64_t number, std::size_t count) {
  Envelope header;
  header.number = number;
  header.fingerprint.communicator = communicator;
  header.fingerprint.count = count;
  header.fingerprint.element_bytes = 1;
  const auto begin = std::as_bytes(std::span(&header, 1));
  Bytes bytes(begin.begin(), begin.end());
  std::mt19937 random(static_cast<unsigned>(number * 31 + communicator));
  for (std::size_t i = 0; i < count; ++i) bytes.push_back(static_cast<std::byte>(random()));
  return bytes;
}
void append(Bytes& to, std::span<const std::byte> bytes) { to.insert(to.end(), bytes.begin(), bytes.end()); }

}  // namespace

TEST_CASE("messages of several communicators are sorted, through any cuts and in any order of receivers") {
  std::mt19937 random(3);
  Bytes channel;
  std::map<std::uint32_t, Bytes> expected;
  for (std::uint64_t number = 0; number < 300; ++number) {
    const auto communicator = static_cast<std::uint32_t>(random() % 3 + 7);
    const Bytes next = message(communicator, number, number % 5 == 0 ? 0 : random() % 3000);
    append(channel, next);
    append(expected[communicator], next);
  }
  Inbox inbox;
  std::map<std::uint32_t, Bytes> got;
  std::span<const std::byte> left = channel;
  int direct = 0;
  for (int turn = 0; turn < 1000000 && (!left.empty() || got != expected); ++turn) {
    const auto wanted = static_cast<std::uint32_t>(random() % 3 + 7);
    Bytes piece(random() % 2000 + 1);
    const auto take = [&](std::size_t count) { append(got[wanted], std::span(piece).first(count)); };
    if (const std::size_t count = inbox.take(wanted, piece)) {
      take(count);
    } else if (const auto due = inbox.due(wanted); due != 0 && !left.empty()) {
      const std::size_t part = std::min({static_cast<std::size_t>(due), piece.size(), left.size()});
      std::copy_n(left.begin(), part, piece.begin());
      left = left.subspan(part);
      inbox.passed(part);
      take(part);
      ++direct;
    } else if (!left.empty()) {
      const auto seen = left.first(std::min<std::size_t>(left.size(), random() % 700 + 1));
      if (random() % 2 == 0) {
        const std::size_t used = inbox.sort(seen, wanted);
        CHECK(used > 0);
        left = left.subspan(used);
      } else {
        inbox.sort_all(seen);
        left = left.subspan(seen.size());
      }
    }
  }
  CHECK(got == expected);
  CHECK(direct > 0);  // not all of it was copied twice
}

TEST_CASE("a large message that nobody asked for is emptied in small pieces") {
  const Bytes all = message(1, 1, 5 << 20);
  Inbox inbox;
  inbox.sort_all(all);
  CHECK(inbox.kept(1) == all.size());
  CHECK(inbox.kept(2) == 0);
  Bytes piece(10007);
  Bytes got;
  while (inbox.kept(1) != 0) append(got, std::span(piece).first(inbox.take(1, piece)));
  CHECK(got == all);
  CHECK(inbox.take(1, piece) == 0);
}

TEST_CASE("what a communicator that is gone never received is forgotten") {
  Inbox inbox;
  inbox.sort_all(message(1, 1, 1000));
  inbox.sort_all(message(2, 1, 10));
  inbox.forget(1);
  CHECK(inbox.kept(1) == 0);
  CHECK(inbox.kept(2) == sizeof(Envelope) + 10);
}
