// SPDX-License-Identifier: Apache-2.0
// Who is let in, who is not, and what a stranger can make the other end hold: nothing.
#include "tandem/transport/detail/tcp_handshake.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

using namespace tandem::detail;

namespace {

using State = TcpHandshake::State;
constexpr TcpPurpose purpose{3, 1, 4, 0};
const TcpSecret secret(32, 0x5a);
const TcpSecret other(32, 0x5b);
const TcpSecret none;

TcpHandshake client(const TcpSecret& key = secret, TcpPurpose what = purpose, std::uint64_t job = 7,
                    bool checked = false) {
  return TcpHandshake::client(key, what, job, checked);
}
TcpHandshake server(const TcpSecret& key = secret, int rank = 1, int size = 4) {
  return TcpHandshake::server(key, rank, size, 7, false);
}

/// Lets the two talk until neither says more; `slice` bytes at a time. Returns all that the client said.
std::vector<std::byte> talk(TcpHandshake& from, TcpHandshake& to, std::size_t slice = 1000) {
  std::vector<std::byte> said;
  while (true) {
    const auto out = from.output();
    const auto back_before = to.state();
    for (std::size_t at = 0; at < out.size(); at += slice) {
      to.feed(std::span(out).subspan(at, std::min(slice, out.size() - at)));
    }
    said.insert(said.end(), out.begin(), out.end());
    const auto answer = to.output();
    for (std::size_t at = 0; at < answer.size(); at += slice) {
      from.feed(std::span(answer).subspan(at, std::min(slice, answer.size() - at)));
    }
    if (out.empty() && answer.empty() && back_before == to.state()) return said;
  }
}

}  // namespace

TEST_CASE("two ends that know the secret agree, however the bytes are cut") {
  for (const std::size_t slice : {1, 3, 1000}) {
    auto a = client();
    auto b = server();
    talk(a, b, slice);
    CHECK(a.state() == State::done);
    CHECK(b.state() == State::done);
    CHECK(b.purpose() == purpose);
    CHECK(a.wanted() == 0);
    CHECK(b.wanted() == 0);
  }
  auto a = client(none);
  auto b = server(none);
  talk(a, b);
  CHECK(a.state() == State::done);
  CHECK(b.state() == State::done);
}

TEST_CASE("bytes after the handshake are left for what follows") {
  auto a = client();
  auto b = server();
  b.feed(a.output());
  a.feed(b.output());
  auto proof = a.output();
  const std::size_t length = proof.size();
  proof.resize(length + 50);
  CHECK(b.feed(proof) == length);
  CHECK(b.state() == State::done);
}

TEST_CASE("a wrong secret is noticed by the client first, and by the server whatever the client says") {
  auto a = client(other);
  auto b = server();
  talk(a, b);
  CHECK(a.state() == State::refused);
  CHECK(a.reason() == "to a process that does not know the job's secret");
  CHECK(b.state() == State::talking);
  b.feed(std::vector<std::byte>(sizeof(TcpProof), std::byte{1}));
  CHECK(b.state() == State::refused);
  CHECK(b.reason() == "from a process that does not know the job's secret");
}

TEST_CASE("a recorded handshake opens nothing") {
  auto a = client();
  auto b = server();
  const auto recorded = talk(a, b);
  REQUIRE(b.state() == State::done);
  auto again = server();
  again.feed(recorded);
  CHECK(again.state() == State::refused);
}

TEST_CASE("an end is not answered with its own words") {
  auto a = client();
  auto b = server();
  b.feed(a.output());
  auto challenge = b.output();
  // The server's proof, sent back as if it were the client's.
  TcpChallenge words;
  std::memcpy(&words, challenge.data(), sizeof words);
  const TcpProof reflected{words.proof};
  b.feed(std::as_bytes(std::span(&reflected, 1)));
  CHECK(b.state() == State::refused);
}

TEST_CASE("mistakes are told apart from attacks") {
  const auto refusal = [](TcpHandshake a, TcpHandshake b) {
    talk(a, b);
    CHECK(b.state() == State::refused);
    return b.reason();
  };
  CHECK(refusal(client(none), server()) == "without a secret");
  CHECK(refusal(client(), server(none)) == "that has a secret where this rank has none (TANDEM_INSECURE=1)");
  CHECK(refusal(client(secret, purpose, 8), server()) == "from a rank of another job");
  CHECK(refusal(client(secret, purpose, 7, true), server()) == "whose TANDEM_TCP_CRC differs from this rank's");
  CHECK(refusal(client(secret, {1, 0, 2, 0, 4}, 7, false), server()) ==
        "of rank 1, which opens 4 sockets where this rank opens 1 (TANDEM_TCP_SOCKETS)");
  CHECK(refusal(client(secret, {3, 1, 5, 0}), server()) == "of rank 3, which counts 5 ranks where this one counts 4");
  CHECK(refusal(client(secret, {3, 2, 4, 0}), server()) == "of rank 3 that looks for rank 2, and this is rank 1");
  for (const int from : {-1, 1, 4, 1000000}) {
    CHECK(refusal(client(secret, {from, 1, 4, 0}), server()).find("looks for rank 1") != std::string::npos);
  }
}

TEST_CASE("random bytes, and random changes of true ones, never get in") {
  std::mt19937 random(3);
  for (int turn = 0; turn < 2000; ++turn) {
    auto a = client();
    auto b = server();
    std::vector<std::byte> hello = a.output();
    if (turn % 2 == 0) {
      for (auto& byte : hello) byte = static_cast<std::byte>(random());
    } else {
      hello[random() % hello.size()] ^= static_cast<std::byte>(1U << random() % 8);
    }
    b.feed(hello);
    a.feed(b.output());
    b.feed(a.output());
    // A changed nonce or a changed word of the purpose changes what both sides prove.
    CHECK(b.state() != State::done);
  }
}
