// SPDX-License-Identifier: Apache-2.0
// What ZeRO does with a full bucket of gradients: each rank gets the averages of what it owns. Knows no hooks and no
// parameters' use.
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
#include "tandem/reduce/order.hpp"
#include "tandem/strategy/compression.hpp"
#include "tandem/strategy/parameter.hpp"
#include "tandem/tensor/bucket.hpp"
#include "tandem/tensor/bucket_layout.hpp"
#include "tandem/tensor/detail/arguments.hpp"
#include "tandem/tensor/flat_layout.hpp"
#include "tandem/tensor/torch.hpp"
#include "tandem/tensor/view.hpp"

namespace tandem {

/// The averages become the gradients of the shards. PyTorch's buckets are reduced in pieces as they fill, so that
/// little memory is under way; a piece is folded in the order of the bucket, which holds the same elements as they
/// arrived, and lies in memory in registration order, so that what a rank owns of it is one run. So the bits are DDP's,
/// owners never move, and a bucket sends D (N-1) / N bytes where an all-reduce sends twice as many.
template <class Compression>
class ScatterGradients {
 public:
  static constexpr bool whole = false;

  /// Pieces have at least `piece_bytes`, but for a bucket's last. With `release`, a piece's memory goes once it is
  /// reduced, and the shards' gradients have memory of their own; else these lie in the pieces. With `add_up` too, what
  /// a shard already has is added to.
  ScatterGradients(FlatLayout flat, int rank, std::vector<Shard> shards, std::size_t piece_bytes, bool release,
                   bool add_up)
      : piece_bytes_(piece_bytes),
        flat_(std::move(flat)),
        rank_(rank),
        shards_(std::move(shards)),
        release_(release),
        add_up_(add_up),
        held_(shards_.size()) {}

  const std::vector<Shard>& shards() const noexcept { return shards_; }

  /// The pieces in which buckets of these layouts are reduced; from now on they are the buckets. In the order in which
  /// they fill when gradients come in `order`, a permutation of the items: several dtypes take turns.
  std::vector<BucketLayout> arrange(const std::vector<BucketLayout>& layouts, std::span<const std::size_t> order) {
    plans_.clear();
    std::vector<std::size_t> turns(order.size());
    for (std::size_t turn = 0; turn < order.size(); ++turn) turns[order[turn]] = turn;
    struct Run {
      const BucketLayout& layout;
      std::vector<std::size_t> places;
      std::size_t full;
    };
    std::vector<Run> runs;
    for (const BucketLayout& layout : layouts) {
      for (auto& places : detail::runs_of_places(layout, turns, piece_bytes_)) {
        const std::size_t full = turns[layout.items[places.back()]];
        runs.push_back({layout, std::move(places), full});
      }
    }
    std::vector<const Run*> as_they_fill;
    for (const Run& run : runs) as_they_fill.push_back(&run);
    std::sort(as_they_fill.begin(), as_they_fill.end(), [](const Run* a, const Run* b) { return a->full < b->full; });
    std::vector<BucketLayout> pieces;
    for (const Run* run : as_they_fill) pieces.push_back(arrange(run->layout, run->places));
    wire_.arrange(pieces.size());
    return pieces;
  }
  template <class T>
  Work begin(Communicator<T>& comm, std::size_t index, const Bucket& bucket, CallSite site) {
    const Plan& plan = plans_[index];
    const TensorView view = wire_.load(comm, index, bucket);
    Work work;
    detail::visit_reducible<typename Wire::Average>(view.dtype, "backward", [&](auto element) {
      using E = decltype(element);
      const auto average = Wire::average(comm.size());
      const std::span<E> all = view.template as<E>();
      const detail::Runs runs(Verb::reduce_scatter_v, comm.rank(), comm.size(), plan.counts, site);
      Call call = detail::call_by_counts<E, GlooRing>(comm.rank(), all.size(), runs, pending_algorithm, average, site);
      call.layout = plan.fingerprint;  // of the table, too
      work = detail::begin_reduce_scatter_v<T, E>(comm, call, all, all.subspan(plan.own.begin, plan.own.size()), runs,
                                                  average, plan.table, {}, {});
    });
    return work;
  }
  /// Does a piece's memory go once it is reduced?
  bool releases() const noexcept { return release_; }
  void finished(std::size_t index, const Bucket& bucket) {
    const c10::AutoGradMode no_grad(false);
    wire_.store(index, bucket, plans_[index].own.begin, plans_[index].own.size());
    for (const Part& part : plans_[index].parts) {
      at::Tensor& value = shards_[part.shard].value;
      const at::Tensor reduced = bucket.flat().narrow(0, static_cast<std::int64_t>(part.at), value.numel());
      if (!release_) {
        value.mutable_grad() = reduced;
      } else if (add_up_ && value.grad().defined()) {
        value.mutable_grad().add_(reduced);
      } else {
        at::Tensor& held = held_[part.shard];
        if (!held.defined()) held = value.detach().new_empty(value.sizes());
        held.copy_(reduced);
        value.mutable_grad() = held;
      }
    }
    if (release_) wire_.release(index);
  }
  /// No rank has a gradient of this parameter: its shard has none either.
  void forget(std::size_t item) {
    for (Shard& shard : shards_) {
      if (shard.item == item) shard.value.mutable_grad().reset();
    }
  }
  /// Do the shards hold sums to which the next averages are added?
  bool adds_up() const {
    return add_up_ &&
           std::any_of(shards_.begin(), shards_.end(), [](const Shard& it) { return it.value.grad().defined(); });
  }

 private:
  using Wire = detail::GradientWire<Compression>;
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

  /// The items at these places of a layout, as one piece.
  BucketLayout arrange(const BucketLayout& layout, std::vector<std::size_t> places) {
    std::sort(places.begin(), places.end(),
              [&](std::size_t a, std::size_t b) { return layout.items[a] < layout.items[b]; });
    BucketLayout memory;
    memory.dtype = layout.dtype;

    Plan plan;
    plan.counts.assign(static_cast<std::size_t>(flat_.ranks()), 0);
    std::vector<RearrangedTable::Part> moved;
    std::vector<std::size_t> facts{layout.count};
    std::size_t at = 0;
    for (const std::size_t place : places) {
      const std::size_t item = layout.items[place];
      const std::size_t count = flat_.place_of(item).size();
      moved.push_back({layout.offsets[place], count});
      facts.push_back(layout.offsets[place]);
      for (int rank = 0; rank < flat_.ranks(); ++rank) {
        const Range owned = flat_.owned(item, rank);
        plan.counts[static_cast<std::size_t>(rank)] += owned.size();
        if (rank != rank_ || owned.empty()) continue;
        const auto shard =
            std::find_if(shards_.begin(), shards_.end(), [&](const Shard& it) { return it.item == item; });
        plan.parts.push_back({static_cast<std::size_t>(shard - shards_.begin()), at + owned.begin});
      }
      memory.items.push_back(item);
      memory.offsets.push_back(at);
      at += count;
    }
    memory.count = at;
    for (int rank = 0; rank < rank_; ++rank) plan.own.begin += plan.counts[static_cast<std::size_t>(rank)];
    plan.own.end = plan.own.begin + plan.counts[static_cast<std::size_t>(rank_)];
    plan.table =
        RearrangedTable(GlooRing::table(layout.count, size_of(Wire::dtype(layout.dtype)), flat_.ranks()), moved);
    facts.insert(facts.end(), plan.counts.begin(), plan.counts.end());
    plan.fingerprint = detail::layout_of(facts);
    plans_.push_back(std::move(plan));
    return memory;
  }

  std::size_t piece_bytes_;
  FlatLayout flat_;
  int rank_;
  std::vector<Shard> shards_;  // at most one a parameter, in registration order
  bool release_;
  bool add_up_;
  Wire wire_;
  std::vector<at::Tensor> held_;
  std::vector<Plan> plans_;
};

}  // namespace tandem
