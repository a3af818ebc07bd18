// SPDX-License-Identifier: Apache-2.0
// Trains a model on the ranks of a world: forward, backward, update, and nothing else of a training program. Joins a
// model, a strategy and an optimizer that know nothing of one another.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tandem/comm/communicator.hpp"
#include "tandem/comm/ledger.hpp"
#include "tandem/core/error.hpp"
#include "tandem/plan/check.hpp"
#include "tandem/plan/model_type.hpp"
#include "tandem/strategy/concepts.hpp"
#include "tandem/strategy/parameter.hpp"
#include "tandem/tensor/torch.hpp"
#include "tandem/trainer/gradient_edits.hpp"
#include "tandem/trainer/model_source.hpp"
#include "tandem/trainer/optimizer_slot.hpp"
#include "tandem/trainer/option_facts.hpp"
#include "tandem/trainer/options.hpp"
#include "tandem/trainer/scopes.hpp"
#include "tandem/trainer/start_check.hpp"
#include "tandem/trainer/threads.hpp"
#include "tandem/trainer/uneven_inputs.hpp"
#include "tandem/trainer/unit_forward.hpp"

namespace tandem {

/// A program and its three policies. Borrows the world, which must outlive it, and splits it once.
///
/// An exception that leaves the constructor, step(), forward(), backward() or update() on one rank gives the world up:
/// the other ranks' calls throw Error naming this rank, instead of waiting. Errors found on all ranks alike by the
/// start checks do not.
template <class Model, class Strategy, class T, bool sound = Check<Model, Strategy, T>::sound>
class Trainer {
 public:
  using ModuleType = Module<Model>;
  using OutputType = Output<Model>;

  /// Collective. Checks that all ranks have the same parameters (names, shapes, dtypes, order), buffers, intra-op
  /// threads and ATen CPU capability, naming the first difference; then gives every rank the weights of rank 0.
  ///
  /// `model`: by value, as a std::shared_ptr or ModuleHolder, or a function that returns one of these.
  /// `loss(output, target)`: the mean loss of the batch, a scalar tensor.
  /// `recipe`: makes the optimizer from std::vector<at::Tensor> or std::vector<OwnedParameter>, which may be empty.
  template <class Given, class Loss, class Recipe>
  Trainer(Communicator<T>& world, Given&& model, Loss loss, Recipe recipe, TrainerOptions options = {})
      : world_(&world), options_(std::move(options)) {
    if constexpr (CheckArguments<Model, Given, Loss, Recipe>::sound) {
      engine_ = std::make_unique<Engine>(world, Strategy::degree);
      guarded("the Trainer's constructor", [&] {
        model_ = detail::module_from<ModuleType>(std::forward<Given>(model));
        loss_ = std::move(loss);
        start(recipe);
      });
    }
  }

  /// One training step on this rank's batch: step(inputs..., target). The batch's mean loss, before the update.
  template <class... Batch>
  requires(sizeof...(Batch) > 0) double step(Batch&&... batch) {
    return guarded("Trainer::step", [&] {
      renew_buffers();
      const at::Tensor loss = loss_of(std::forward<Batch>(batch)...);
      run_backward(loss);
      run_update();
      return loss.template item<double>();
    });
  }

  /// The model's output for this rank's inputs.
  template <class... Inputs>
  OutputType forward(Inputs&&... inputs) {
    return guarded("Trainer::forward", [&] {
      renew_buffers();
      return call_forward(std::forward<Inputs>(inputs)...);
    });
  }

  /// Computes gradients of `loss`, a scalar, and averages them over the ranks while it does; all gradients are the
  /// averages when it returns. Within accumulate(), adds up on this rank only. Collective otherwise.
  ///
  /// Throws Error(argument) naming the parameters that took no part, unless TrainerOptions::unused or static_graph let
  /// them.
  void backward(const at::Tensor& loss) {
    guarded("Trainer::backward", [&] { run_backward(loss); });
  }

  /// Averages the gradients as they are, without a backward: when a program wrote them itself. Collective.
  void reduce_gradients() {
    guarded("Trainer::reduce_gradients", [&] {
      announce(detail::TrainerPhase::backward);
      engine_->reduce_gradients();
      reduced_ = true;
      buffers_due_ = true;
    });
  }

  /// Calls the gradient hook, clips if asked to, lets the optimizer step, and clears the gradients as options say.
  /// False when gradients were not finite and options say to skip such an update; the same on all ranks. Collective
  /// with Zero, and with options that say so.
  bool update() {
    return guarded("Trainer::update", [&] { return run_update(); });
  }

  /// This rank has no more batches: takes part in the steps of those that have, with zeros, until none has any, and
  /// then returns the number of updates it made. Weights are the same on all ranks all the time. Needs
  /// TrainerOptions::uneven_inputs; afterwards all ranks may train on.
  ///
  /// `before_update` is called before each update, to set a learning rate, say.
  std::size_t join(const std::function<void()>& before_update = {}) {
    return guarded("Trainer::join", [&] { return shadow(before_update); });
  }

  /// The mean loss of this rank's batch, without gradients and in the model's evaluation mode: evaluate(inputs...,
  /// target). Changes nothing; sends nothing, but under Zero<3> with parameters apart, where it is collective.
  template <class... Batch>
  requires(sizeof...(Batch) > 0) double evaluate(Batch&&... batch) {
    const auto mean = [&] {
      const c10::AutoGradMode no_grad(false);
      const detail::EvaluationMode<ModuleType> mode(*model_);
      return loss_of(std::forward<Batch>(batch)...).template item<double>();
    };
    if (detail::gathers_units(*engine_)) return guarded("Trainer::evaluate", mean);
    return mean();
  }

  /// See Accumulation. The sum of K losses divided by K each is the usual use.
  Accumulation<Trainer> accumulate() { return Accumulation<Trainer>(*this); }

  /// While it lives, all parameters have their values on all ranks, to be read: to be saved, say. Made and ended on all
  /// ranks; sends nothing but under Zero<3> with parameters apart, where what is written meanwhile is lost.
  Unsharded<Trainer> unshard() {
    guarded("Trainer::unshard", [&] { change_sharding(true); });
    return Unsharded<Trainer>(*this);
  }

  ModuleType& model() noexcept { return *model_; }
  const ModuleType& model() const noexcept { return *model_; }
  /// The optimizer, as the type that the recipe returned or pointed to: to change its learning rate, say.
  template <class Optimizer>
  Optimizer& optimizer() {
    auto* const found = optimizer_->template as<Optimizer>();
    if (found == nullptr) {
      throw Error(ErrorKind::argument,
                  "tandem: the recipe made an optimizer of another type; ask for exactly that type");
    }
    return *found;
  }
  /// Which part of the data this rank should be given.
  Coordinate data() const noexcept { return engine_->data(); }
  /// How many updates were skipped because gradients were not finite.
  std::size_t skipped_updates() const noexcept { return skipped_; }
  /// The norm of all gradients before the last update, when clip_norm is set.
  double gradient_norm() const noexcept { return norm_; }
  /// Bytes that this Trainer moved on this rank; predicted and measured are equal.
  const Ledger& ledger() const noexcept { return engine_->replicas().ledger(); }
  const TrainerOptions& options() const noexcept { return options_; }
  auto& engine() noexcept { return *engine_; }
  /// The program whose bits this Trainer gives.
  static constexpr const char* reference() noexcept { return Strategy::reference; }

 private:
  friend class Accumulation<Trainer>;
  friend class Unsharded<Trainer>;
  using Engine = typename Strategy::template Engine<T>;

  template <class Recipe>
  void start(Recipe& recipe) {
    if (options_.clip_norm && options_.clip_value) {
      throw Error(ErrorKind::argument, "tandem: clip_norm and clip_value are both set; clip gradients by one of them",
                  engine_->replicas().rank());
    }
    auto& replicas = engine_->replicas();
    detail::settle_threads(replicas, options_.intra_op_threads);
    auto parameters = detail::parameters_of(*model_);
    const auto buffers = detail::buffers_of(*model_);
    detail::check_start(replicas, parameters, buffers, detail::option_facts<Strategy>(options_));
    detail::copy_from_rank(replicas, 0, parameters);
    detail::copy_from_rank(replicas, 0, buffers);
    for (const NamedParameter& parameter : parameters) {
      if (!parameter.value.requires_grad()) frozen_.push_back(parameter);
    }
    std::erase_if(parameters, [](const NamedParameter& parameter) { return !parameter.value.requires_grad(); });
    trains_ = !parameters.empty();
    auto units = detail::unit_source(*model_, parameters);
    engine_->adopt(std::move(parameters), {.buckets = options_.buckets,
                                           .after_update = options_.after_update,
                                           .placement = options_.placement,
                                           .unused = options_.unused,
                                           .static_graph = options_.static_graph,
                                           .accumulate = options_.accumulate,
                                           .reshard_after_forward = options_.reshard_after_forward,
                                           .trim_after_update = options_.trim_after_update,
                                           .piece_bytes = options_.piece_bytes,
                                           .units = std::move(units)});
    if (options_.uneven_inputs) detail::require_whole_units(*engine_);
    owned_ = engine_->owned();
    optimizer_ = std::make_unique<detail::OptimizerSlot>(recipe, owned_);
  }

  /// Once a step, before its first forward. DistributedDataParallel does it before each of several forwards too, and
  /// autograd then refuses the backward of a BatchNorm whose statistics were written meanwhile.
  void renew_buffers() {
    if (!options_.broadcast_buffers || !std::exchange(buffers_due_, false)) return;
    take_buffers(announce(detail::TrainerPhase::forward));
  }
  /// Asks the model anew: a buffer may have been replaced.
  void take_buffers(int root) { detail::copy_from_rank(engine_->replicas(), root, detail::buffers_of(*model_)); }

  template <class... Inputs>
  OutputType call_forward(Inputs&&... inputs) {
    if constexpr (CheckInputs<Model, Inputs...>::sound)
      return detail::run_forward(*model_, *engine_, std::forward<Inputs>(inputs)...);
    else
      __builtin_unreachable();  // CheckInputs has said why this does not compile
  }

  template <class... Batch>
  at::Tensor loss_of(Batch&&... batch) {
    auto all = std::forward_as_tuple(std::forward<Batch>(batch)...);
    constexpr std::size_t inputs = sizeof...(Batch) - 1;
    const OutputType output = [&]<std::size_t... i>(std::index_sequence<i...>) {
      return call_forward(std::get<i>(std::move(all))...);
    }
    (std::make_index_sequence<inputs>());
    return loss_(output, std::get<inputs>(std::move(all)));
  }

  void run_backward(const at::Tensor& loss) {
    if (!loss.defined() || loss.numel() != 1) {
      throw Error(ErrorKind::argument, "tandem: the loss is " +
                                           (loss.defined() ? detail::text_of(loss) : std::string("undefined")) +
                                           " and must be one number; return the mean over the batch");
    }
    for (const NamedParameter& parameter : frozen_) {
      if (!parameter.value.requires_grad()) continue;
      throw Error(ErrorKind::argument, "tandem: parameter \"" + parameter.name +
                                           "\" requires grad and did not when the Trainer was made, so nothing would "
                                           "train it; make a new Trainer");
    }
    reduced_ = false;
    if (local_ == 0 || options_.accumulate == accumulation::shard_sums) announce(detail::TrainerPhase::backward);
    engine_->backward(loss, local_ > 0);
    reduced_ = local_ == 0;
    buffers_due_ = buffers_due_ || reduced_;
  }

  bool run_update() {
    if (!reduced_ && trains_) {
      throw Error(
          ErrorKind::argument,
          "tandem: update() before the gradients were averaged; call Trainer::backward outside accumulate(), or "
          "reduce_gradients(), first");
    }
    announce(detail::TrainerPhase::update);
    return renew_weights();
  }
  bool renew_weights() {
    reduced_ = false;
    if (options_.gradient_hook) {
      const c10::AutoGradMode no_grad(false);
      for (OwnedParameter& each : owned_) {
        if (each.value.grad().defined()) options_.gradient_hook(each.name, each.value.mutable_grad());
      }
    }
    const bool steps = options_.on_non_finite == non_finite::step || detail::all_finite(engine_->replicas(), owned_);
    if (steps && options_.clip_norm) norm_ = engine_->clip_norm(*options_.clip_norm, options_.clip_method);
    if (steps && options_.clip_value) detail::clip_values(owned_, *options_.clip_value);
    engine_->before_update();
    if (steps)
      optimizer_->step();
    else
      ++skipped_;
    // Gradients that are not finite, kept, would keep every later update from being made.
    const bool clears = !steps && options_.after_update == AfterUpdate::keep;
    engine_->after_update(clears ? AfterUpdate::release : options_.after_update);
    return steps;
  }

  /// Where inputs may be uneven, tells the others what this rank is about to do. The lowest rank that does it, which is
  /// rank 0 where all do.
  int announce(detail::TrainerPhase phase) {
    return options_.uneven_inputs ? detail::announce_phase(engine_->replicas(), phase).rank : 0;
  }
  std::size_t shadow(const std::function<void()>& before_update) {
    if (!options_.uneven_inputs) {
      throw Error(ErrorKind::argument, "tandem: join() needs TrainerOptions::uneven_inputs on all ranks; set it",
                  engine_->replicas().rank());
    }
    for (std::size_t updates = 0;;) {
      const auto [phase, rank] = detail::announce_phase(engine_->replicas(), detail::TrainerPhase::none);
      switch (phase) {
        case detail::TrainerPhase::none:
          return updates;
        case detail::TrainerPhase::forward:
          take_buffers(rank);
          break;
        case detail::TrainerPhase::backward:
          engine_->reduce_nothing();
          buffers_due_ = true;
          break;
        case detail::TrainerPhase::update:
          if (before_update) before_update();
          renew_weights();
          ++updates;
          break;
      }
    }
  }

  void change_sharding([[maybe_unused]] bool whole) {
    if constexpr (requires { engine_->unshard(); }) whole ? engine_->unshard() : engine_->reshard();
  }
  void add_up_locally(int change) noexcept { local_ += change; }

  /// Runs f; when an exception leaves it, the peers are told why this rank will not come to the next collective.
  template <class F>
  decltype(auto) guarded(const char* where, F&& f) {
    try {
      return f();
    } catch (const Error& error) {
      if (!agreed(error)) give_up(where, error.what());
      throw;
    } catch (const c10::Error& error) {
      give_up(where, error.what_without_backtrace());
      throw;
    } catch (const std::exception& error) {
      give_up(where, error.what());
      throw;
    } catch (...) {
      give_up(where, "something that is not a std::exception");
      throw;
    }
  }
  /// Thrown by every rank at the same point: nobody waits, so the world stays usable.
  bool agreed(const Error& error) const noexcept {
    return error.kind() == ErrorKind::mismatch && !engine_->replicas().poisoned();
  }
  void give_up(const char* where, const char* what) {
    if (world_->poisoned()) return;
    world_->poison(
        Error(ErrorKind::poisoned,
              std::string("an exception left ") + where + " on rank " + std::to_string(world_->rank()) + ": " + what,
              world_->rank(), world_->rank()));
  }

  Communicator<T>* world_;
  TrainerOptions options_;
  std::shared_ptr<ModuleType> model_;
  std::function<at::Tensor(const OutputType&, const at::Tensor&)> loss_;
  std::unique_ptr<Engine> engine_;
  std::vector<NamedParameter> frozen_;  // when the Trainer was made
  std::vector<OwnedParameter> owned_;
  std::unique_ptr<detail::OptimizerSlot> optimizer_;
  bool buffers_due_ = true;
  bool trains_ = false;   // has the model parameters that require grad?
  int local_ = 0;         // how many accumulate() scopes are open
  bool reduced_ = false;  // are the gradients averages, ready for an update?
  double norm_ = 0.0;
  std::size_t skipped_ = 0;
};

/// After the one error that Check reports: takes anything, so that nothing else is said.
template <class Model, class Strategy, class T>
class Trainer<Model, Strategy, T, false> {
 public:
  template <class... Given>
  explicit Trainer(Given&&...) {}
  template <class... Batch>
  double step(Batch&&...);
  template <class... Batch>
  double evaluate(Batch&&...);
};

}  // namespace tandem
