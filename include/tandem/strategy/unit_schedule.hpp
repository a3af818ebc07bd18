// SPDX-License-Identifier: Apache-2.0
// When each unit of a sharded model is whole: from just before it runs until just after, forward and backward, the next
// one under way meanwhile. Knows no layout and no optimizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tandem/core/error.hpp"
#include "tandem/strategy/options.hpp"
#include "tandem/strategy/parameter.hpp"
#include "tandem/tensor/torch.hpp"

namespace tandem {

/// Two units are whole at a time: the one that runs and the one that is on its way. All ranks must run the same units
/// in the same order; where they do not, the gathers that meet are refused as different operations.
///
/// `Sharded` is ShardedParameters or of its shape: begin_gather(unit), then finish_gather(unit), then release(unit).
template <class Sharded>
class UnitSchedule {
 public:
  /// With `reshard`, a unit is released after its forward and gathered again for its backward, but for the last one,
  /// whose backward is next; else it stays from one to the other.
  UnitSchedule(Sharded& sharded, const std::vector<NamedParameter>& parameters, const UnitMap& units, bool reshard)
      : sharded_(sharded), reshard_(reshard), passes_(std::make_shared<Passes>(sharded.units())) {
    for (std::size_t index = 0; index < parameters.size(); ++index) {
      const std::size_t unit = units.unit_of[index];
      ++passes_->units[unit].parameters;
      hooks_.push_back({parameters[index].value, parameters[index].value.register_hook([this, unit](const at::Tensor&) {
                          ++passes_->units[unit].arrived;
                          release_if_through(unit);
                          return at::Tensor();
                        })});
    }
    passes_->owner = this;
  }
  UnitSchedule(const UnitSchedule&) = delete;
  UnitSchedule& operator=(const UnitSchedule&) = delete;
  ~UnitSchedule() {
    passes_->owner = nullptr;  // an output that outlives this has its hook still
    for (auto& [parameter, hook] : hooks_) parameter.remove_hook(hook);
  }

  void before_forward(std::size_t unit) {
    gather(unit);
    do ++unit;
    while (unit < sharded_.units() && sharded_.is_empty(unit));
    if (unit < sharded_.units()) begin_gather(unit);
  }
  void after_forward(std::size_t unit, const at::Tensor& output) {
    const bool has_backward = c10::GradMode::is_enabled() && output.requires_grad();
    if (has_backward) {
      output.register_hook([passes = passes_, unit](const at::Tensor&) {
        if (passes->owner != nullptr) passes->owner->before_backward(unit);
        return at::Tensor();
      });
    }
    const bool stays = has_backward && (!reshard_ || unit + 1 == sharded_.units());
    if (!stays) release(unit);
  }
  /// Makes all units whole, and lets them be so until let_go() was called as often. Collective unless they are.
  void hold() {
    for (std::size_t unit = 0; unit < sharded_.units(); ++unit) gather(unit);
    ++holders_;
  }
  void let_go() {
    --holders_;
    rest();
  }
  bool is_held() const noexcept { return holders_ > 0; }
  /// An update is about to make what is whole now old. Throws Error(argument) when it is held.
  void require_free(int rank) {
    if (holders_ > 0) {
      throw Error(ErrorKind::argument,
                  "tandem: update() while unshard() holds the parameters as they were; end its scope first", rank);
    }
    rest();
  }
  /// Nothing has come yet, whatever other uses of the graph have called forth.
  void begin_backward() {
    for (auto& unit : passes_->units) unit.arrived = 0, unit.passed = false;
  }
  /// Nothing is whole unless it is held, and nothing has come: between two steps.
  void rest() {
    for (std::size_t unit = 0; unit < sharded_.units(); ++unit) release(unit);
    begin_backward();
  }

 private:
  enum class State : std::uint8_t { away, coming, whole };
  struct Passes {
    explicit Passes(std::size_t count) : units(count) {}
    struct Unit {
      std::size_t parameters = 0;
      std::size_t arrived = 0;  // gradients of them, in this backward
      bool passed = false;      // is the gradient of its input there?
      State state = State::away;
    };
    std::vector<Unit> units;
    UnitSchedule* owner = nullptr;
  };
  struct Hook {
    at::Tensor parameter;
    unsigned number;
  };

  /// The gradient of the unit's output is there.
  void before_backward(std::size_t unit) {
    gather(unit);
    std::size_t next = unit;
    while (next > 0 && sharded_.is_empty(next - 1)) --next;
    if (next > 0) begin_gather(next - 1);
    if (unit + 1 < sharded_.units()) {
      passes_->units[unit + 1].passed = true;
      release_if_through(unit + 1);
    }
  }
  /// Input and parameters have their gradients, so nothing in the graph needs the unit any more. The first unit's input
  /// may need none: it stays until all is over.
  void release_if_through(std::size_t unit) {
    const auto& it = passes_->units[unit];
    if (it.passed && it.arrived >= it.parameters) release(unit);
  }
  /// Collective; nothing where it is whole or was begun.
  void begin_gather(std::size_t unit) {
    State& state = passes_->units[unit].state;
    if (state != State::away) return;
    sharded_.begin_gather(unit);
    state = State::coming;
  }
  /// Collective unless it is whole.
  void gather(std::size_t unit) {
    begin_gather(unit);
    State& state = passes_->units[unit].state;
    if (state == State::whole) return;
    sharded_.finish_gather(unit);
    state = State::whole;
  }
  /// Finishes first what was begun.
  void release(std::size_t unit) {
    State& state = passes_->units[unit].state;
    if (holders_ > 0 || state == State::away) return;
    gather(unit);
    sharded_.release(unit);
    state = State::away;
  }

  Sharded& sharded_;
  bool reshard_;
  int holders_ = 0;
  std::shared_ptr<Passes> passes_;
  std::vector<Hook> hooks_;
};

}  // namespace tandem
