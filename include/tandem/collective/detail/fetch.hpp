// SPDX-License-Identifier: Apache-2.0
// Folding what lies in other ranks' own memory: the system copies a piece of it beside the processor, and it is folded
// from there. Knows ranges, not which collective it is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tandem/collective/detail/per_rank.hpp"
#include "tandem/collective/detail/scratch.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/bytes.hpp"
#include "tandem/reduce/apply.hpp"

namespace tandem::detail {

/// Folds `range` of all inputs, which are readable, in contract order into `output`, which points to element
/// range.begin and may lie in `input` (element 0). Returns the bytes loaded from others.
template <class T, class E, class Op, class Table>
std::uint64_t fetch_and_fold(Protocol<T>& protocol, Operation& operation, const Op& op, const Table& table,
                             const E* input, E* output, Range range) {
  constexpr std::size_t piece_bytes = 128 << 10;  // stays in the second-level cache
  const std::size_t piece = std::min(std::max<std::size_t>(piece_bytes / sizeof(E), 1), range.size());
  const int ranks = protocol.size();
  Scratch<E> room(piece * static_cast<std::size_t>(ranks - 1));
  PerRank<const E*> sources(ranks);
  for (std::size_t at = range.begin; at < range.end; at += piece) {
    const std::size_t count = std::min(piece, range.end - at);
    E* to = room.data();
    for (int step = 0; step < ranks; ++step) {
      const int member = (protocol.rank() + step) % ranks;  // not all from the same one first
      const std::uint64_t place = protocol.line_of(operation, member).input;
      if (member == protocol.rank()) {
        sources[member] = input + at;
      } else if (Place::in_window(place)) {
        sources[member] = reinterpret_cast<const E*>(protocol.buffers().input_of(operation, member)) + at;
      } else {
        protocol.load(operation, member, place, at * sizeof(E), to, count * sizeof(E));
        sources[member] = to;
        to += piece;
      }
    }
    E* const destination = output + (at - range.begin);
    fold_range(op, table, {at, at + count}, sources.data(), &destination, 1, at, at);
  }
  return range.size() * sizeof(E) * static_cast<std::uint64_t>(ranks - 1);
}

}  // namespace tandem::detail
