// SPDX-License-Identifier: Apache-2.0
// The buffers beside the flags through which long messages pass in pieces ("copy in, copy out"): the owner copies a
// piece in, everybody else copies it out, while the owner fills the next. One rank's view of all members'. Knows pieces
// and turns, not what the bytes mean.
//
// Pieces are counted through all operations of a communicator that pass any, the same on all ranks, and piece n lies in
// buffer n % Block::piece_count of each owner. `filled` and `taken` of a block say how many its owner has put in and,
// of all others, taken out. An owner fills buffer n when all have taken n + 1 - piece_count: then nobody reads it any
// more, whoever gave what since.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tandem/comm/board.hpp"
#include "tandem/core/copy.hpp"
#include "tandem/transport/concepts.hpp"

namespace tandem::detail {

template <ControlTransport T>
class Bounce {
 public:
  /// Refers to what its owner keeps: `blocks` by member.
  Bounce(T& endpoint, const std::vector<Block*>& blocks, int rank) noexcept
      : endpoint_(endpoint), blocks_(blocks), rank_(rank) {}

  /// Pieces of all operations so far.
  std::uint64_t passed() const noexcept { return passed_; }
  void pass(std::uint64_t pieces) noexcept { passed_ += pieces; }

  std::byte* buffer(int member, std::uint64_t piece) const noexcept {
    return block(member).pieces[piece % Block::piece_count];
  }
  const std::atomic<std::uint64_t>& filled(int member) const noexcept { return block(member).filled; }
  const std::atomic<std::uint64_t>& taken(int member) const noexcept { return block(member).taken; }
  void post_filled(std::uint64_t pieces) noexcept { post(block(rank_).filled, pieces); }
  void post_taken(std::uint64_t pieces) noexcept { post(block(rank_).taken, pieces); }
  /// Through with `bytes` of another's buffer; before post_taken. A lone reader gives the lines back: see
  /// give_lines_back.
  void release(int member, std::uint64_t piece, std::size_t bytes) noexcept {
    if (blocks_.size() == 2) give_lines_back(buffer(member, piece), bytes);
  }

 private:
  Block& block(int member) const noexcept { return *blocks_[static_cast<std::size_t>(member)]; }
  void post(std::atomic<std::uint64_t>& word, std::uint64_t pieces) noexcept {
    word.store(pieces, std::memory_order_release);
    endpoint_.wake(word);
  }

  T& endpoint_;
  const std::vector<Block*>& blocks_;
  int rank_;
  std::uint64_t passed_ = 0;
};

}  // namespace tandem::detail
