// SPDX-License-Identifier: Apache-2.0
// States of a training program that end with their scope.
#pragma once

namespace tandem {

/// While it lives, Trainer::backward only adds gradients up on this rank and sends nothing: for all micro-batches of a
/// step but the last. Ends with its scope.
template <class Owner>
class [[nodiscard]] Accumulation {
 public:
  explicit Accumulation(Owner& owner) : owner_(owner) { owner_.add_up_locally(+1); }
  Accumulation(const Accumulation&) = delete;
  Accumulation& operator=(const Accumulation&) = delete;
  ~Accumulation() { owner_.add_up_locally(-1); }

 private:
  Owner& owner_;
};

/// While it lives, all parameters of a Trainer's model are whole. Ends with its scope.
template <class Owner>
class [[nodiscard]] Unsharded {
 public:
  /// They are.
  explicit Unsharded(Owner& owner) : owner_(owner) {}
  Unsharded(const Unsharded&) = delete;
  Unsharded& operator=(const Unsharded&) = delete;
  ~Unsharded() { owner_.change_sharding(false); }

 private:
  Owner& owner_;
};

namespace detail {

/// eval() for a scope, for models that have the notion.
template <class Module>
class EvaluationMode {
 public:
  explicit EvaluationMode(Module& module) : module_(module) {
    if constexpr (has_modes) {
      was_training_ = module.is_training();
      module.train(false);
    }
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;
  ~EvaluationMode() {
    if constexpr (has_modes) module_.train(was_training_);
  }

 private:
  static constexpr bool has_modes = requires(Module & module) {
    module.is_training();
    module.train(true);
  };
  Module& module_;
  bool was_training_ = true;
};

}  // namespace detail

}  // namespace tandem
