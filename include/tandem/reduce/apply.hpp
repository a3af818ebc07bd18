// SPDX-License-Identifier: Apache-2.0
// Folds any range of a buffer in the contract's order: joins order (which rank first) to fold (the arithmetic). Whoever
// owns a range, and however it is cut, the bits are the same.
#pragma once

#include <cstddef>
#include <vector>

#include "tandem/reduce/fold.hpp"
#include "tandem/reduce/order.hpp"

namespace tandem {

/// Folds `range` of the buffers, each piece in its own order, and stores the result to the same range of every output.
/// inputs_by_rank (table.ranks() of them) point to element `inputs_begin` of the full buffers, outputs to element
/// `outputs_begin`: element 0 when whole buffers are given. An output may be an input. Returns the elements folded, as
/// they were: what a ledger counts.
/// `table` is a ChunkTable, or anything that for_each_piece takes.
template <Element T, class Op, class Table>
std::size_t fold_range(const Op& op, const Table& table, Range range, const T* const* inputs_by_rank, T* const* outputs,
                       int output_count, std::size_t inputs_begin = 0, std::size_t outputs_begin = 0) {
  const int ranks = table.ranks();
  std::size_t folded = 0;
  const auto apply = [&](const T** sources, T** destinations) {
    for_each_piece(table, range, [&](const Piece& piece) {
      int rank = piece.first;
      for (int k = 0; k < ranks; ++k) {
        sources[k] = inputs_by_rank[rank] + (piece.range.begin - inputs_begin);
        rank = rank == 0 ? ranks - 1 : rank - 1;
      }
      for (int k = 0; k < output_count; ++k) destinations[k] = outputs[k] + (piece.range.begin - outputs_begin);
      fold(op, ranks, sources, ranks, destinations, output_count, piece.range.size());
      folded += piece.range.size();
    });
  };
  constexpr int on_stack = 16;
  if (ranks <= on_stack && output_count <= on_stack) {
    const T* sources[on_stack];
    T* destinations[on_stack];
    apply(sources, destinations);
  } else {
    std::vector<const T*> sources(static_cast<std::size_t>(ranks));
    std::vector<T*> destinations(static_cast<std::size_t>(output_count));
    apply(sources.data(), destinations.data());
  }
  return folded;
}

}  // namespace tandem
