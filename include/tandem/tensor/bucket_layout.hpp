// SPDX-License-Identifier: Apache-2.0
// Which parameters share a bucket, and in which order: PyTorch's rule as arithmetic on sizes. Names no tensor library,
// so that it is tested without one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tandem/core/dtype.hpp"
#include "tandem/core/error.hpp"

namespace tandem {

/// When a bucket is full. A bucket is closed after the tensor that makes it at least as large as its cap; the last cap
/// of the list holds for all further buckets.
struct BucketCaps {
  std::vector<std::size_t> bytes{std::size_t{1} << 20, std::size_t{25} << 20};
  /// False: step 1 uses one bucket per dtype, as PyTorch does unless it is given a list.
  bool from_first_step = false;

  /// One size for every bucket, the first included: DDP's bucket_cap_mb.
  static BucketCaps every(std::size_t bytes) { return {{bytes}, false}; }
  /// One size per bucket, in force from step 1: DDP's bucket_cap_mb_list.
  static BucketCaps list(std::vector<std::size_t> bytes) { return {std::move(bytes), true}; }

  friend bool operator==(const BucketCaps&, const BucketCaps&) = default;
};

/// A parameter as the layout sees it.
struct BucketItem {
  std::size_t count = 0;  ///< elements
  Dtype dtype = Dtype::float32;
};

/// Parameters packed back to back into one flat buffer of one dtype.
struct BucketLayout {
  Dtype dtype = Dtype::float32;
  std::vector<std::size_t> items;    ///< indices into the parameters, in the order in which they are packed
  std::vector<std::size_t> offsets;  ///< first element of each of them
  std::size_t count = 0;             ///< elements in all

  friend bool operator==(const BucketLayout&, const BucketLayout&) = default;
};

namespace detail {

inline BucketLayout pack(std::span<const BucketItem> items, std::vector<std::size_t> chosen) {
  BucketLayout layout;
  layout.dtype = items[chosen.front()].dtype;
  for (const std::size_t index : chosen) {
    layout.offsets.push_back(layout.count);
    layout.count += items[index].count;
  }
  layout.items = std::move(chosen);
  return layout;
}

/// The common rule: walk `order`, one open bucket and one cap counter per dtype. The result is in the order in which
/// the buckets' last members come, which is the order in which they will be full.
inline std::vector<BucketLayout> cut_buckets(std::span<const BucketItem> items, std::span<const std::size_t> order,
                                             std::span<const std::size_t> caps) {
  struct Open {
    Dtype dtype;
    std::vector<std::size_t> chosen;
    std::size_t bytes;
    std::size_t closed;  // how many of this dtype were closed: which cap holds
  };
  std::vector<Open> open;
  std::vector<std::pair<std::size_t, BucketLayout>> closed;  // with the position in `order` of the last member
  std::vector<std::size_t> position(items.size());
  for (std::size_t i = 0; i < order.size(); ++i) position[order[i]] = i;
  const auto close = [&](Open& bucket) {
    const std::size_t last = position[bucket.chosen.back()];
    closed.emplace_back(last, pack(items, std::exchange(bucket.chosen, {})));
    bucket.bytes = 0;
    ++bucket.closed;
  };
  for (const std::size_t index : order) {
    const BucketItem& item = items[index];
    auto bucket = std::find_if(open.begin(), open.end(), [&](const Open& each) { return each.dtype == item.dtype; });
    if (bucket == open.end()) bucket = open.insert(open.end(), Open{item.dtype, {}, 0, 0});
    bucket->chosen.push_back(index);
    bucket->bytes += item.count * size_of(item.dtype);
    if (bucket->bytes >= caps[std::min(bucket->closed, caps.size() - 1)]) close(*bucket);
  }
  for (Open& bucket : open) {
    if (!bucket.chosen.empty()) close(bucket);
  }
  std::sort(closed.begin(), closed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<BucketLayout> done;
  for (auto& [last, layout] : closed) done.push_back(std::move(layout));
  return done;
}

inline void check(const BucketCaps& caps) {
  if (caps.bytes.empty()) {
    throw Error(ErrorKind::argument, "tandem: BucketCaps has no cap; give at least one size in bytes");
  }
}

/// Which places of a layout's items come together: runs of at least `bytes`, but for the last, as the items come:
/// item i in turn turns[i].
inline std::vector<std::vector<std::size_t>> runs_of_places(const BucketLayout& layout,
                                                            std::span<const std::size_t> turns, std::size_t bytes) {
  std::vector<std::vector<std::size_t>> runs;
  std::vector<std::size_t> places(layout.items.size());
  for (std::size_t place = 0; place < places.size(); ++place) places[place] = place;
  std::sort(places.begin(), places.end(),
            [&](std::size_t a, std::size_t b) { return turns[layout.items[a]] < turns[layout.items[b]]; });
  std::size_t gathered = bytes;  // of the last run
  for (const std::size_t place : places) {
    if (gathered >= bytes) runs.emplace_back(), gathered = 0;
    runs.back().push_back(place);
    const std::size_t end = place + 1 < places.size() ? layout.offsets[place + 1] : layout.count;
    gathered += (end - layout.offsets[place]) * size_of(layout.dtype);
  }
  return runs;
}

}  // namespace detail

/// Step 1: one bucket per dtype in registration order (or cut by an explicit list), last bucket first, because
/// gradients arrive roughly backwards.
inline std::vector<BucketLayout> first_buckets(std::span<const BucketItem> items, const BucketCaps& caps) {
  detail::check(caps);
  std::vector<std::size_t> order(items.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const std::size_t unlimited = std::numeric_limits<std::size_t>::max();
  auto buckets = detail::cut_buckets(
      items, order,
      caps.from_first_step ? std::span<const std::size_t>(caps.bytes) : std::span<const std::size_t>(&unlimited, 1));
  std::sort(buckets.begin(), buckets.end(),
            [](const BucketLayout& a, const BucketLayout& b) { return a.items.front() > b.items.front(); });
  return buckets;
}

/// The order in which gradients of `count` parameters come as far as anybody knows before step 1.
inline std::vector<std::size_t> backwards(std::size_t count) {
  std::vector<std::size_t> order(count);
  for (std::size_t i = 0; i < count; ++i) order[i] = count - 1 - i;
  return order;
}

/// From step 2 on: cut along the order in which gradients arrived in step 1 on rank 0. `arrival` is a permutation of
/// the item indices.
inline std::vector<BucketLayout> rebuilt_buckets(std::span<const BucketItem> items,
                                                 std::span<const std::size_t> arrival, const BucketCaps& caps) {
  detail::check(caps);
  if (arrival.size() != items.size()) {
    throw Error(ErrorKind::argument, "tandem: " + std::to_string(arrival.size()) + " gradients arrived for " +
                                         std::to_string(items.size()) + " parameters");
  }
  return detail::cut_buckets(items, arrival, caps.bytes);
}

}  // namespace tandem
