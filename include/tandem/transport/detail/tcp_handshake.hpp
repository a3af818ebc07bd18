// SPDX-License-Identifier: Apache-2.0
// How two ends of a new Tcp connection prove to each other that they belong to the same job, before either believes a
// byte of the other: mutual HMAC-SHA256 challenges with the job's secret. A pure function from bytes to bytes; it knows
// no socket, and holds a fixed number of bytes whatever a stranger sends. Fuzzed by tests/fuzz.
//
//   client -> server   Hello      who I am, whom I want, nonce
//   server -> client   Challenge  nonce, HMAC(secret, "server" | Hello | nonce)
//   client -> server   Proof      HMAC(secret, "client" | Hello | nonce)
//   server -> client   Welcome    you are taken: without it, the client tries again
//
// Fresh nonces on both sides make a recorded handshake worthless; the labels keep an end from being answered with its
// own words. Without a secret (TANDEM_INSECURE=1) the same messages travel with empty HMACs: then only mistakes are
// found, not attacks.
#pragma once

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tandem/core/error.hpp"
#include "tandem/transport/detail/tcp_secret.hpp"

namespace tandem::detail {

/// What the client's end of a connection says of it, and the server's end checks.
struct TcpPurpose {
  std::int32_t from = 0;     // rank of the client
  std::int32_t to = 0;       // rank of the server
  std::int32_t size = 0;     // ranks of the job, as the client counts
  std::int32_t channel = 0;  // which of the connections between the two; -1: only to meet
  std::int32_t sockets = 1;  // that make one stream
  friend bool operator==(const TcpPurpose&, const TcpPurpose&) = default;
};

struct TcpHello {
  std::array<char, 8> mark;
  std::uint32_t version;
  std::uint32_t byte_order;  // 1, as the sender's machine writes it
  TcpPurpose purpose;
  std::uint64_t job;      // a hash of the job's name: a rank of another job is told apart from an attacker
  std::uint32_t secured;  // 1: HMACs are filled
  std::uint32_t checked;  // 1: frames carry checksums
  std::uint32_t unused;
  std::array<std::uint8_t, 32> nonce;
};
struct TcpChallenge {
  std::array<char, 8> mark;
  std::array<std::uint8_t, 32> nonce;
  std::array<std::uint8_t, 32> proof;
};
struct TcpProof {
  std::array<std::uint8_t, 32> proof;
};
struct TcpWelcome {
  std::array<char, 8> mark;
};
inline constexpr std::array<char, 8> tcp_mark{'t', 'a', 'n', 'd', 'e', 'm', 'T', '1'};
inline constexpr std::uint32_t tcp_version = 3;

inline std::array<std::uint8_t, 32> fresh_nonce() {
  std::array<std::uint8_t, 32> nonce{};
  if (RAND_bytes(nonce.data(), static_cast<int>(nonce.size())) != 1) {
    throw Error(ErrorKind::system, "tandem: the system gives no random bytes for a handshake");
  }
  return nonce;
}

class TcpHandshake {
 public:
  enum class State { talking, done, refused };

  /// The end that connected.
  static TcpHandshake client(const TcpSecret& secret, const TcpPurpose& purpose, std::uint64_t job, bool checked) {
    TcpHandshake self(secret);
    self.client_ = true;
    self.hello_ = {tcp_mark, tcp_version,  1, purpose, job, secret.empty() ? 0U : 1U, checked ? 1U : 0U,
                   0,        fresh_nonce()};
    self.append(self.hello_);
    self.expected_ = sizeof(TcpChallenge);
    return self;
  }
  /// The end that accepted, rank `rank` of `size`.
  static TcpHandshake server(const TcpSecret& secret, int rank, int size, std::uint64_t job, bool checked,
                             int sockets = 1) {
    TcpHandshake self(secret);
    self.rank_ = rank;
    self.size_ = size;
    self.job_ = job;
    self.checked_ = checked;
    self.sockets_ = sockets;
    self.expected_ = sizeof(TcpHello);
    return self;
  }

  /// Bytes that arrived; returns how many of them belong to the handshake. The rest is what follows it.
  std::size_t feed(std::span<const std::byte> bytes) {
    std::size_t used = 0;
    while (state_ == State::talking && expected_ != 0 && used < bytes.size()) {
      const std::size_t part = std::min(expected_ - held_, bytes.size() - used);
      std::memcpy(incoming_.data() + held_, bytes.data() + used, part);
      held_ += part;
      used += part;
      if (held_ == expected_) {
        held_ = 0;
        step();
      }
    }
    return used;
  }
  /// How many more bytes the peer's next message has: a reader that asks for no more leaves what follows untouched.
  std::size_t wanted() const noexcept { return state_ == State::talking ? expected_ - held_ : 0; }
  /// What is to be sent; taken out.
  std::vector<std::byte> output() { return std::exchange(output_, {}); }

  State state() const noexcept { return state_; }
  /// Has the other end said something sensible, if nothing that proves anything?
  bool greeted() const noexcept { return greeted_; }
  /// Did the other end speak the language, and not know the secret?
  bool disproved() const noexcept { return disproved_; }
  /// Why the other end is not taken, in words that follow "a connection".
  const std::string& reason() const noexcept { return reason_; }
  /// What the client's end says of itself; believed only once done.
  const TcpPurpose& purpose() const noexcept { return hello_.purpose; }

 private:
  explicit TcpHandshake(const TcpSecret& secret) : secret_(&secret) {}

  void step() {
    if (client_) return greeted_ ? take_welcome() : take_challenge();
    if (!greeted_) return take_hello();
    take_proof();
  }
  void take_hello() {
    std::memcpy(&hello_, incoming_.data(), sizeof hello_);
    if (hello_.mark != tcp_mark) return refuse("that does not speak tandem's language");
    if (hello_.version != tcp_version || hello_.byte_order != 1)
      return refuse("from another version or byte order of tandem");
    if (hello_.job != job_) return refuse("from a rank of another job");
    if ((hello_.secured != 0) == secret_->empty()) {
      return refuse(secret_->empty() ? "that has a secret where this rank has none (TANDEM_INSECURE=1)"
                                     : "without a secret");
    }
    if ((hello_.checked != 0) != checked_) return refuse("whose TANDEM_TCP_CRC differs from this rank's");
    const TcpPurpose& it = hello_.purpose;
    if (it.sockets != sockets_) {
      return refuse("of rank " + std::to_string(it.from) + ", which opens " + std::to_string(it.sockets) +
                    " sockets where this rank opens " + std::to_string(sockets_) + " (TANDEM_TCP_SOCKETS)");
    }
    if (it.size != size_) {
      return refuse("of rank " + std::to_string(it.from) + ", which counts " + std::to_string(it.size) +
                    " ranks where this one counts " + std::to_string(size_));
    }
    if (it.to != rank_ || it.from < 0 || it.from >= size_ || it.from == rank_) {
      return refuse("of rank " + std::to_string(it.from) + " that looks for rank " + std::to_string(it.to) +
                    ", and this is rank " + std::to_string(rank_));
    }
    greeted_ = true;
    challenge_ = {tcp_mark, fresh_nonce(), {}};
    challenge_.proof = proof("server");
    append(challenge_);
    expected_ = sizeof(TcpProof);
  }
  void take_challenge() {
    std::memcpy(&challenge_, incoming_.data(), sizeof challenge_);
    if (challenge_.mark != tcp_mark) return refuse("to something that does not speak tandem's language");
    if (!same(challenge_.proof, proof("server"))) return disprove("to a process that does not know the job's secret");
    append(TcpProof{proof("client")});
    greeted_ = true;
    expected_ = sizeof(TcpWelcome);
  }
  void take_welcome() {
    TcpWelcome words{};
    std::memcpy(&words, incoming_.data(), sizeof words);
    if (words.mark != tcp_mark) return refuse("to something that does not speak tandem's language");
    state_ = State::done;
  }
  void take_proof() {
    TcpProof theirs{};
    std::memcpy(&theirs, incoming_.data(), sizeof theirs);
    if (!same(theirs.proof, proof("client"))) return disprove("from a process that does not know the job's secret");
    append(TcpWelcome{tcp_mark});
    state_ = State::done;
  }

  std::array<std::uint8_t, 32> proof(std::string_view label) const {
    std::array<std::uint8_t, 32> result{};
    if (secret_->empty()) return result;
    std::string text(label);
    text.append(reinterpret_cast<const char*>(&hello_), sizeof hello_);
    text.append(reinterpret_cast<const char*>(challenge_.nonce.data()), challenge_.nonce.size());
    unsigned length = 0;
    if (HMAC(EVP_sha256(), secret_->data(), static_cast<int>(secret_->size()),
             reinterpret_cast<const unsigned char*>(text.data()), text.size(), result.data(), &length) == nullptr) {
      throw Error(ErrorKind::system, "tandem: OpenSSL cannot compute HMAC-SHA256");
    }
    return result;
  }
  static bool same(const std::array<std::uint8_t, 32>& a, const std::array<std::uint8_t, 32>& b) noexcept {
    return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;  // in constant time
  }
  template <class Message>
  void append(const Message& message) {
    const auto* const begin = reinterpret_cast<const std::byte*>(&message);
    output_.insert(output_.end(), begin, begin + sizeof message);
  }
  void refuse(std::string reason) {
    reason_ = std::move(reason);
    state_ = State::refused;
  }
  void disprove(std::string reason) {
    disproved_ = true;
    refuse(std::move(reason));
  }

  const TcpSecret* secret_;
  bool client_ = false;
  bool greeted_ = false;
  bool disproved_ = false;
  int rank_ = 0;
  int size_ = 0;
  std::uint64_t job_ = 0;
  bool checked_ = false;
  int sockets_ = 1;
  State state_ = State::talking;
  std::string reason_;
  TcpHello hello_{};
  TcpChallenge challenge_{};
  std::array<std::byte, sizeof(TcpHello)> incoming_{};
  static_assert(sizeof(TcpHello) >= sizeof(TcpChallenge) && sizeof(TcpHello) >= sizeof(TcpProof));
  std::size_t expected_ = 0;
  std::size_t held_ = 0;
  std::vector<std::byte> output_;
};

}  // namespace tandem::detail
