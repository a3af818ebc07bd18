// SPDX-License-Identifier: Apache-2.0
// Data that go from some ranks to all others, in pieces through the givers' shared buffers (see comm/bounce.hpp). Knows
// runs of bytes, not which collective it is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tandem/comm/communicator.hpp"
#include "tandem/core/bytes.hpp"
#include "tandem/core/copy.hpp"

namespace tandem::detail {

/// How much of a run of `bytes` goes at a time: pieces enough that one is copied out while the next is copied in, few
/// enough that handing over, which takes a change of process where ranks outnumber processors, does not count.
constexpr std::size_t bounced_piece_bytes(std::size_t bytes, bool crowded) noexcept {
  const std::size_t least = crowded ? 8192 : 4096;
  return std::clamp<std::size_t>(round_up(divide_up(bytes, 4), line_pair_bytes), least, Block::piece_bytes);
}

/// `data` points to byte 0 of the whole, the same on all ranks; `run(member)` is what a member gives of it, empty when
/// nothing, and `own` points to this rank's run, wherever it is. All but the own run of `data` is written. Returns the
/// bytes copied out of the others' buffers. All posts were awaited.
template <class T, class Run>
std::uint64_t pass_in_pieces(Protocol<T>& protocol, Operation& operation, std::byte* data, const std::byte* own,
                             Run run) {
  auto& bounce = protocol.bounce();
  const int rank = protocol.rank();
  std::size_t longest = 0;
  for (int member = 0; member < protocol.size(); ++member) longest = std::max(longest, run(member).size());
  const std::size_t piece_bytes = bounced_piece_bytes(longest, protocol.crowded());
  const auto piece_of = [&](int member, std::uint64_t index) {
    const Range all = run(member);
    return intersect(all, {all.begin + index * piece_bytes, all.begin + (index + 1) * piece_bytes});
  };

  const std::uint64_t pieces = divide_up(longest, piece_bytes);
  std::uint64_t moved = 0;
  for (std::uint64_t index = 0; index < pieces; ++index) {
    const std::uint64_t number = bounce.passed() + index;
    if (const Range given = piece_of(rank, index); !given.empty()) {
      for (int member = 0; member < protocol.size() && number >= Block::piece_count; ++member) {
        if (member != rank)
          protocol.await_word(operation, member, bounce.taken(member), number + 1 - Block::piece_count);
      }
      copy_for_others(bounce.buffer(rank, number), own + index * piece_bytes, given.size());
      bounce.post_filled(number + 1);
    }
    for (int step = 1; step < protocol.size(); ++step) {
      const int member = (rank + step) % protocol.size();  // not all from the same one first
      const Range part = piece_of(member, index);
      if (part.empty()) continue;
      protocol.await_word(operation, member, bounce.filled(member), number + 1);
      copy_bytes(data + part.begin, bounce.buffer(member, number), part.size());
      bounce.release(member, number, part.size());
      moved += part.size();
    }
    bounce.post_taken(number + 1);
  }
  bounce.pass(pieces);
  return moved;
}

}  // namespace tandem::detail
