// SPDX-License-Identifier: Apache-2.0
// What goes into an average under every strategy: micro-batches, repeated and second-order backwards, gradients that a
// program touches, batches of unequal size, numbers that are not finite, gradients that are not there.
#include <torch/torch.h>

#include <doctest/doctest.h>

#include <chrono>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "support/errors.hpp"
#include "support/free_model.hpp"
#include "support/one_process.hpp"
#include "support/ranks.hpp"
#include "support/torch_training.hpp"
#include "tandem/tandem.hpp"

namespace {

using namespace tandem;
using namespace tandem::test;

template <class Strategy>
constexpr bool sharded = !std::is_same_v<Strategy, Ddp<>>;

/// x times a weight that begins at 0, added up: the gradient is x.
Free linear(std::int64_t elements, at::ScalarType type = at::kFloat) {
  return Free{{{"w", at::zeros({elements}, type).set_requires_grad(true)}},
              [](const auto& p, const at::Tensor& x) { return (p[0] * x).sum(); }};
}
at::Tensor weight_of(const Free& model) { return model.parameters[0].second.detach(); }
double number_of(const Free& model) { return weight_of(model).item<double>(); }

/// A layer of which every gradient element differs, by rank too.
Free layer(int rank) {
  return Free{{{"w", parameter(rank, {6, 6})}, {"b", parameter(rank, {6})}},
              [](const auto& p, const at::Tensor& x) { return at::tanh(at::linear(x, p[0], p[1])).mean(); }};
}

/// One rank in a world of two; every strategy in a world of its own, since these cases end in errors.
template <class F>
void in_fresh_worlds(F f) {
  for_each_strategy([&]<class S>() {
    on_ranks(2, [&](int rank) {
      torch::set_num_threads(1);
      auto world = join<ShmRing>(JoinOptions{.timeout = std::chrono::seconds(20)});
      f.template operator()<S>(world, rank);
    });
  });
}

/// The call fails on this rank, by its own check or because a peer's came first: both say `words`.
template <class Call>
void check_refused(Communicator<ShmRing>& world, const std::string& words, Call call) {
  const auto error = test::error_of(call);
  REQUIRE(error);
  CHECK_MESSAGE(test::says(*error, words), std::string(error->what()));
  CHECK(world.poisoned());
}

constexpr float micro_batches[2][3] = {{1, 1, 2}, {2, 2, 3}};  // the gradients, by rank

}  // namespace

TEST_CASE("C061: micro-batches are sent with the last, and give 5.5 on both ranks") {
  on_ranks(2, [](int rank) {
    auto world = join<ShmRing>();
    for_each_strategy([&]<class S>() {
      auto trainer = trainer_of<S>(world, linear(1), test::plain_sgd(1.0));
      const auto loss = [&](int k) { return trainer.forward(at::full({1}, micro_batches[rank][k])); };
      for (int step = 1; step <= 3; ++step) {
        const auto before = trainer.ledger();
        {
          const auto locally = trainer.accumulate();
          for (int k = 0; k < 2; ++k) trainer.backward(loss(k));
        }
        const auto meanwhile = trainer.ledger() - before;
        CHECK(meanwhile.operations == 0);
        CHECK(meanwhile.measured == 0);
        trainer.backward(loss(2));
        trainer.update();
        CHECK((trainer.ledger() - before).operations > 0);
        CHECK(number_of(trainer.model()) == -5.5 * step);
      }
    });
  });
}

TEST_CASE("C061: what counts is where backward is called, not forward") {
  on_ranks(2, [](int rank) {
    auto world = join<ShmRing>();
    for_each_strategy([&]<class S>() {
      auto trainer = trainer_of<S>(world, linear(1), test::plain_sgd(1.0));
      std::vector<at::Tensor> losses;
      for (int k = 0; k < 3; ++k) losses.push_back(trainer.forward(at::full({1}, micro_batches[rank][k])));
      {
        const auto only_around_backward = trainer.accumulate();
        for (int k = 0; k < 2; ++k) trainer.backward(losses[static_cast<std::size_t>(k)]);
      }
      trainer.backward(losses[2]);
      trainer.update();
      CHECK(number_of(trainer.model()) == -5.5);
    });
  });
  // Only around forward: every backward averages. Ddp's averages stand where the next backward adds to them; Zero's
  // have gone to their owners.
  in_fresh_worlds([]<class S>(Communicator<ShmRing>& world, int rank) {
    auto trainer = trainer_of<S>(world, linear(1), test::plain_sgd(1.0));
    const auto train = [&] {
      for (int k = 0; k < 3; ++k) {
        const auto loss = [&] {
          const auto only_around_forward = trainer.accumulate();
          return trainer.forward(at::full({1}, micro_batches[rank][k]));
        }();
        trainer.backward(loss);
      }
      trainer.update();
    };
    if constexpr (sharded<S>) {
      check_refused(world, "a second backward before update() would lose the averages", train);
    } else {
      train();
      CHECK(number_of(trainer.model()) == -5.5);
    }
  });
}

TEST_CASE("C061: a step whose last micro-batch was not averaged is refused on both ranks") {
  for (const int averaged : {-1, 0}) {  // none; the first instead of the last
    in_fresh_worlds([&]<class S>(Communicator<ShmRing>& world, int rank) {
      auto trainer = trainer_of<S>(world, linear(1), test::plain_sgd(1.0));
      check_refused(world,
                    sharded<S> && averaged == 0 ? "a second backward before update() would lose the averages"
                                                : "update() before the gradients were averaged",
                    [&] {
                      for (int k = 0; k < 3; ++k) {
                        const at::Tensor loss = trainer.forward(at::full({1}, micro_batches[rank][k]));
                        if (k == averaged) {
                          trainer.backward(loss);
                        } else {
                          const auto locally = trainer.accumulate();
                          trainer.backward(loss);
                        }
                      }
                      trainer.update();
                    });
      CHECK(number_of(trainer.model()) == 0.0);
    });
  }
}

TEST_CASE("C062: autograd::grad alone sends nothing; the backward of a penalty averages") {
  on_ranks(2, [](int rank) {
    torch::set_num_threads(1);
    auto world = join<ShmRing>();
    const auto make = [](int source) {
      return Free{{{"w", parameter(source, {4, 4})}}, [](const auto& p, const at::Tensor& x) {
                    const at::Tensor y = at::tanh(at::mm(x, p[0]));
                    const auto slope = torch::autograd::grad({y.pow(2).sum()}, {p[0]}, {}, true, true);
                    return y.mean() + slope[0].pow(2).mean();
                  }};
    };
    for_each_strategy([&]<class S>() {
      auto trainer = trainer_of<S>(world, make(rank), test::momentum_sgd());
      OneProcess reference(make(0), test::momentum_sgd());
      for (int step = 0; step < 3; ++step) {
        const auto before = trainer.ledger();
        const at::Tensor loss = trainer.forward(input_of(rank, step, {3, 4}));
        CHECK((trainer.ledger() - before).operations == 0);
        CHECK_FALSE(weights(trainer.model())[0].grad().defined());
        trainer.backward(loss);
        trainer.update();
        reference.backward(2, [&](const Free& model, int other) {
          model.forward(input_of(other, step, {3, 4})).backward();
        });
        reference.update();
        CHECK(differing(weights(trainer.model()), reference.weights()) == 0);
      }
    });
  });
}

TEST_CASE("C062: two backwards on one graph: the sum of both averages, or an error") {
  on_ranks(2, [](int rank) {
    torch::set_num_threads(1);
    auto world = join<ShmRing>();
    for_each_strategy([&]<class S>() {
      auto trainer = trainer_of<S>(world, layer(rank), test::momentum_sgd());
      OneProcess reference(layer(0), test::momentum_sgd());
      for (int step = 0; step < 3; ++step) {
        const bool twice = step != 2;  // and the step after is as any other
        const at::Tensor loss = trainer.forward(input_of(rank, step, {3, 6}));
        if (twice) loss.backward({}, true);
        trainer.backward(loss);
        trainer.update();
        reference.backward(2, [&](const Free& model, int other) {
          const at::Tensor theirs = model.forward(input_of(other, step, {3, 6}));
          if (twice) theirs.backward({}, true);
          theirs.backward();
        });
        reference.update();
        CHECK(differing(weights(trainer.model()), reference.weights()) == 0);
      }
    });
  });
  // Trainer::backward frees the graph, as backward() does.
  in_fresh_worlds([]<class S>(Communicator<ShmRing>& world, int rank) {
    auto trainer = trainer_of<S>(world, layer(rank), test::momentum_sgd());
    const at::Tensor loss = trainer.forward(input_of(rank, 0, {3, 6}));
    std::string said;
    try {
      trainer.backward(loss);
      trainer.backward(loss);
    } catch (const std::exception& error) {
      said = error.what();
    }
    CHECK_MESSAGE(said.find(sharded<S> ? "a second backward before update()" : "a second time") != std::string::npos,
                  said);
    CHECK(world.poisoned());
    CHECK_THROWS_AS(trainer.step(input_of(rank, 1, {3, 6}), at::Tensor()), Error);
  });
}

TEST_CASE("C069: gradients set before backward count, and shards' gradients may be edited before the update") {
  on_ranks(2, [](int rank) {
    torch::set_num_threads(1);
    auto world = join<ShmRing>();
    // What a program puts into the gradients before backward.
    const auto prepare = [](int step, const Free& model, int who) {
      for (const auto& weight : weights(model)) {
        if (step % 4 == 1) weight.mutable_grad() = at::zeros_like(weight);  // zero_grad(false)
        if (step % 4 == 2) weight.mutable_grad() = input_of(who, 50 + step, weight.sizes()).clone();
        if (step % 4 == 3) weight.mutable_grad().reset();  // zero_grad(true)
      }
    };
    for (const AfterUpdate after : {AfterUpdate::release, AfterUpdate::zero}) {
      for_each_strategy([&]<class S>() {
        auto trainer = trainer_of<S>(world, layer(rank), test::momentum_sgd(), TrainerOptions{.after_update = after});
        OneProcess reference(layer(0), test::momentum_sgd());
        for (int step = 0; step < 8; ++step) {
          prepare(step, trainer.model(), rank);
          trainer.backward(trainer.forward(input_of(rank, step, {3, 6})));
          reference.backward(2, [&](const Free& model, int other) {
            prepare(step, model, other);
            model.forward(input_of(other, step, {3, 6})).backward();
          });
          if (step % 2 == 1) {  // scaled in place, where the averages stand
            torch::NoGradGuard no_grad;
            if constexpr (sharded<S>) {
              for (const auto& shard : trainer.engine().shards()) shard.value.grad().mul_(0.7);
            } else {
              for (const auto& weight : weights(trainer.model())) weight.grad().mul_(0.7);
            }
            for (const auto& weight : reference.weights()) weight.grad().mul_(0.7);
          }
          if constexpr (sharded<S>) {
            for (const auto& weight : weights(trainer.model())) CHECK_FALSE(weight.grad().defined());
          }
          trainer.update();
          reference.update();
          CHECK(differing(weights(trainer.model()), reference.weights()) == 0);
        }
      });
    }
  });
}

TEST_CASE("C070: ranks' means are averaged plainly, to 6.0; scaled by the common count they give 9.2") {
  on_ranks(2, [](int rank) {
    auto world = join<ShmRing>();
    const double sum = rank == 0 ? 2.0 : 90.0;
    const std::int64_t tokens = rank == 0 ? 1 : 9;
    std::int64_t all_tokens = tokens;
    all_reduce(world, std::span(&all_tokens, 1), Sum{});
    for_each_strategy([&]<class S>() {
      const auto gradient = [&](double scale) {
        auto trainer = trainer_of<S>(world, linear(1, at::kDouble), test::plain_sgd(1.0));
        trainer.backward(trainer.forward(at::full({1}, sum, at::kDouble)) * scale);
        trainer.update();
        return -number_of(trainer.model());
      };
      CHECK(gradient(1.0 / static_cast<double>(tokens)) == 6.0);
      CHECK(gradient(static_cast<double>(world.size()) / static_cast<double>(all_tokens)) ==
            doctest::Approx(9.2).epsilon(1e-15));
    });
  });
}

TEST_CASE("C077: four micro-batches of 1, 2, 3, 4 add up to 10, in every step") {
  const auto check = []<class S>(Communicator<ShmRing>& world, accumulation how) {
    const int rank = world.rank();
    auto trainer = trainer_of<S>(world, linear(3), test::plain_sgd(1.0), {.accumulate = how});
    for (int step = 1; step <= 3; ++step) {
      // Rank 0 has 0.5 less and rank 1 0.5 more than the average; element i has i + 1 times as much.
      const auto loss = [&](int k) {
        const float mine = static_cast<float>(k) + (rank == 0 ? 0.5F : 1.5F);
        return trainer.forward(at::tensor({mine, 2 * mine, 3 * mine}));
      };
      {
        const auto locally = trainer.accumulate();
        for (int k = 0; k < 3; ++k) trainer.backward(loss(k));
      }
      trainer.backward(loss(3));
      trainer.update();
      const auto all = static_cast<float>(10 * step);
      CHECK(differing(weight_of(trainer.model()), at::tensor({-all, -2 * all, -3 * all})) == 0);
    }
  };
  on_ranks(2, [&](int) {
    auto world = join<ShmRing>();
    for_each_strategy([&]<class S>() {
      check.template operator()<S>(world, accumulation::local_sums);
      if constexpr (requires { requires S::level >= 2; }) {
        check.template operator()<S>(world, accumulation::shard_sums);
      }
    });
  });
}

TEST_CASE("C077: a parameter that only the second micro-batch uses") {
  const auto make = [] {
    return Free{
        {{"always", at::zeros({2}).set_requires_grad(true)}, {"sometimes", at::zeros({3}).set_requires_grad(true)}},
        [](const auto& p, const at::Tensor& x) {
          const at::Tensor sum = p[0].sum() * x;
          return x.template item<float>() == 2.0F ? sum + p[1].sum() * x : sum;
        }};
  };
  on_ranks(2, [&](int) {
    auto world = join<ShmRing>();
    for_each_strategy([&]<class S>() {
      auto trainer = trainer_of<S>(world, make(), test::plain_sgd(1.0));
      for (int step = 1; step <= 3; ++step) {
        {
          const auto locally = trainer.accumulate();
          for (int k = 1; k <= 4; ++k) trainer.backward(trainer.forward(at::full({}, static_cast<float>(k))));
        }
        trainer.reduce_gradients();
        trainer.update();
        CHECK(differing(weights(trainer.model()), {at::full({2}, -10.0F * static_cast<float>(step)),
                                                   at::full({3}, -2.0F * static_cast<float>(step))}) == 0);
      }
    });
  });
  in_fresh_worlds([&]<class S>(Communicator<ShmRing>& world, int) {
    auto trainer = trainer_of<S>(world, make(), test::plain_sgd(1.0));
    check_refused(world, "\"sometimes\"", [&] {
      {
        const auto locally = trainer.accumulate();
        for (int k = 1; k <= 3; ++k) trainer.backward(trainer.forward(at::full({}, static_cast<float>(k))));
      }
      trainer.backward(trainer.forward(at::full({}, 4.0F)));
    });
  });
}

TEST_CASE("C080: Inf in a gradient on one rank, before it is averaged or in an owner's shard: ranks stay equal") {
  const float infinity = std::numeric_limits<float>::infinity();
  on_ranks(2, [&](int rank) {
    torch::set_num_threads(1);
    auto world = join<ShmRing>();
    // Rank 1 owns elements 4 to 7.
    const auto x_of = [&](int who, int step, bool spoilt) {
      const at::Tensor x = input_of(who, step, {8});
      if (spoilt && who == 0 && step == 1) x[6] = infinity;
      return x;
    };
    for (const bool clips : {false, true}) {
      for (const bool after : {false, true}) {
        for_each_strategy([&]<class S>() {
          if (after && !sharded<S>) return;  // each rank updates its own copy: to edit one is to part them
          TrainerOptions options;
          if (clips) options.clip_norm = 0.7;
          auto trainer = trainer_of<S>(world, linear(8), test::momentum_sgd(), options);
          OneProcess reference(linear(8), test::momentum_sgd());
          for (int step = 0; step < 3; ++step) {
            trainer.backward(trainer.forward(x_of(rank, step, !after)));
            reference.backward(
                2, [&](const Free& model, int other) { model.forward(x_of(other, step, !after)).backward(); });
            if (after && step == 1) {
              if constexpr (sharded<S>) {
                if (rank == 1) trainer.engine().shards()[0].value.grad()[2] = infinity;
              }
              reference.weights()[0].grad()[6] = infinity;
            }
            if (clips) test::clip_like_python(reference.weights(), 0.7);
            trainer.update();
            reference.update();
            CHECK(differing(weights(trainer.model()), reference.weights()) == 0);
            const bool finite = at::isfinite(weight_of(trainer.model())).all().template item<bool>();
            CHECK(finite == (step == 0));
          }
          CHECK(at::isfinite(weight_of(trainer.model())).sum().template item<std::int64_t>() == 7);
        });
      }
    }
  });
}

TEST_CASE("C081: parameters of one rank only, or none, got gradients: an error on both ranks") {
  const auto make = [](int rank) {
    return Free{{{"of rank 0", parameter(rank, {8})}, {"of rank 1", parameter(rank, {8})}},
                [](const auto& p, const at::Tensor& x) { return (p[0] * x).sum(); }};
  };
  in_fresh_worlds([&]<class S>(Communicator<ShmRing>& world, int rank) {
    auto trainer = trainer_of<S>(world, make(rank), test::momentum_sgd());
    check_refused(world, "parameter 1 of 2, \"of rank 1\", got no gradient on rank ",
                  [&] { trainer.backward(trainer.forward(input_of(rank, 0, {8}))); });
    CHECK(differing(weights(trainer.model()), weights(make(0))) == 0);
  });
  in_fresh_worlds([&]<class S>(Communicator<ShmRing>& world, int rank) {
    auto trainer = trainer_of<S>(world, make(rank), test::momentum_sgd());
    check_refused(world, "parameter 0 of 2, \"of rank 0\", parameter 1 of 2, \"of rank 1\", got no gradient on rank ",
                  [&] { trainer.reduce_gradients(); });
  });
  in_fresh_worlds([&]<class S>(Communicator<ShmRing>& world, int rank) {
    auto trainer = trainer_of<S>(world, make(rank), test::momentum_sgd());
    check_refused(world, "update() before the gradients were averaged", [&] { trainer.update(); });
    CHECK(differing(weights(trainer.model()), weights(make(0))) == 0);
  });
}

// The one way to an undefined gradient: to take it from the owner. An optimizer leaves such a parameter alone.
TEST_CASE("C081: a rank that drops all gradients of its shard keeps its weights, with decay too") {
  on_ranks(2, [](int rank) {
    torch::set_num_threads(1);
    auto world = join<ShmRing>();
    const test::Recipe decays = [](const std::vector<OwnedParameter>& owned) {
      AdamOptions options;
      options.weight_decay = 0.1;
      return test::any(AdamW<>(test::values_of(owned), options));
    };
    const auto make = [](int source) {
      return Free{{{"of rank 0", parameter(source, {8})}, {"of rank 1", parameter(source, {8})}},
                  [](const auto& p, const at::Tensor& x) { return (p[0] * x).sum() + (p[1] * x).sum(); }};
    };
    for_each_strategy([&]<class S>() {
      if constexpr (sharded<S>) {
        auto trainer = trainer_of<S>(world, make(rank), decays);
        OneProcess reference(make(0), decays);
        for (int step = 0; step < 3; ++step) {
          trainer.backward(trainer.forward(input_of(rank, step, {8})));
          reference.backward(
              2, [&](const Free& model, int other) { model.forward(input_of(other, step, {8})).backward(); });
          if (step == 1) {
            if (rank == 1) trainer.engine().shards()[0].value.mutable_grad().reset();
            reference.weights()[1].mutable_grad().reset();
          }
          const auto before = test::copies(weights(trainer.model()));
          trainer.update();
          reference.update();
          CHECK(differing(weights(trainer.model()), reference.weights()) == 0);
          CHECK(differing(before[1], weights(trainer.model())[1]) == (step == 1 ? 0 : 8));
          CHECK(differing(before[0], weights(trainer.model())[0]) == 8);
        }
      }
    });
  });
}

TEST_CASE("C081: a rank that drops all gradients of its shard before they are clipped: skipped, or named in an error") {
  in_fresh_worlds([]<class S>(Communicator<ShmRing>& world, int rank) {
    if constexpr (sharded<S>) {
      const Free model{{{"of rank 0", parameter(rank, {8})}, {"of rank 1", parameter(rank, {8})}},
                       [](const auto& p, const at::Tensor& x) { return (p[0] * x).sum() + (p[1] * x).sum(); }};
      auto trainer = trainer_of<S>(world, model, test::momentum_sgd(), TrainerOptions{.clip_norm = 0.7});
      trainer.backward(trainer.forward(input_of(rank, 0, {8})));
      if (rank == 1) trainer.engine().shards()[0].value.mutable_grad().reset();
      const auto error = test::error_of([&] { trainer.update(); });
      if (error) {
        CHECK_MESSAGE(test::says(*error, "\"of rank 1\""), std::string(error->what()));
      } else {
        CHECK(differing(model.parameters[1].second, parameter(0, {8})) == 0);
        CHECK(differing(model.parameters[0].second, parameter(0, {8})) == 8);
      }
    }
  });
}
