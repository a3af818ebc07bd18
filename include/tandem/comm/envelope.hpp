// SPDX-License-Identifier: Apache-2.0
// What goes before every message between two ranks, and how long the message is. Knows no channel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "tandem/comm/fingerprint.hpp"

namespace tandem::detail {

/// What the receiver holds against what it expects.
struct Envelope {
  std::uint64_t number = 0;  // of this pair in this communicator, from 1
  Fingerprint fingerprint{};
  char site[88] = {};  // the sender's call site in words: the sender may be gone when the receiver wants to name it

  std::uint64_t data_bytes() const noexcept { return fingerprint.count * fingerprint.element_bytes; }
};
static_assert(sizeof(Envelope) == 128);

/// For message `number` of `call`, whose verb is send and whose root is the receiver.
inline Envelope envelope_of(const Call& call, std::uint32_t communicator, std::uint64_t number) {
  Envelope header{number, Fingerprint::of(call, communicator), {}};
  const std::string place = call.site.text();
  std::memcpy(header.site, place.data(), std::min(place.size(), sizeof header.site - 1));
  return header;
}

}  // namespace tandem::detail
