// SPDX-License-Identifier: Apache-2.0
// Parameters cut along their first dimension, unit by unit: which rows a rank owns and where they lie in the unit's
// shard. Arithmetic on sizes; names no tensor library.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "tandem/core/bytes.hpp"

namespace tandem {

/// A parameter as rows of equal length.
struct RowItem {
  std::size_t rows = 0;   ///< its first dimension; 1 for a number
  std::size_t width = 0;  ///< elements of a row
  std::size_t unit = 0;
};

/// FSDP2's cut: of every parameter each rank owns ceil(rows / ranks) rows, the last ones fewer or none, padded to as
/// many. A unit's shard holds these of all its parameters, one after another; all ranks' shards one after another are
/// the buffer that is gathered and reduced.
class RowLayout {
 public:
  RowLayout() = default;
  RowLayout(std::vector<RowItem> items, std::size_t units, int ranks) : items_(std::move(items)), ranks_(ranks) {
    shards_.assign(units, 0);
    for (const RowItem& item : items_) {
      std::size_t& shard = shards_[item.unit];
      offsets_.push_back(shard);
      shard += part_of(item);
    }
  }

  int ranks() const noexcept { return ranks_; }
  std::size_t units() const noexcept { return shards_.size(); }
  const std::vector<RowItem>& items() const noexcept { return items_; }
  /// Elements of a rank's shard of a unit, padding included.
  std::size_t shard(std::size_t unit) const noexcept { return shards_[unit]; }
  /// Where a parameter's part begins in the shard, and its elements there, padding included.
  std::size_t offset(std::size_t item) const noexcept { return offsets_[item]; }
  std::size_t part(std::size_t item) const noexcept { return part_of(items_[item]); }
  /// Elements of the parameter that a rank owns, counted in its memory; empty when none.
  Range owned(std::size_t item, int rank) const noexcept {
    const std::size_t all = items_[item].rows * items_[item].width, each = part(item);
    const Range range{std::min(all, static_cast<std::size_t>(rank) * each),
                      std::min(all, (static_cast<std::size_t>(rank) + 1) * each)};
    return range.empty() ? Range{} : range;
  }

 private:
  std::size_t part_of(const RowItem& item) const noexcept {
    const auto ranks = static_cast<std::size_t>(ranks_);
    return (item.rows + ranks - 1) / ranks * item.width;
  }

  std::vector<RowItem> items_;
  int ranks_ = 1;
  std::vector<std::size_t> shards_;   // by unit
  std::vector<std::size_t> offsets_;  // by item
};

}  // namespace tandem
