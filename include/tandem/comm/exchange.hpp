// SPDX-License-Identifier: Apache-2.0
// Every rank tells all others a few bytes: what communicators need among themselves, before there is a collective.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tandem/comm/protocol.hpp"
#include "tandem/core/call_site.hpp"
#include "tandem/core/copy.hpp"

namespace tandem::detail {

/// Every rank gives `mine.size()` bytes (the same number, at most Block::eager_bytes); all of them, by rank.
template <class T>
std::vector<std::byte> exchange(Protocol<T>& protocol, Verb verb, std::span<const std::byte> mine,
                                const CallOptions& options, CallSite site) {
  protocol.require_usable();
  const Call call{verb, Dtype::opaque, 0, 1, -1, 0, mine.size(), site};
  copy_bytes(protocol.stage(verb), mine.data(), mine.size());
  Operation operation = protocol.post(call, options, 0, 0);
  protocol.await_posts(operation);
  std::vector<std::byte> all;
  for (int member = 0; member < protocol.size(); ++member) {
    const std::byte* const theirs = member == protocol.rank() ? mine.data() : protocol.staged(member);
    all.insert(all.end(), theirs, theirs + mine.size());
    protocol.unstage(member, mine.size());
  }
  const std::uint64_t moved = static_cast<std::uint64_t>(protocol.size() - 1) * mine.size();
  protocol.finish(operation, moved, moved);
  return all;
}

}  // namespace tandem::detail
