// SPDX-License-Identifier: Apache-2.0
// The buffers beside the flags in which small messages wait for their readers: one rank's view of all members'. Knows
// turns and who reads, not what the bytes mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tandem/comm/board.hpp"
#include "tandem/core/copy.hpp"
#include "tandem/transport/concepts.hpp"

namespace tandem::detail {

/// Two buffers a rank, used in turn; see Block::staging for why two are enough.
template <ControlTransport T>
class Staging {
 public:
  /// Refers to what its owner keeps: `blocks` by member, and `others`, the endpoint numbers of all members but this
  /// one.
  Staging(T& endpoint, const std::vector<Block*>& blocks, const std::vector<int>& others, int rank) noexcept
      : endpoint_(endpoint), blocks_(blocks), others_(others), rank_(rank) {}

  /// Takes the next turn: this rank's buffer, Block::eager_bytes long.
  std::byte* next() noexcept {
    ++turn_;
    return buffer(rank_);
  }
  /// Lets the others see the first `bytes` of it, before the post that tells of them.
  void show(std::size_t bytes) noexcept { endpoint_.publish(others_, {buffer(rank_), bytes}); }
  /// Another member's buffer of the same turn. (One's own may be taken by then: see release.)
  const std::byte* of(int member) const noexcept { return buffer(member); }
  /// Through with the first `bytes` of it. Where memory is shared, a lone reader gives the lines back: see
  /// give_lines_back. Called before this rank's next post of a staged operation, which is what the owner awaits before
  /// it fills the buffer again, two turns later: so these stores come before the owner's.
  void release(int member, std::size_t bytes) noexcept {
    if (T::has_windows && others_.size() == 1 && member != rank_) give_lines_back(buffer(member), bytes);
  }

 private:
  std::byte* buffer(int member) const noexcept { return blocks_[static_cast<std::size_t>(member)]->staging[turn_ % 2]; }

  T& endpoint_;
  const std::vector<Block*>& blocks_;
  const std::vector<int>& others_;
  int rank_;
  std::uint64_t turn_ = 0;
};

}  // namespace tandem::detail
