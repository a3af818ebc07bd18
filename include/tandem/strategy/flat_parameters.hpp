// SPDX-License-Identifier: Apache-2.0
// Parameters that lie back to back in registered memory, one flat buffer per dtype: a rank's own, or one for all ranks
// of the host. Knows who owns what, not how it is updated.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tandem/collective/barrier.hpp"
#include "tandem/collective/broadcast.hpp"
#include "tandem/comm/arena.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/error.hpp"
#include "tandem/strategy/parameter.hpp"
#include "tandem/tensor/bucket.hpp"
#include "tandem/tensor/flat_layout.hpp"
#include "tandem/tensor/scalar_type.hpp"
#include "tandem/tensor/storage.hpp"
#include "tandem/tensor/torch.hpp"
#include "tandem/tensor/transfers.hpp"

namespace tandem {

/// Moves the parameters' memory: they are the same tensors with the same values, as views into the flat buffers.
///
/// Shared, the buffers lie in rank 0's arena until the arena goes. An edit in place by every rank (p.mul_(2)) then
/// takes place N times: let one rank do it, between two barriers. A rank that dies in an update leaves the only copy
/// half updated.
template <class T>
class FlatParameters {
 public:
  /// Collective. All ranks' parameters have the same values.
  FlatParameters(Communicator<T>& comm, const std::vector<NamedParameter>& parameters, FlatLayout layout, bool shared)
      : comm_(comm), layout_(std::move(layout)), shared_(shared) {
    const c10::AutoGradMode no_grad(false);
    for (const FlatLayout::Group& group : layout_.groups()) buffers_.push_back(buffer_for(group));
    std::vector<at::Tensor> views;
    for (std::size_t item = 0; item < parameters.size(); ++item) {
      const at::Tensor& value = parameters[item].value;
      views.push_back(view_like(value, buffers_[layout_.group_of(item)], layout_.place_of(item).begin));
      if (!shared_ || comm_.rank() == 0) views.back().copy_(value.detach());
    }
    if (shared_) barrier(comm_);  // the values are there before anybody looks
    for (std::size_t item = 0; item < parameters.size(); ++item) {
      at::Tensor parameter = parameters[item].value;
      parameter.set_data(views[item]);
    }
  }

  bool shared() const noexcept { return shared_; }
  const FlatLayout& layout() const noexcept { return layout_; }

  /// What this rank owns, in registration order: leaves of one dimension over the parameters' own memory.
  std::vector<Shard> shards() const {
    std::vector<Shard> result;
    for (std::size_t item = 0; item < layout_.size(); ++item) {
      const Range owned = layout_.owned(item, comm_.rank());
      if (owned.empty()) continue;
      const at::Tensor& flat = buffers_[layout_.group_of(item)];
      const auto begin = static_cast<std::int64_t>(layout_.place_of(item).begin + owned.begin);
      at::Tensor value = flat.narrow(0, begin, static_cast<std::int64_t>(owned.size())).detach();
      value.set_requires_grad(true);
      result.push_back({item, owned, std::move(value)});
    }
    return result;
  }

  /// Before the owners change their shards: everybody is through with the old values. Collective.
  void before_update() {
    if (shared_) barrier(comm_);
  }
  /// After it: everybody sees all new values. Collective.
  void after_update() {
    if (shared_) return barrier(comm_);
    for (std::size_t group = 0; group < buffers_.size(); ++group) {
      const Range own = layout_.shard(group, comm_.rank());
      const at::Tensor& flat = buffers_[group];
      all_gather(comm_, flat.narrow(0, static_cast<std::int64_t>(own.begin), static_cast<std::int64_t>(own.size())),
                 flat);
    }
  }

 private:
  at::Tensor buffer_for(const FlatLayout::Group& group) {
    const auto count = static_cast<std::int64_t>(group.count);
    const at::IntArrayRef sizes(count);
    const at::ScalarType type = scalar_type_of(group.dtype);
    if (!shared_) return arena_empty(comm_.arena(), sizes, type);
    if constexpr (T::has_windows) {
      const std::size_t bytes = std::max<std::size_t>(group.count * size_of(group.dtype), 1);
      std::uint64_t place = 0;
      if (comm_.rank() == 0) {
        void* const memory = comm_.arena()->allocate(bytes);
        place = comm_.arena()->offset_of(memory, bytes);
      }
      broadcast(comm_, std::span<std::uint64_t>(&place, 1), 0);
      if (place == Arena::private_memory) {
        throw Error(
            ErrorKind::poisoned,
            "tandem: parameters cannot be shared, since rank 0's arena was given up after a failure; join again "
            "for a new one",
            comm_.rank());
      }
      auto& protocol = comm_.protocol();
      void* const memory = protocol.endpoint().window(protocol.endpoint_of(0)) + place;
      // The arena keeps the windows mapped, and keeps nobody from leaving while a parameter lives.
      return tensor_over(memory, sizes, type, comm_.arena());
    }
    throw Error(ErrorKind::argument,
                std::string("tandem: the ranks of ") + T::name +
                    " do not map each other's memory, so parameters cannot be shared; use "
                    "Placement::apart",
                comm_.rank());
  }

  Communicator<T>& comm_;
  FlatLayout layout_;
  bool shared_;
  std::vector<at::Tensor> buffers_;  // by group of the layout
};

}  // namespace tandem
