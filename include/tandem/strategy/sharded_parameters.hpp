// SPDX-License-Identifier: Apache-2.0
// Parameters of which each rank keeps its shard: a unit of them is whole only between a gather and its release. Knows
// who owns what and where a unit lies, not when it is needed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tandem/collective/async.hpp"
#include "tandem/collective/work.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/bytes.hpp"
#include "tandem/core/call_site.hpp"
#include "tandem/core/error.hpp"
#include "tandem/strategy/options.hpp"
#include "tandem/strategy/parameter.hpp"
#include "tandem/strategy/removable_memory.hpp"
#include "tandem/tensor/bucket.hpp"
#include "tandem/tensor/flat_layout.hpp"
#include "tandem/tensor/scalar_type.hpp"
#include "tandem/tensor/storage.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem {

/// Takes the parameters' memory: they stay the same tensors, which have values while their unit is gathered. Gathered
/// memory is a copy: what is written to it is lost with its release.
template <class T>
class ShardedParameters {
 public:
  /// All ranks' parameters have the same values.
  ShardedParameters(Communicator<T>& comm, const std::vector<NamedParameter>& parameters, FlatLayout layout,
                    const UnitMap& units)
      : comm_(comm), layout_(std::move(layout)), units_(units.units) {
    const c10::AutoGradMode no_grad(false);
    for (std::size_t group = 0; group < layout_.groups().size(); ++group) {
      const auto count = static_cast<std::int64_t>(layout_.shard(group, comm_.rank()).size());
      own_.push_back(arena_empty(comm_.arena(), {count}, scalar_type_of(layout_.groups()[group].dtype)));
    }
    for (std::size_t item = 0; item < parameters.size(); ++item)
      adopt(item, parameters[item], units_[units.unit_of[item]]);
    for (Unit& unit : units_) {
      for (Piece& piece : unit.pieces) {
        const std::size_t size = size_of(layout_.groups()[piece.group].dtype);
        for (int rank = 0; rank < comm_.size(); ++rank) piece.bytes.push_back(owned_of(piece, rank).size() * size);
      }
    }
  }

  const FlatLayout& layout() const noexcept { return layout_; }
  std::size_t units() const noexcept { return units_.size(); }
  /// What this rank owns, in registration order: leaves of one dimension over its own memory.
  std::vector<Shard> shards() const {
    std::vector<Shard> result;
    for (std::size_t item = 0; item < layout_.size(); ++item) {
      const Range owned = layout_.owned(item, comm_.rank());
      if (owned.empty()) continue;
      at::Tensor value = own_part(item, owned).detach();
      value.set_requires_grad(true);
      result.push_back({item, owned, std::move(value)});
    }
    return result;
  }

  /// Has it parameters of any size? Others are always whole.
  bool is_empty(std::size_t unit) const noexcept { return units_[unit].pieces.empty(); }
  /// Begins to make a unit whole. Collective.
  void begin_gather(std::size_t unit) {
    Unit& it = units_[unit];
    for (Piece& piece : it.pieces) {
      const Group& group = layout_.groups()[piece.group];
      const std::size_t size = size_of(group.dtype);
      piece.memory =
          arena_empty(comm_.arena(), {static_cast<std::int64_t>(piece.place.size())}, scalar_type_of(group.dtype));
      const Range own = owned_of(piece, comm_.rank());
      const Range shard = layout_.shard(piece.group, comm_.rank());
      const auto* const from = static_cast<const std::byte*>(own_[piece.group].data_ptr());
      const std::span<const std::byte> input =
          own.empty() ? std::span<const std::byte>()
                      : std::span(from + (own.begin - shard.begin) * size, own.size() * size);
      piece.work = all_gather_v_async(
          comm_, input, std::span(static_cast<std::byte*>(piece.memory.data_ptr()), piece.place.size() * size),
          piece.bytes, {}, CallSite{"a unit's parameters", "Trainer", static_cast<int>(unit)});
    }
  }
  /// Makes a unit whole that was begun.
  void finish_gather(std::size_t unit) {
    Unit& it = units_[unit];
    for (Piece& piece : it.pieces) {
      piece.work.wait();
      piece.work = Work();
    }
    for (Member& member : it.members) {
      const Piece& piece = it.pieces[member.piece];
      const std::size_t size = size_of(layout_.groups()[piece.group].dtype);
      auto* const begin = static_cast<std::byte*>(piece.memory.data_ptr());
      const Range place = layout_.place_of(member.item);
      member.memory.give(begin + (place.begin - piece.place.begin) * size, place.size() * size,
                         std::make_shared<at::Tensor>(piece.memory));
    }
  }
  /// Gives a whole unit's memory back.
  void release(std::size_t unit) {
    Unit& it = units_[unit];
    for (Member& member : it.members) member.memory.take();
    for (Piece& piece : it.pieces) piece.memory.reset();
  }

 private:
  using Group = FlatLayout::Group;
  /// Parameters that lie side by side in their group's flat order.
  struct Piece {
    std::size_t group;
    Range place;
    std::vector<std::size_t> bytes{};  // of each rank's part
    at::Tensor memory{};
    Work work{};
  };
  struct Member {
    std::size_t item;
    std::size_t piece;
    detail::RemovableMemory memory;
  };
  struct Unit {
    std::vector<Piece> pieces;
    std::vector<Member> members;
  };

  Range owned_of(const Piece& piece, int rank) const noexcept {
    const Range owned = intersect(piece.place, layout_.shard(piece.group, rank));
    return owned.empty() ? Range{} : owned;
  }
  at::Tensor own_part(std::size_t item, Range owned) const {
    const std::size_t group = layout_.group_of(item);
    const std::size_t begin = layout_.place_of(item).begin + owned.begin - layout_.shard(group, comm_.rank()).begin;
    return own_[group].narrow(0, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(owned.size()));
  }
  void adopt(std::size_t item, const NamedParameter& parameter, Unit& unit) {
    at::Tensor value = parameter.value;
    const at::Tensor flat = value.detach().new_empty({value.numel()});
    const at::Tensor view = view_like(value, flat, 0);
    view.copy_(value.detach());
    if (const Range owned = layout_.owned(item, comm_.rank()); !owned.empty()) {
      own_part(item, owned)
          .copy_(flat.narrow(0, static_cast<std::int64_t>(owned.begin), static_cast<std::int64_t>(owned.size())));
    }
    value.set_data(view);
    const std::size_t group = layout_.group_of(item);
    const Range place = layout_.place_of(item);
    if (place.empty()) return;  // nothing to gather
    auto piece = std::find_if(unit.pieces.begin(), unit.pieces.end(),
                              [&](const Piece& it) { return it.group == group && it.place.end == place.begin; });
    if (piece == unit.pieces.end()) piece = unit.pieces.insert(piece, Piece{group, {place.begin, place.begin}});
    piece->place.end = place.end;
    unit.members.push_back(
        {item, static_cast<std::size_t>(piece - unit.pieces.begin()), detail::RemovableMemory(value, parameter.name)});
  }

  Communicator<T>& comm_;
  FlatLayout layout_;
  std::vector<at::Tensor> own_;  // this rank's shard, by group of the layout
  std::vector<Unit> units_;
};

}  // namespace tandem
