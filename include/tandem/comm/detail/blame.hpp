// SPDX-License-Identifier: Apache-2.0
// Who is to blame when a deadline passes: the rank this one waits for may itself be waiting for another, and the one at
// the end of that chain is the one to name. Knows blocks, decides nothing else.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tandem/comm/board.hpp"
#include "tandem/core/deadline.hpp"

namespace tandem::detail {

/// Says that the owner of `own` waits for `member`, and goes on saying so each time it is called: a word that stands
/// still means that its writer does not wait (any more), or is stopped.
inline void declare_waiting(Block& own, int member) noexcept {
  const std::uint64_t beats = own.waits_for.load(std::memory_order_relaxed) >> 16;
  own.waits_for.store((beats + 1) << 16 | static_cast<std::uint64_t>(member + 1), std::memory_order_relaxed);
}

/// The end of the chain that begins at `member`, for which `rank` waits. Looks at all blocks twice, and goes on
/// declaring meanwhile, for others that look at the same time. Waiting ranks call declare_waiting every 10 ms, so 60 ms
/// lie between the looks; more, when more than one other rank stands still: on a busy host a rank that only waits may
/// be kept from its processor for 130 ms.
template <class Nap>
int end_of_chain(const std::vector<Block*>& blocks, int rank, int member, Nap nap) {
  const auto look = [&] {
    std::vector<std::uint64_t> words;
    words.reserve(blocks.size());
    for (const Block* block : blocks) words.push_back(block->waits_for.load(std::memory_order_relaxed));
    return words;
  };
  const auto before = look();
  const auto several_stand_still = [&] {
    const auto now = look();
    int still = 0;
    for (std::size_t at = 0; at < blocks.size(); ++at) {
      if (blocks[at]->failed.load(std::memory_order_relaxed) != 0) return false;  // it knows whom to blame
      if (at != static_cast<std::size_t>(rank) && now[at] == before[at]) ++still;
    }
    return still > 1;
  };
  const Deadline least = Deadline::after(std::chrono::milliseconds(60));
  const Deadline most = Deadline::after(std::chrono::milliseconds(500));
  // By the clock: a nap may end early, when something arrives.
  while (!least.expired() || (!most.expired() && several_stand_still())) {
    declare_waiting(*blocks[static_cast<std::size_t>(rank)], member);
    nap(std::chrono::milliseconds(5));
  }
  const auto after = look();
  int blamed = member;
  for (std::size_t turn = 0; turn < blocks.size(); ++turn) {
    const auto at = static_cast<std::size_t>(blamed);
    const int next = static_cast<int>(after[at] & 0xffffU) - 1;
    if (after[at] == before[at] || next < 0 || static_cast<std::size_t>(next) >= blocks.size()) return blamed;
    if (next == rank) return member;  // a circle: nobody in it is more to blame than another
    blamed = next;
  }
  return member;
}

}  // namespace tandem::detail
