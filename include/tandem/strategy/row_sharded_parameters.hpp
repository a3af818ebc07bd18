// SPDX-License-Identifier: Apache-2.0
// Parameters of which each rank keeps its rows: FSDP2's cut. A unit of them is whole only between a gather and its
// release. Knows not when a unit is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tandem/collective/work.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/error.hpp"
#include "tandem/strategy/options.hpp"
#include "tandem/strategy/parameter.hpp"
#include "tandem/strategy/removable_memory.hpp"
#include "tandem/tensor/async.hpp"
#include "tandem/tensor/row_layout.hpp"
#include "tandem/tensor/storage.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem {

/// Takes the parameters' memory, as ShardedParameters does. Gathered memory is a copy: what is written to it is lost.
template <class T>
class RowShardedParameters {
 public:
  /// All ranks' parameters have the same values. Throws Error(argument) for parameters that are not contiguous, and for
  /// a unit of several dtypes, which fully_shard refuses too.
  RowShardedParameters(Communicator<T>& comm, const std::vector<NamedParameter>& parameters, const UnitMap& units)
      : comm_(comm), units_(units.units) {
    std::vector<RowItem> items;
    for (std::size_t item = 0; item < parameters.size(); ++item) {
      const at::Tensor& value = parameters[item].value;
      const auto rows = static_cast<std::size_t>(value.dim() == 0 ? 1 : value.size(0));
      items.push_back({rows, rows == 0 ? 0 : static_cast<std::size_t>(value.numel()) / rows, units.unit_of[item]});
      Unit& unit = units_[units.unit_of[item]];
      if (unit.members.empty()) unit.type = value.scalar_type();
      if (!value.is_contiguous() || value.scalar_type() != unit.type) {
        throw Error(ErrorKind::argument,
                    "tandem: parameter \"" + parameters[item].name + "\" is " +
                        (value.is_contiguous() ? "of another dtype than others of its unit" : "not contiguous") +
                        "; fully_shard takes contiguous parameters of one dtype in a unit",
                    comm_.rank());
      }
      unit.members.push_back({item, nullptr});
    }
    layout_ = RowLayout(std::move(items), units.units, comm_.size());
    const c10::AutoGradMode no_grad(false);
    for (std::size_t index = 0; index < units_.size(); ++index) adopt(index, parameters);
  }

  const RowLayout& layout() const noexcept { return layout_; }
  std::size_t units() const noexcept { return units_.size(); }
  at::ScalarType type(std::size_t unit) const noexcept { return units_[unit].type; }
  /// The parameters of a unit, in registration order.
  std::vector<std::size_t> items(std::size_t unit) const {
    std::vector<std::size_t> result;
    for (const Member& member : units_[unit].members) result.push_back(member.item);
    return result;
  }
  /// What this rank owns, in registration order: leaves of one dimension over its own memory.
  std::vector<Shard> shards() const {
    std::vector<Shard> result;
    for (std::size_t item = 0; item < layout_.items().size(); ++item) {
      const Range owned = layout_.owned(item, comm_.rank());
      if (owned.empty()) continue;
      at::Tensor value =
          units_[layout_.items()[item].unit]
              .own.narrow(0, static_cast<std::int64_t>(layout_.offset(item)), static_cast<std::int64_t>(owned.size()))
              .detach();
      value.set_requires_grad(true);
      result.push_back({item, owned, std::move(value)});
    }
    return result;
  }

  bool is_empty(std::size_t unit) const noexcept { return layout_.shard(unit) == 0; }
  /// Begins to make a unit whole. Collective.
  void begin_gather(std::size_t unit) {
    Unit& it = units_[unit];
    if (is_empty(unit)) return;
    it.shards = arena_empty(comm_.arena(), {static_cast<std::int64_t>(layout_.shard(unit)) * comm_.size()}, it.type);
    it.work = all_gather_async(comm_, it.own, it.shards, {},
                               CallSite{"a unit's parameters", "Trainer", static_cast<int>(unit)});
  }
  /// Makes a unit whole that was begun.
  void finish_gather(std::size_t unit) {
    Unit& it = units_[unit];
    if (is_empty(unit)) return;
    it.work.wait();
    it.work = Work();
    const c10::AutoGradMode no_grad(false);
    for (Member& member : it.members) {
      if (!member.memory) continue;
      const auto part = static_cast<std::int64_t>(layout_.part(member.item));
      const auto offset = static_cast<std::int64_t>(layout_.offset(member.item));
      const auto shard = static_cast<std::int64_t>(layout_.shard(unit));
      const at::Tensor full = it.own.new_empty({part * comm_.size()});
      full.view({comm_.size(), part}).copy_(it.shards.view({comm_.size(), shard}).narrow(1, offset, part));
      member.memory->give(full.data_ptr(), full.nbytes(), std::make_shared<at::Tensor>(full));
    }
    it.shards.reset();
  }
  /// Gives a whole unit's memory back.
  void release(std::size_t unit) {
    Unit& it = units_[unit];
    for (Member& member : it.members) {
      if (member.memory) member.memory->take();
    }
  }

 private:
  struct Member {
    std::size_t item;
    std::unique_ptr<detail::RemovableMemory> memory;  // none for a parameter without elements
  };
  struct Unit {
    std::vector<Member> members;
    at::ScalarType type = at::kFloat;
    at::Tensor own{};     // this rank's shard
    at::Tensor shards{};  // all ranks', while they come
    Work work{};
  };

  void adopt(std::size_t index, const std::vector<NamedParameter>& parameters) {
    Unit& unit = units_[index];
    unit.own = arena_empty(comm_.arena(), {static_cast<std::int64_t>(layout_.shard(index))}, unit.type);
    unit.own.zero_();  // padding travels too
    for (Member& member : unit.members) {
      at::Tensor value = parameters[member.item].value;
      if (value.numel() == 0) continue;
      const at::Tensor flat = value.detach().reshape({-1}).clone();
      if (const Range owned = layout_.owned(member.item, comm_.rank()); !owned.empty()) {
        const auto length = static_cast<std::int64_t>(owned.size());
        unit.own.narrow(0, static_cast<std::int64_t>(layout_.offset(member.item)), length)
            .copy_(flat.narrow(0, static_cast<std::int64_t>(owned.begin), length));
      }
      value.set_data(flat.view(value.sizes()));
      member.memory = std::make_unique<detail::RemovableMemory>(value, parameters[member.item].name);
    }
  }

  Communicator<T>& comm_;
  RowLayout layout_;
  std::vector<Unit> units_;
};

}  // namespace tandem
