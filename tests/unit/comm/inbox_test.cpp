// SPDX-License-Identifier: Apache-2.0
// The inbox gives bytes back in the order in which they came, however they are cut.
#include "tandem/comm/inbox.hpp"

#include <doctest/doctest.h>

#include <random>
#include <vector>

TEST_CASE("an inbox keeps the order of its bytes through any cuts") {
  std::mt19937 random(3);
  tandem::Inbox inbox;
  unsigned char written = 0;
  unsigned char read = 0;
  std::size_t inside = 0;
  for (int turn = 0; turn < 3000; ++turn) {
    std::vector<std::byte> piece(random() % 5000);
    if (random() % 2 == 0) {
      for (auto& byte : piece) byte = std::byte{written++};
      inbox.put(piece);
      inside += piece.size();
    } else {
      const std::size_t taken = inbox.take(piece);
      REQUIRE(taken == std::min(piece.size(), inside));
      inside -= taken;
      bool right = true;
      for (std::size_t i = 0; i < taken; ++i) right = right && piece[i] == std::byte{read++};
      REQUIRE(right);
    }
    REQUIRE(inbox.empty() == (inside == 0));
  }
}

TEST_CASE("a large inbox is emptied in small pieces") {
  tandem::Inbox inbox;
  std::vector<std::byte> all(5 << 20);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::byte>(i * 7 + (i >> 9));
  inbox.put(all);
  std::vector<std::byte> piece(10007);
  std::size_t at = 0;
  while (!inbox.empty()) {
    const std::size_t taken = inbox.take(piece);
    REQUIRE(std::equal(piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(taken),
                       all.begin() + static_cast<std::ptrdiff_t>(at)));
    at += taken;
  }
  CHECK(at == all.size());
  CHECK(inbox.take(piece) == 0);
}
