// SPDX-License-Identifier: Apache-2.0
// A buffer cut into consecutive runs, one per rank, by counts that the caller gives; and the hash by which ranks find
// out that they were given different ones. Knows no data and no collective.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tandem/collective/detail/checks.hpp"
#include "tandem/collective/detail/per_rank.hpp"
#include "tandem/core/bytes.hpp"

namespace tandem::detail {

/// A list of counts in 32 bits, for Call::layout: by it ranks find out that they were given different ones.
inline std::uint32_t layout_of(std::span<const std::size_t> counts) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a over whole words; the high half is the better mixed one
  for (const std::size_t count : counts) {
    hash = (hash ^ count) * 0x100000001b3U;
    hash ^= hash >> 29;
  }
  return static_cast<std::uint32_t>(hash >> 32);
}

class Runs {
 public:
  /// `each` elements for every rank.
  Runs(int ranks, std::size_t each) : runs_(ranks), size_(ranks), longest_(each) {
    for (int member = 0; member < ranks; ++member) append(member, each);
  }
  /// counts[r] elements for rank r. Throws Error(argument) unless there is one for each rank, and a sum of them.
  Runs(Verb verb, int rank, int ranks, std::span<const std::size_t> counts, CallSite site)
      : runs_(ranks), size_(ranks) {
    require_count(verb, rank, "the list of counts", counts.size(), static_cast<std::size_t>(ranks), site);
    for (int member = 0; member < ranks; ++member) {
      const std::size_t count = counts[static_cast<std::size_t>(member)];
      if (count > SIZE_MAX - total_) refuse(verb, rank, "the sum of the counts does not fit into 64 bits", site);
      append(member, count);
      longest_ = std::max(longest_, count);
    }
    layout_ = layout_of(counts);
  }

  int size() const noexcept { return size_; }
  Range operator[](int member) const noexcept { return runs_[member]; }
  std::size_t total() const noexcept { return total_; }
  std::size_t longest() const noexcept { return longest_; }
  /// For Call::layout.
  std::uint32_t layout() const noexcept { return layout_; }

 private:
  void append(int member, std::size_t count) noexcept {
    runs_[member] = {total_, total_ + count};
    total_ += count;
  }

  PerRank<Range> runs_;
  int size_;
  std::size_t total_ = 0;
  std::size_t longest_ = 0;
  std::uint32_t layout_ = 0;
};

}  // namespace tandem::detail
