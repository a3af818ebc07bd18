// SPDX-License-Identifier: Apache-2.0
// Hands out ranges of an address space it never touches: best fit, neighbours joined again. Knows no memory, so it
// serves shared windows whose content peers may be reading. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tandem/core/bytes.hpp"

namespace tandem::detail {

class Extents {
 public:
  /// Everything in `space` is free; `grain` divides all offsets and sizes.
  Extents(Range space, std::size_t grain) : grain_(grain) {
    insert({round_up(space.begin, grain), space.end / grain * grain});
  }

  /// A free range of at least `bytes` (rounded up to the grain, at least one), its begin a multiple of `alignment`
  /// (a multiple of the grain). Empty optional when nothing fits.
  std::optional<Range> take(std::size_t bytes, std::size_t alignment) {
    if (by_size_.empty() || bytes > by_size_.rbegin()->first) return std::nullopt;  // so rounding up cannot wrap
    const std::size_t need = round_up(bytes == 0 ? 1 : bytes, grain_);
    for (auto it = by_size_.lower_bound({need, 0}); it != by_size_.end(); ++it) {
      const Range whole{it->second, it->second + it->first};
      const std::size_t begin = round_up(whole.begin, alignment);
      if (begin + need > whole.end) continue;
      erase(whole);
      insert({whole.begin, begin});
      insert({begin + need, whole.end});
      const Range taken{begin, begin + need};
      used_.emplace(taken.begin, taken.end);
      in_use_ += need;
      return taken;
    }
    return std::nullopt;
  }
  /// Gives back what take() returned, by its begin. False when that begin is not in use.
  bool give(std::size_t begin) {
    const auto it = used_.find(begin);
    if (it == used_.end()) return false;
    Range range{it->first, it->second};
    used_.erase(it);
    in_use_ -= range.size();
    auto next = free_.lower_bound(range.begin);
    if (next != free_.end() && next->first == range.end) {
      const Range right{next->first, next->second};
      erase(right);
      range.end = right.end;
    }
    next = free_.lower_bound(range.begin);
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->second == range.begin) {
        const Range left{before->first, before->second};
        erase(left);
        range.begin = left.begin;
      }
    }
    insert(range);
    return true;
  }
  /// Ranges in use, ascending.
  std::vector<Range> used() const {
    std::vector<Range> all;
    for (const auto& [begin, end] : used_) all.push_back({begin, end});
    return all;
  }
  /// The bytes of used().
  std::size_t in_use() const noexcept { return in_use_; }
  /// Free ranges before `limit`, ascending.
  std::vector<Range> free_before(std::size_t limit) const {
    std::vector<Range> all;
    for (const auto& [begin, end] : free_) {
      if (begin < limit) all.push_back({begin, std::min(end, limit)});
    }
    return all;
  }

 private:
  void insert(Range range) {
    if (range.empty()) return;
    free_.emplace(range.begin, range.end);
    by_size_.emplace(range.size(), range.begin);
  }
  void erase(Range range) {
    free_.erase(range.begin);
    by_size_.erase({range.size(), range.begin});
  }

  std::size_t grain_;
  std::map<std::size_t, std::size_t> free_;                // begin -> end
  std::set<std::pair<std::size_t, std::size_t>> by_size_;  // (size, begin): the lowest address among equal sizes
  std::map<std::size_t, std::size_t> used_;                // begin -> end
  std::size_t in_use_ = 0;
};

}  // namespace tandem::detail
