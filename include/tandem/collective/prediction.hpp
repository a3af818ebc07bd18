// SPDX-License-Identifier: Apache-2.0
// How many bytes rank r moves to, from or through its peers in a collective, by formula: what the ledger holds against
// what was counted. Knows sizes and ways, no data.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "tandem/collective/path.hpp"
#include "tandem/core/bytes.hpp"
#include "tandem/reduce/order.hpp"

namespace tandem {

/// The elements of an all-reduce that rank r folds and stores to all in Direct and Pairwise: an even cut at cache
/// lines.
constexpr Range owned_range(std::size_t count, std::size_t element_bytes, int ranks, int rank) noexcept {
  const std::size_t grain = element_bytes < line_pair_bytes ? line_pair_bytes / element_bytes : 1;
  const Range grains = slice_of(divide_up(count, grain), ranks, rank);
  return intersect({grains.begin * grain, grains.end * grain}, {0, count});
}

namespace predict {

/// Line and Staged: every rank loads what each other rank put there. Direct: N - 1 loads and N - 1 stores of every
/// owned byte. Fetch: N - 1 loads of every owned byte, then one of every other. Ring: 2 D - |chunk r| - |chunk r-1|,
/// which is 2 D (N-1) / N when N divides D. Pairwise: everything but the own part to its owners, then the own part to
/// every other rank.
constexpr std::uint64_t all_reduce(Path path, const ChunkTable& table, std::size_t element_bytes, int rank) noexcept {
  const auto others = static_cast<std::uint64_t>(table.ranks() - 1);
  const std::uint64_t bytes = table.count() * element_bytes;
  const std::uint64_t owned = owned_range(table.count(), element_bytes, table.ranks(), rank).size() * element_bytes;
  const int before = rank == 0 ? table.ranks() - 1 : rank - 1;
  switch (path) {
    case Path::line:
    case Path::staged:
    case Path::naive:
      return bytes * others;
    case Path::direct:
      return 2 * owned * others;
    case Path::fetch:
      return owned * others + bytes - owned;
    case Path::ring:
      return 2 * bytes - element_bytes * (table.chunk(rank).size() + table.chunk(before).size());
    case Path::pairwise:
      return bytes - owned + owned * others;
    default:
      return 0;
  }
}
/// Staged, Direct and Fetch: the own slice loaded from each other rank. Ring: D - |chunk r| on the way; then of chunk r
/// what belongs to another's slice. Pairwise: everything but the own slice.
template <class Table>
constexpr std::uint64_t reduce_scatter(Path path, const Table& table, Range slice, std::size_t element_bytes,
                                       int rank) noexcept {
  switch (path) {
    case Path::staged:
    case Path::direct:
    case Path::fetch:
      return element_bytes * slice.size() * static_cast<std::uint64_t>(table.ranks() - 1);
    case Path::ring:
      if constexpr (std::same_as<Table, ChunkTable>)  // which alone goes round a ring
        return element_bytes * (table.count() - intersect(table.chunk(rank), slice).size());
      return 0;
    case Path::pairwise:
      return element_bytes * (table.count() - slice.size());
    default:
      return 0;
  }
}
/// In bytes; `before` is the slice of the rank before this one. Staged, Direct, Fetch and Bounce: the others' slices
/// loaded. Ring: every slice is sent on but that one, which has come round to its end. Pairwise: the own slice to every
/// other rank.
constexpr std::uint64_t all_gather(Path path, std::uint64_t whole, std::uint64_t own, std::uint64_t before,
                                   int ranks) noexcept {
  switch (path) {
    case Path::staged:
    case Path::direct:
    case Path::fetch:
    case Path::bounce:
      return whole - own;
    case Path::ring:
      return whole - before;
    case Path::pairwise:
      return own * static_cast<std::uint64_t>(ranks - 1);
    default:
      return 0;
  }
}
/// Staged, Direct, Fetch and Bounce: loaded by each but root, less what root stores to them. Ring: sent by each but the
/// last of the chain. Naive: root to all.
constexpr std::uint64_t broadcast(Path path, std::uint64_t bytes, std::uint64_t stored, int root, int rank,
                                  int ranks) noexcept {
  switch (path) {
    case Path::staged:
    case Path::direct:
    case Path::fetch:
    case Path::bounce:
      return rank == root ? stored * static_cast<std::uint64_t>(ranks - 1) : bytes - stored;
    case Path::ring:
      return rank == (root + 1) % ranks ? 0 : bytes;
    case Path::naive:
      return rank == root ? bytes * static_cast<std::uint64_t>(ranks - 1) : 0;
    default:
      return 0;
  }
}
/// Staged: root loads everything. Direct: N - 1 loads of every owned byte, and one store of it, to root. Pairwise:
/// everything but the own part to the owners, then the own part to root.
constexpr std::uint64_t reduce(Path path, std::uint64_t bytes, std::uint64_t owned, int ranks, bool root) noexcept {
  switch (path) {
    case Path::staged:
      return root ? bytes * static_cast<std::uint64_t>(ranks - 1) : 0;
    case Path::direct:
      return owned * static_cast<std::uint64_t>(ranks - (root ? 1 : 0));
    case Path::pairwise:
      return root ? bytes - owned : bytes;
    default:
      return 0;
  }
}

/// Where data goes from ranks to ranks unchanged: what a rank loads when it reads it from where it lies, and what it
/// sends when it goes by channels. In bytes; `own` is what the rank gives itself.
struct Volume {
  std::uint64_t loaded = 0;
  std::uint64_t sent = 0;

  constexpr std::uint64_t of(Path path) const noexcept {
    return path == Path::alone ? 0 : path == Path::staged || reads_in_place(path) ? loaded : sent;
  }
};
constexpr Volume gather(std::uint64_t own, std::uint64_t whole, bool root) noexcept {
  return root ? Volume{whole - own, 0} : Volume{0, own};
}
constexpr Volume scatter(std::uint64_t own, std::uint64_t whole, bool root) noexcept {
  return root ? Volume{0, whole - own} : Volume{own, 0};
}
constexpr Volume all_to_all(std::uint64_t input, std::uint64_t output, std::uint64_t own) noexcept {
  return {output - own, input - own};
}
/// What every rank of an all_to_all_v loads besides: how many elements each other rank sends to, and expects of, each.
constexpr std::uint64_t pair_counts(int ranks) noexcept {
  const auto all = static_cast<std::uint64_t>(ranks);
  return 2 * sizeof(std::uint64_t) * all * (all - 1);
}

}  // namespace predict
}  // namespace tandem
