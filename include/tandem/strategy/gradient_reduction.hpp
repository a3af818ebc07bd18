// SPDX-License-Identifier: Apache-2.0
// What becomes of a full bucket of gradients: the average of all ranks, to all of them or to the owners of its parts.
// Knows no hooks and no parameters' use.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tandem/collective/async.hpp"
#include "tandem/collective/detail/runs.hpp"
#include "tandem/collective/reduce_scatter.hpp"
#include "tandem/collective/work.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/bytes.hpp"
#include "tandem/core/call_site.hpp"
#include "tandem/core/dtype.hpp"
#include "tandem/reduce/functor.hpp"
#include "tandem/reduce/order.hpp"
#include "tandem/tensor/bucket.hpp"
#include "tandem/tensor/bucket_layout.hpp"
#include "tandem/tensor/detail/arguments.hpp"
#include "tandem/tensor/flat_layout.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem {

namespace detail {

/// Every gradient times 1/N, then the sum. The scale is a double: the reduction converts it to the type that computes,
/// as PyTorch's mul with a number does.
using Average = PreMulSum<double>;
inline Average average_over(int ranks) { return {1.0 / ranks}; }

}  // namespace detail

/// DDP's: every rank gets all averages, in the bucket itself.
class AllReduceGradients {
 public:
  /// Do all parameters' gradients hold averages afterwards, on every rank?
  static constexpr bool whole = true;

  /// How buckets of these layouts are to lie in memory; from now on they are the buckets.
  std::vector<BucketLayout> arrange(std::vector<BucketLayout> layouts) { return layouts; }
  template <class T>
  Work begin(Communicator<T>& comm, std::size_t, const Bucket& bucket, CallSite site) {
    const TensorView view = bucket.elements();
    Work work;
    detail::visit_reducible<detail::Average>(view.dtype, "backward", [&](auto element) {
      work = all_reduce_async(comm, view.template as<decltype(element)>(), detail::average_over(comm.size()), {}, site);
    });
    return work;
  }
  /// The work of a bucket is done. True when its memory is no longer needed.
  bool finished(std::size_t, const Bucket&) { return false; }
};

/// The part of a parameter that this rank owns, as its memory: one dimension.
struct Shard {
  std::size_t item;  ///< index of the parameter
  Range range;       ///< elements of it, counted in its memory
  at::Tensor value;
};

/// ZeRO's: each rank gets the averages of what it owns, as the gradients of its shards. A bucket lies in memory in
/// registration order, so that what a rank owns of it is one run; it is folded in the order of PyTorch's bucket, which
/// holds the same elements as they arrived. So the bits are DDP's, owners never move, and a bucket sends
/// D (N-1) / N bytes where an all-reduce sends twice as many.
class ScatterGradients {
 public:
  static constexpr bool whole = false;

  /// With `release`, a bucket's memory goes once it is reduced, and the shards' gradients have memory of their own;
  /// else these lie in the buckets.
  ScatterGradients(FlatLayout flat, int rank, std::vector<Shard> shards, bool release)
      : flat_(std::move(flat)), rank_(rank), shards_(std::move(shards)), release_(release), held_(shards_.size()) {}

  const std::vector<Shard>& shards() const noexcept { return shards_; }

  std::vector<BucketLayout> arrange(std::vector<BucketLayout> layouts) {
    plans_.clear();
    std::vector<BucketLayout> arranged;
    for (const BucketLayout& layout : layouts) arranged.push_back(arrange(layout));
    return arranged;
  }
  template <class T>
  Work begin(Communicator<T>& comm, std::size_t index, const Bucket& bucket, CallSite site) {
    const Plan& plan = plans_[index];
    const TensorView view = bucket.elements();
    Work work;
    detail::visit_reducible<detail::Average>(view.dtype, "backward", [&](auto element) {
      using E = decltype(element);
      const auto average = detail::average_over(comm.size());
      const std::span<E> all = view.template as<E>();
      const detail::Runs runs(Verb::reduce_scatter_v, comm.rank(), comm.size(), plan.counts, site);
      Call call = detail::call_by_counts<E, GlooRing>(comm.rank(), all.size(), runs, pending_algorithm, average, site);
      call.layout = plan.fingerprint;  // of the table, too
      work = detail::begin_reduce_scatter_v<T, E>(comm, call, all, all.subspan(plan.own.begin, plan.own.size()), runs,
                                                  average, plan.table, {}, {});
    });
    return work;
  }
  bool finished(std::size_t index, const Bucket& bucket) {
    const c10::AutoGradMode no_grad(false);
    for (const Part& part : plans_[index].parts) {
      at::Tensor& value = shards_[part.shard].value;
      const at::Tensor reduced = bucket.flat().narrow(0, static_cast<std::int64_t>(part.at), value.numel());
      if (release_) {
        at::Tensor& held = held_[part.shard];
        if (!held.defined()) held = value.detach().new_empty(value.sizes());
        held.copy_(reduced);
        value.mutable_grad() = held;
      } else {
        value.mutable_grad() = reduced;
      }
    }
    return release_;
  }

 private:
  struct Part {
    std::size_t shard;
    std::size_t at;  // its first element in the bucket
  };
  struct Plan {
    RearrangedTable table;
    std::vector<std::size_t> counts;  // elements by owner
    Range own;
    std::vector<Part> parts;
    std::uint32_t fingerprint = 0;
  };

  BucketLayout arrange(const BucketLayout& layout) {
    BucketLayout memory;
    memory.dtype = layout.dtype;
    memory.count = layout.count;
    memory.items = layout.items;
    std::sort(memory.items.begin(), memory.items.end());

    Plan plan;
    plan.counts.assign(static_cast<std::size_t>(flat_.ranks()), 0);
    std::vector<RearrangedTable::Part> moved;
    std::vector<std::size_t> facts;
    std::size_t at = 0;
    for (const std::size_t item : memory.items) {
      const auto original =
          static_cast<std::size_t>(std::find(layout.items.begin(), layout.items.end(), item) - layout.items.begin());
      const std::size_t count = flat_.place_of(item).size();
      moved.push_back({layout.offsets[original], count});
      facts.push_back(layout.offsets[original]);
      for (int rank = 0; rank < flat_.ranks(); ++rank) {
        const Range owned = flat_.owned(item, rank);
        plan.counts[static_cast<std::size_t>(rank)] += owned.size();
        if (rank != rank_ || owned.empty()) continue;
        const auto shard =
            std::find_if(shards_.begin(), shards_.end(), [&](const Shard& it) { return it.item == item; });
        plan.parts.push_back({static_cast<std::size_t>(shard - shards_.begin()), at + owned.begin});
      }
      memory.offsets.push_back(at);
      at += count;
    }
    for (int rank = 0; rank < rank_; ++rank) plan.own.begin += plan.counts[static_cast<std::size_t>(rank)];
    plan.own.end = plan.own.begin + plan.counts[static_cast<std::size_t>(rank_)];
    plan.table = RearrangedTable(GlooRing::table(layout.count, size_of(layout.dtype), flat_.ranks()), moved);
    facts.insert(facts.end(), plan.counts.begin(), plan.counts.end());
    plan.fingerprint = detail::layout_of(facts);
    plans_.push_back(std::move(plan));
    return memory;
  }

  FlatLayout flat_;
  int rank_;
  std::vector<Shard> shards_;  // at most one a parameter, in registration order
  bool release_;
  std::vector<at::Tensor> held_;
  std::vector<Plan> plans_;
};

}  // namespace tandem
