// SPDX-License-Identifier: Apache-2.0
// What a stranger can say before it has proved anything. However its bytes are cut, an end answers and refuses the
// same; it takes and says a bounded number of bytes; and nobody is let in whose words were touched on the way.
#include "tandem/transport/detail/tcp_handshake.hpp"

#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fuzz/require.hpp"

using namespace tandem::detail;
using tandem::test::require;

namespace {

using Bytes = std::vector<std::byte>;
using State = TcpHandshake::State;

const TcpSecret secret(32, 0x5a);
const TcpSecret none;
constexpr TcpPurpose purpose{3, 1, 4, 0};

TcpHandshake server(const TcpSecret& key) { return TcpHandshake::server(key, 1, 4, 7, false); }
TcpHandshake client(const TcpSecret& key, const TcpPurpose& what = purpose) {
  return TcpHandshake::client(key, what, 7, false);
}

/// What an end does with bytes; the nonces in what it says differ each time, so only their number is kept.
struct Outcome {
  State state;
  bool greeted;
  std::string reason;
  std::size_t used;
  std::size_t wanted;
  std::size_t said;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome outcome_of(TcpHandshake end, std::span<const std::byte> bytes, std::size_t slice) {
  std::size_t said = end.output().size();
  std::size_t used = 0;
  while (used < bytes.size()) {
    const auto part = bytes.subspan(used, std::min(slice, bytes.size() - used));
    const std::size_t taken = end.feed(part);
    said += end.output().size();
    used += taken;
    require(end.wanted() <= sizeof(TcpHello), "an end wants a message at most");
    if (taken < part.size()) break;
  }
  require((end.state() == State::talking) == (end.wanted() != 0), "who talks wants more, and nobody else does");
  require((end.state() == State::refused) == !end.reason().empty(), "whoever is refused is told why");
  return {end.state(), end.greeted(), end.reason(), used, end.wanted(), said};
}

/// A true hello or challenge with some of it changed, then rubbish; or rubbish alone.
Bytes words(FuzzedDataProvider& input, const TcpSecret& key, bool to_server) {
  Bytes bytes;
  if (input.ConsumeBool()) {
    TcpPurpose what = purpose;
    if (input.ConsumeBool()) {
      for (std::int32_t* const field : {&what.from, &what.to, &what.size, &what.channel, &what.sockets}) {
        if (input.ConsumeBool()) *field = input.ConsumeIntegral<std::int32_t>();
      }
    }
    auto end = client(key, what);
    bytes = end.output();
    if (!to_server) {
      auto other = server(key);
      other.feed(client(key).output());
      bytes = other.output();
    }
    for (int changes = input.ConsumeIntegralInRange<int>(0, 3); changes > 0; --changes) {
      bytes[input.ConsumeIntegralInRange<std::size_t>(0, bytes.size() - 1)] ^=
          static_cast<std::byte>(input.ConsumeIntegral<std::uint8_t>());
    }
  }
  const auto rubbish = input.ConsumeRemainingBytes<std::uint8_t>();
  const auto rest = std::as_bytes(std::span(rubbish));
  bytes.insert(bytes.end(), rest.begin(), rest.end());
  return bytes;
}

/// Carries what one end said to the other, with one byte changed when `touched` lies in it.
void carry(TcpHandshake& from, TcpHandshake& to, std::size_t slice, std::size_t touched, std::byte change) {
  Bytes bytes = from.output();
  if (touched < bytes.size()) bytes[touched] ^= change;
  for (std::size_t at = 0; at < bytes.size(); at += slice) {
    to.feed(std::span(bytes).subspan(at, std::min(slice, bytes.size() - at)));
  }
}

/// Two ends that know the secret, and somebody in between who changes one byte, or none.
void talk(FuzzedDataProvider& input) {
  const std::size_t slice = input.ConsumeIntegralInRange<std::size_t>(1, 100);
  const int message = input.ConsumeIntegralInRange<int>(0, 4);  // 4: none
  const std::size_t touched = input.ConsumeIntegral<std::uint8_t>();
  const auto change = static_cast<std::byte>(input.ConsumeIntegralInRange<int>(1, 255));
  auto a = client(secret);
  auto b = server(secret);
  constexpr std::size_t lengths[] = {sizeof(TcpHello), sizeof(TcpChallenge), sizeof(TcpProof), sizeof(TcpWelcome)};
  for (int turn = 0; turn < 4; ++turn) {
    auto& from = turn % 2 == 0 ? a : b;
    auto& to = turn % 2 == 0 ? b : a;
    carry(from, to, slice, turn == message ? touched : ~std::size_t{0}, change);
  }
  const bool whole = message == 4 || touched >= lengths[message];
  require((a.state() == State::done) == whole, "a client is through when nothing was touched, and only then");
  // The welcome is the last word: the server has said it by then.
  require((b.state() == State::done) == (whole || message == 3), "a server likewise");
  if (whole) require(b.purpose() == purpose, "a server knows whom it has let in");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  const auto kind = input.ConsumeIntegralInRange<int>(0, 2);
  if (kind == 2) {
    talk(input);
    return 0;
  }
  const bool to_server = kind == 0;
  const TcpSecret& key = input.ConsumeBool() ? secret : none;
  const std::size_t slice = input.ConsumeIntegralInRange<std::size_t>(1, 100);
  const Bytes bytes = words(input, key, to_server);
  const auto end = [&] { return to_server ? server(key) : client(key); };
  const Outcome whole = outcome_of(end(), bytes, bytes.size() + 1);
  require(outcome_of(end(), bytes, 1) == whole, "byte by byte");
  require(outcome_of(end(), bytes, slice) == whole, "cut anywhere");
  require(whole.used <= (to_server ? sizeof(TcpHello) + sizeof(TcpProof) : sizeof(TcpChallenge) + sizeof(TcpWelcome)),
          "no more is taken than there is to say");
  require(whole.said <= (to_server ? sizeof(TcpChallenge) + sizeof(TcpWelcome) : sizeof(TcpHello) + sizeof(TcpProof)),
          "no more is said than there is to say");
  if (!key.empty()) require(whole.state != State::done, "nobody gets in without the secret");
  return 0;
}
