// SPDX-License-Identifier: Apache-2.0
// How many bytes rank r moves to, from or through its peers in a collective, by formula: what the ledger holds against
// what was counted. Knows sizes and algorithms, no data.
#pragma once

#include <cstddef>
#include <cstdint>

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

/// Messages beside the flags: every rank loads what each other rank staged.
constexpr std::uint64_t eager(std::uint64_t bytes_each, int ranks) noexcept {
  return bytes_each * static_cast<std::uint64_t>(ranks - 1);
}
/// Direct all-reduce: N - 1 loads and N - 1 stores of every owned byte.
constexpr std::uint64_t direct_all_reduce(std::uint64_t owned_bytes, int ranks) noexcept {
  return 2 * owned_bytes * static_cast<std::uint64_t>(ranks - 1);
}
/// Ring all-reduce: 2 D - |chunk r| - |chunk r-1| sent by rank r; 2 D (N-1) / N when N divides D.
constexpr std::uint64_t ring_all_reduce(const ChunkTable& table, std::size_t element_bytes, int rank) noexcept {
  const int before = rank == 0 ? table.ranks() - 1 : rank - 1;
  return element_bytes * (2 * table.count() - table.chunk(rank).size() - table.chunk(before).size());
}
/// Ring reduce-scatter: D - |chunk r| sent on the way; then of chunk r what belongs to another's slice.
constexpr std::uint64_t ring_reduce_scatter(const ChunkTable& table, Range slice, std::size_t element_bytes,
                                            int rank) noexcept {
  return element_bytes * (table.count() - intersect(table.chunk(rank), slice).size());
}
/// Pairwise reduce-scatter: everything but the own part is sent.
constexpr std::uint64_t pairwise_reduce_scatter(std::uint64_t bytes, std::uint64_t owned_bytes) noexcept {
  return bytes - owned_bytes;
}
/// Pairwise all-gather: the own part to every other rank.
constexpr std::uint64_t pairwise_all_gather(std::uint64_t owned_bytes, int ranks) noexcept {
  return owned_bytes * static_cast<std::uint64_t>(ranks - 1);
}
/// Ring all-gather: every slice is sent on but the one before this rank's, which has come round to its end.
constexpr std::uint64_t ring_all_gather(std::uint64_t bytes, std::uint64_t slice_before_bytes) noexcept {
  return bytes - slice_before_bytes;
}
constexpr std::uint64_t naive_all_reduce(std::uint64_t bytes, int ranks) noexcept {
  return bytes * static_cast<std::uint64_t>(ranks - 1);
}
/// Direct reduce: N - 1 loads of every owned byte, and one store of it, to root.
constexpr std::uint64_t direct_reduce(std::uint64_t owned_bytes, int ranks, bool root) noexcept {
  return owned_bytes * static_cast<std::uint64_t>(ranks - (root ? 1 : 0));
}
/// Pairwise reduce: everything but the own part to the owners, then the own part to root.
constexpr std::uint64_t pairwise_reduce(std::uint64_t bytes, std::uint64_t owned_bytes, bool root) noexcept {
  return root ? bytes - owned_bytes : bytes;
}

/// Where data goes from ranks to ranks unchanged: what a rank loads when it reads it from where it lies, and what it
/// sends when it goes by channels. In bytes; `own` is what the rank gives itself.
struct Volume {
  std::uint64_t loaded = 0;
  std::uint64_t sent = 0;
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

}  // namespace predict
}  // namespace tandem
