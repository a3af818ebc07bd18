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
  protocol.require_usable(verb, site);
  const Call call{verb, Dtype::opaque, 0, 1, -1, 0, mine.size(), site};
  copy_bytes(protocol.stage(verb), mine.data(), mine.size());
  protocol.staging().show(mine.size());
  Operation operation = protocol.post(call, options, 0, 0);
  protocol.await_posts(operation);
  std::vector<std::byte> all;
  std::uint64_t loaded = 0;
  for (int member = 0; member < protocol.size(); ++member) {
    const std::byte* const theirs = member == protocol.rank() ? mine.data() : protocol.staging().of(member);
    all.insert(all.end(), theirs, theirs + mine.size());
    if (member != protocol.rank()) loaded += mine.size();
    protocol.staging().release(member, mine.size());
  }
  protocol.finish(operation, static_cast<std::uint64_t>(protocol.size() - 1) * mine.size(), loaded);
  return all;
}

}  // namespace tandem::detail
