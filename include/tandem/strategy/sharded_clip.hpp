// SPDX-License-Identifier: Apache-2.0
// Gradient clipping where every rank has the gradients of its shards only, with the bits of clipping whole gradients:
// a parameter that several ranks own in parts is made whole for its norm. Collective.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tandem/comm/communicator.hpp"
#include "tandem/core/bytes.hpp"
#include "tandem/core/error.hpp"
#include "tandem/strategy/clip.hpp"
#include "tandem/strategy/parameter.hpp"
#include "tandem/tensor/bucket.hpp"
#include "tandem/tensor/flat_layout.hpp"
#include "tandem/tensor/torch.hpp"
#include "tandem/tensor/transfers.hpp"

namespace tandem {

namespace detail {

/// Who sends which part of a cut parameter to its home, the owner of its first element. A rank's shard is one run of
/// the flat buffer, so of parameters that begin elsewhere it has at most one; and at most one of its own goes on.
template <class T>
class CutParameters {
 public:
  CutParameters(Communicator<T>& comm, const FlatLayout& layout, const std::vector<NamedParameter>& parameters,
                const std::vector<Shard>& shards, const std::vector<bool>& present)
      : comm_(comm), layout_(layout), parameters_(parameters), shards_(shards) {
    for (const FlatLayout::Group& group : layout_.groups()) {
      std::vector<std::size_t>& items = items_.emplace_back();
      for (const std::size_t item : group.items) {
        if (present[item]) items.push_back(item);
      }
    }
  }

  /// Those of a group that have gradients.
  const std::vector<std::size_t>& items(std::size_t group) const noexcept { return items_[group]; }

  /// The norms of all gradients of a group, in registration order, the same on all ranks.
  std::vector<at::Tensor> norms(std::size_t group) {
    std::vector<std::size_t> homes(static_cast<std::size_t>(comm_.size()), 0);
    std::size_t before = 0;  // items whose home is a lower rank
    for (const std::size_t item : items_[group]) {
      const int home = layout_.home_of(item);
      ++homes[static_cast<std::size_t>(home)];
      if (home < comm_.rank()) ++before;
    }
    const auto type = scalar_type_of(layout_.groups()[group].dtype);
    const at::Tensor all = parameters_.front().value.detach().new_empty(
        {static_cast<std::int64_t>(items_[group].size())}, at::TensorOptions(type));
    const at::Tensor mine = all.narrow(0, static_cast<std::int64_t>(before),
                                       static_cast<std::int64_t>(homes[static_cast<std::size_t>(comm_.rank())]));
    const at::Tensor rest = the_rest_of_my_last(group, type);
    std::int64_t place = 0;
    for (const std::size_t item : items_[group]) {
      if (layout_.home_of(item) != comm_.rank()) continue;
      mine.select(0, place++).copy_(gradient_norm(whole(item, rest)));
    }
    all_gather_v(comm_, mine, all, homes);
    std::vector<at::Tensor> result;
    for (std::int64_t i = 0; i < all.numel(); ++i) result.push_back(all.select(0, i));
    return result;
  }

 private:
  const at::Tensor& gradient_of(std::size_t item) const {
    for (const Shard& shard : shards_) {
      if (shard.item == item) return shard.value.grad();
    }
    static const at::Tensor none;
    return none;
  }
  /// What other ranks own of the last parameter of this rank's shard, one after another.
  at::Tensor the_rest_of_my_last(std::size_t group, at::ScalarType type) {
    const auto ranks = static_cast<std::size_t>(comm_.size());
    std::vector<std::size_t> gives(ranks, 0), gets(ranks, 0);
    at::Tensor given;
    std::size_t sum = 0;
    for (const std::size_t item : items_[group]) {
      const int home = layout_.home_of(item);
      const Range own = layout_.owned(item, comm_.rank());
      if (home != comm_.rank()) {
        if (own.empty()) continue;
        gives[static_cast<std::size_t>(home)] = own.size();
        given = gradient_of(item);
        continue;
      }
      for (int rank = comm_.rank() + 1; rank < comm_.size(); ++rank) {
        const std::size_t part = layout_.owned(item, rank).size();
        gets[static_cast<std::size_t>(rank)] += part;
        sum += part;
      }
    }
    const at::Tensor like = parameters_.front().value.detach();
    const at::TensorOptions options(type);
    if (!given.defined()) given = like.new_empty({0}, options);
    at::Tensor rest = like.new_empty({static_cast<std::int64_t>(sum)}, options);
    all_to_all_v(comm_, given, gives, rest, gets);
    return rest;
  }
  /// The gradient of a parameter whose home this rank is, in the parameter's shape.
  at::Tensor whole(std::size_t item, const at::Tensor& rest) const {
    const at::Tensor& parameter = parameters_[item].value;
    const at::Tensor& own = gradient_of(item);
    if (parameter.numel() == 0) return parameter.detach();
    if (own.numel() == parameter.numel()) return view_like(parameter, own, 0);
    const at::Tensor all = own.new_empty({parameter.numel()});
    all.narrow(0, 0, own.numel()).copy_(own);
    all.narrow(0, own.numel(), rest.numel()).copy_(rest);
    return view_like(parameter, all, 0);
  }

  Communicator<T>& comm_;
  const FlatLayout& layout_;
  const std::vector<NamedParameter>& parameters_;
  const std::vector<Shard>& shards_;
  std::vector<std::vector<std::size_t>> items_;  // by group
};

}  // namespace detail

/// Scales the shards' gradients so that the norm of all gradients together is at most `limit`; that norm before, the
/// same bits on all ranks as clip_gradients gives for whole gradients. Sends each cut parameter's parts to one rank,
/// and one number per parameter to all. `present`: which parameters have gradients; the same on all ranks.
template <class T>
double clip_shards(Communicator<T>& comm, const FlatLayout& layout, const std::vector<NamedParameter>& parameters,
                   const std::vector<Shard>& shards, const std::vector<bool>& present, double limit) {
  if (parameters.empty()) return 0.0;
  const c10::AutoGradMode no_grad(false);
  for (const Shard& shard : shards) {
    if (!present[shard.item] || shard.value.grad().defined()) continue;
    throw Error(ErrorKind::argument,
                "tandem: the gradient of this rank's part of parameter \"" + parameters[shard.item].name +
                    "\" is undefined and cannot be clipped; zero it instead",
                comm.rank());
  }
  detail::CutParameters<T> cut(comm, layout, parameters, shards, present);
  std::vector<at::Tensor> norms(parameters.size());
  for (std::size_t group = 0; group < layout.groups().size(); ++group) {
    const std::vector<at::Tensor> some = cut.norms(group);
    for (std::size_t i = 0; i < some.size(); ++i) norms[cut.items(group)[i]] = some[i];
  }
  std::erase_if(norms, [](const at::Tensor& norm) { return !norm.defined(); });
  const ClipScale scale = clip_scale(norms, limit);
  if (scale.factor.defined()) {
    for (const Shard& shard : shards) {
      if (present[shard.item]) shard.value.grad().mul_(scale.factor);
    }
  }
  return scale.norm;
}

}  // namespace tandem
