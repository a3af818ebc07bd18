// SPDX-License-Identifier: Apache-2.0
// All parameters of a dtype back to back in registration order, cut evenly into one shard per rank: where each
// parameter lies and who owns what of it. Arithmetic on sizes; names no tensor library.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "tandem/core/bytes.hpp"
#include "tandem/core/dtype.hpp"
#include "tandem/tensor/bucket_layout.hpp"

namespace tandem {

/// The cut is made once, flat and even (ZeRO's partition): shard r of `count` elements is slice_of(count, ranks, r), so
/// the last shards are short or empty where the number of ranks does not divide. A parameter may lie in several shards.
class FlatLayout {
 public:
  struct Group {
    Dtype dtype = Dtype::float32;
    std::size_t count = 0;           ///< elements
    std::vector<std::size_t> items;  ///< parameters in registration order
  };

  FlatLayout() = default;
  FlatLayout(std::span<const BucketItem> items, int ranks) : ranks_(ranks) {
    for (std::size_t index = 0; index < items.size(); ++index) {
      const BucketItem& item = items[index];
      std::size_t group = 0;
      while (group < groups_.size() && groups_[group].dtype != item.dtype) ++group;
      if (group == groups_.size()) groups_.push_back({item.dtype, 0, {}});
      Group& it = groups_[group];
      places_.push_back({group, {it.count, it.count + item.count}});
      it.items.push_back(index);
      it.count += item.count;
    }
  }

  int ranks() const noexcept { return ranks_; }
  /// Parameters.
  std::size_t size() const noexcept { return places_.size(); }
  /// One per dtype, in the order in which they first appear.
  const std::vector<Group>& groups() const noexcept { return groups_; }
  std::size_t group_of(std::size_t item) const noexcept { return places_[item].group; }
  /// Where a parameter lies in its group's flat buffer.
  Range place_of(std::size_t item) const noexcept { return places_[item].range; }
  Range shard(std::size_t group, int rank) const noexcept { return slice_of(groups_[group].count, ranks_, rank); }
  /// What a rank owns of a parameter, counted from the parameter's first element; empty when nothing.
  Range owned(std::size_t item, int rank) const noexcept {
    const Range place = place_of(item);
    const Range mine = intersect(place, shard(group_of(item), rank));
    return mine.empty() ? Range{} : Range{mine.begin - place.begin, mine.end - place.begin};
  }
  /// The rank that owns a parameter's first element; that before which it would lie when it has none.
  int home_of(std::size_t item) const noexcept {
    const std::size_t each = shard(group_of(item), 0).size();
    return each == 0 ? 0 : static_cast<int>(std::min<std::size_t>(place_of(item).begin / each, ranks_ - 1U));
  }

 private:
  struct Place {
    std::size_t group;
    Range range;
  };
  int ranks_ = 1;
  std::vector<Group> groups_;
  std::vector<Place> places_;
};

}  // namespace tandem
