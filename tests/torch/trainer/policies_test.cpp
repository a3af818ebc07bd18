// SPDX-License-Identifier: Apache-2.0
// What TrainerOptions promise of gradients between averaging and update, and of ranks that run out of batches, under
// every strategy.
#include <torch/torch.h>

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <utility>
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

/// Gradients are inputs, as large as the weights, so that a wrong last bit of one shows in the other.
Free scaled(int rank) {
  return Free{{{"weight", test::parameter(rank, {37, 3})}, {"bias", test::parameter(rank, {3})}},
              [](const auto& p, const at::Tensor& x) { return (x * p[0] + x.sum(0) * p[1]) * 300; }};
}
constexpr std::int64_t rows = 37, columns = 3;

std::vector<at::Tensor> values(const Free& model) { return copies(weights(model)); }

/// Calls f with every strategy, in one world each.
template <class F>
void each_strategy(F f) {
  test::on_ranks(test::ranks(), [&](int rank) {
    torch::set_num_threads(1);
    auto world = join<ShmRing>();
    for_each_strategy([&]<class Strategy>() {
      const std::string name = Strategy::name;
      CAPTURE(name);
      f(Strategy{}, world, rank);
    });
  });
}

/// Weights after `steps` steps on the usual inputs, changed by `input(step, x)`.
template <class Strategy, class Input>
std::vector<at::Tensor> trained(Communicator<ShmRing>& world, const TrainerOptions& options, int steps, Input input) {
  FreeTrainer<Strategy> trainer{world, scaled(world.rank()), mean_loss, sgd, options};
  for (int step = 0; step < steps; ++step) {
    const at::Tensor x = input(step, input_of(world.rank(), step, {rows, columns}));
    trainer.step(x, x);
  }
  return values(trainer.model());
}
template <class Strategy>
std::vector<at::Tensor> trained(Communicator<ShmRing>& world, const TrainerOptions& options, int steps) {
  return trained<Strategy>(world, options, steps, [](int, const at::Tensor& x) { return x; });
}

template <class Optimizer, class Options>
Recipe recipe_of(Options options) {
  return [options](const std::vector<OwnedParameter>& owned) { return any(Optimizer(values_of(owned), options)); };
}

}  // namespace

TEST_CASE("C080: a gradient of one rank that is not finite skips the update on all ranks") {
  each_strategy([]<class Strategy>(Strategy, auto& world, int rank) {
    for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
      FreeTrainer<Strategy> trainer{
          world, scaled(rank), mean_loss, sgd, {.clip_norm = 100.0, .on_non_finite = non_finite::skip}};
      const auto input = [&](int step) { return input_of(rank, step, {rows, columns}); };
      trainer.step(input(0), input(0));
      const auto before = values(trainer.model());

      at::Tensor broken = input(1);
      if (rank == test::ranks() - 1) broken[std::isnan(bad) ? 0 : rows - 1][1] = bad;
      trainer.backward(trainer.forward(broken).mean());
      CHECK_FALSE(trainer.update());
      CHECK(trainer.skipped_updates() == 1);
      CHECK(differing(values(trainer.model()), before) == 0);

      for (int step = 2; step < 4; ++step) trainer.step(input(step), input(step));
      CHECK(trainer.skipped_updates() == 1);
      // As if the broken step had not been: momentum saw nothing of it.
      FreeTrainer<Ddp<>> other{world, scaled(rank), mean_loss, sgd, {.clip_norm = 100.0}};
      for (const int step : {0, 2, 3}) other.step(input(step), input(step));
      CHECK(differing(values(trainer.model()), values(other.model())) == 0);
    }
  });
}

// Kept, they kept every later update from being made.
TEST_CASE("C080: a skipped update clears gradients that are otherwise kept") {
  test::on_ranks(test::ranks(), [](int rank) {
    torch::set_num_threads(1);
    auto world = join<ShmRing>();
    FreeTrainer<Ddp<>> trainer{
        world, scaled(rank), mean_loss, sgd, {.after_update = AfterUpdate::keep, .on_non_finite = non_finite::skip}};
    const at::Tensor x = input_of(rank, 0, {rows, columns});
    at::Tensor broken = x.clone();
    if (rank == 0) broken[0][0] = std::nan("");
    trainer.backward(trainer.forward(broken).mean());
    CHECK_FALSE(trainer.update());
    trainer.backward(trainer.forward(x).mean());
    CHECK(trainer.update());
    CHECK(trainer.model().parameters[0].second.grad().defined());
    CHECK(differing_from_rank_0(world, values(trainer.model())[0]) == 0);
  });
}

TEST_CASE("C080: what one rank's hook makes infinite in its shard skips the update on all ranks") {
  each_strategy([]<class Strategy>(Strategy, auto& world, int rank) {
    int updates = 0;
    TrainerOptions options{.on_non_finite = non_finite::skip};
    options.gradient_hook = [&](const std::string&, at::Tensor& gradient) {
      if (updates == 1 && rank == test::ranks() - 1) gradient.fill_(std::numeric_limits<double>::infinity());
    };
    FreeTrainer<Strategy> trainer{world, scaled(rank), mean_loss, sgd, options};
    for (; updates < 3; ++updates) {
      const auto before = values(trainer.model());
      const at::Tensor x = input_of(rank, updates, {rows, columns});
      trainer.backward(trainer.forward(x).mean());
      CHECK(trainer.update() == (updates != 1));
      if (updates == 1) CHECK(differing(values(trainer.model()), before) == 0);
    }
  });
}

TEST_CASE("clip_value cuts every element of the averages, as clip_grad_value_ does") {
  each_strategy([]<class Strategy>(Strategy, auto& world, int) {
    const double limit = 1.5;
    TrainerOptions by_hand;
    by_hand.gradient_hook = [&](const std::string&, at::Tensor& gradient) {
      gradient.copy_(at::where(gradient.abs() > limit, gradient.sign() * limit, gradient));
    };
    CHECK(differing(trained<Strategy>(world, {.clip_value = limit}, 3), trained<Ddp<>>(world, by_hand, 3)) == 0);
    CHECK(differing(trained<Strategy>(world, {.clip_value = limit}, 3), trained<Ddp<>>(world, {}, 3)) > 0);
  });
  test::on_ranks(test::ranks(), [](int) {
    auto world = join<ShmRing>();
    CHECK_THROWS_WITH_AS((trained<Ddp<>>(world, {.clip_norm = 1.0, .clip_value = 1.0}, 1)),
                         doctest::Contains("clip_norm and clip_value are both set"), Error);
  });
}

TEST_CASE("clip::fast finds the norm that clip::exact finds, up to its last digits, and scales by it") {
  each_strategy([]<class Strategy>(Strategy, auto& world, int rank) {
    std::vector<double> norms;
    for (const clip method : {clip::exact, clip::fast}) {
      FreeTrainer<Strategy> trainer{world, scaled(rank), mean_loss, sgd, {.clip_norm = 10.0, .clip_method = method}};
      const at::Tensor x = input_of(rank, 0, {rows, columns});
      trainer.step(x, x);
      norms.push_back(trainer.gradient_norm());
      double sum = trainer.gradient_norm();  // the same number everywhere
      all_reduce(world, std::span(&sum, 1), Max{});
      CHECK(sum == trainer.gradient_norm());
    }
    CHECK(norms[0] > 10.0);
    CHECK(norms[1] == doctest::Approx(norms[0]).epsilon(1e-6));
    const auto exact = trained<Strategy>(world, {.clip_norm = 10.0}, 3);
    const auto fast = trained<Strategy>(world, {.clip_norm = 10.0, .clip_method = clip::fast}, 3);
    for (std::size_t i = 0; i < exact.size(); ++i) CHECK(at::allclose(exact[i], fast[i], 1e-5, 1e-5));
  });
}

TEST_CASE("shard_sums adds the averages of all micro-batches, to the bit") {
  test::on_ranks(test::ranks(), [](int rank) {
    torch::set_num_threads(1);
    auto world = join<ShmRing>();
    constexpr int steps = 3, micro_batches = 3;
    const auto input = [&](int step, int k) { return input_of(rank, step * micro_batches + k, {rows, columns}); };

    // By hand: every micro-batch averaged on its own, then added in their order.
    FreeTrainer<Ddp<>> plain{world, scaled(rank), mean_loss, sgd};
    const std::vector<at::Tensor> parameters{plain.model().parameters[0].second, plain.model().parameters[1].second};
    for (int step = 0; step < steps; ++step) {
      std::vector<at::Tensor> sums(parameters.size());
      for (int k = 0; k < micro_batches; ++k) {
        plain.backward(plain.forward(input(step, k)).mean() / micro_batches);
        for (std::size_t i = 0; i < sums.size(); ++i) {
          const at::Tensor average = parameters[i].grad().clone();
          sums[i] = k == 0 ? average : sums[i] + average;
          if (k + 1 < micro_batches) at::Tensor(parameters[i]).mutable_grad().reset();
        }
      }
      for (std::size_t i = 0; i < sums.size(); ++i) parameters[i].grad().copy_(sums[i]);
      plain.update();
    }

    const auto accumulated = [&]<class Strategy>(Strategy, accumulation how, std::size_t piece_bytes) {
      FreeTrainer<Strategy> trainer{
          world, scaled(rank), mean_loss, sgd, {.accumulate = how, .piece_bytes = piece_bytes}};
      for (int step = 0; step < steps; ++step) {
        {
          const auto scope = trainer.accumulate();
          for (int k = 0; k + 1 < micro_batches; ++k) {
            trainer.backward(trainer.forward(input(step, k)).mean() / micro_batches);
            for (const auto& bucket : trainer.engine().buckets()) {
              CHECK(bucket.has_memory() == (how == accumulation::local_sums));
            }
          }
        }
        trainer.backward(trainer.forward(input(step, micro_batches - 1)).mean() / micro_batches);
        trainer.update();
      }
      return values(trainer.model());
    };
    for (const std::size_t piece_bytes : {default_piece_bytes, std::size_t{1}}) {
      CHECK(differing(accumulated(Zero<2>{}, accumulation::shard_sums, piece_bytes), values(plain.model())) == 0);
      CHECK(differing(accumulated(Zero<3>{}, accumulation::shard_sums, piece_bytes), values(plain.model())) == 0);
    }
    const auto by_local_sums = accumulated(Zero<2>{}, accumulation::local_sums, default_piece_bytes);
    const bool others = differing(by_local_sums, values(plain.model())) > 0;
    CHECK(others == (test::ranks() > 1));
  });
  test::on_ranks(test::ranks(), [](int rank) {
    auto world = join<ShmRing>();
    const TrainerOptions options{.accumulate = accumulation::shard_sums};
    CHECK_THROWS_WITH_AS((FreeTrainer<Ddp<>>{world, scaled(rank), mean_loss, sgd, options}),
                         doctest::Contains("would save nothing"), Error);
  });
}

TEST_CASE("C077, C081: shard_sums with parameters that are not always reached: no gradient is not a zero gradient") {
  test::on_ranks(test::ranks(), [](int rank) {
    torch::set_num_threads(1);
    auto world = join<ShmRing>();
    constexpr int steps = 3, micro_batches = 2;
    const bool last = rank == test::ranks() - 1;
    int step = 0, k = 0;
    const Free model{{{"always", test::parameter(rank, {rows, columns})},
                      {"never", test::parameter(rank, {rows, columns})},
                      {"in step 0", test::parameter(rank, {rows, columns})},
                      {"in micro-batch 1, by one rank", test::parameter(rank, {rows, columns})},
                      {"in micro-batch 0, by one rank", test::parameter(rank, {columns})}},
                     [&](const auto& p, const at::Tensor& x) {
                       at::Tensor y = x * p[0];
                       if (step == 0) y = y + x * x * p[2];
                       if (k == 1 && last) y = y + x * p[3].exp();
                       if (k == 0 && last) y = y + x * p[4];
                       return y;
                     }};
    const auto copy_of = [&] {
      Free copy = model;
      for (auto& [name, value] : copy.parameters) value = value.detach().clone().set_requires_grad(true);
      return copy;
    };
    // What an optimizer does to a gradient of zeros shows at once.
    const Recipe decaying = [](const std::vector<OwnedParameter>& owned) {
      return any(torch::optim::AdamW(values_of(owned), torch::optim::AdamWOptions(0.1).weight_decay(0.5)));
    };
    const auto loss = [&](auto& trainer) {
      return trainer.forward(input_of(rank, step * micro_batches + k, {rows, columns})).mean() / micro_batches;
    };

    // By hand: every micro-batch averaged on its own; what no rank reached has no average.
    FreeTrainer<Ddp<>> plain{world, copy_of(), mean_loss, decaying, {.unused = unused_parameters::find}};
    std::vector<std::vector<at::Tensor>> expected;
    for (step = 0; step < steps; ++step) {
      const auto parameters = weights(plain.model());
      std::vector<at::Tensor> sums(parameters.size());
      for (k = 0; k < micro_batches; ++k) {
        plain.backward(loss(plain));
        for (std::size_t i = 0; i < sums.size(); ++i) {
          at::Tensor& average = parameters[i].mutable_grad();
          if (average.defined()) sums[i] = sums[i].defined() ? sums[i] + average : average.clone();
          average.reset();
        }
      }
      for (std::size_t i = 0; i < sums.size(); ++i) parameters[i].mutable_grad() = sums[i];
      plain.update();
      expected.push_back(values(plain.model()));
    }

    const auto check = [&]<class Strategy>(Strategy) {
      FreeTrainer<Strategy> trainer{world,
                                    copy_of(),
                                    mean_loss,
                                    decaying,
                                    {.unused = unused_parameters::find, .accumulate = accumulation::shard_sums}};
      auto before = values(trainer.model());
      for (step = 0; step < steps; ++step) {
        k = 0;
        {
          const auto scope = trainer.accumulate();
          trainer.backward(loss(trainer));
        }
        k = 1;
        trainer.backward(loss(trainer));
        trainer.update();
        const auto after = values(trainer.model());
        CAPTURE(step);
        CHECK(differing(after[1], before[1]) == 0);
        CHECK((differing(after[2], before[2]) == 0) == (step > 0));
        CHECK(differing(after, expected[static_cast<std::size_t>(step)]) == 0);
        before = after;
      }
    };
    check(Zero<2>{});
    check(Zero<3>{});
  });
}

TEST_CASE("a gradient hook sees each average under its parameter's name, and may change it") {
  each_strategy([]<class Strategy>(Strategy, auto& world, int) {
    std::vector<std::string> names;
    TrainerOptions options;
    options.gradient_hook = [&](const std::string& name, at::Tensor& gradient) {
      names.push_back(name);
      gradient.mul_(0.5);
    };
    const auto halved = trained<Strategy>(world, options, 2);
    // Halving is exact: as if the inputs had been half as large.
    const auto expected = trained<Ddp<>>(world, {}, 2, [](int, const at::Tensor& x) { return x * 0.5; });
    CHECK(differing(halved, expected) == 0);
    for (const std::string& name : names) CHECK((name == "weight" || name == "bias"));
    CHECK((!names.empty() || std::string(Strategy::name) != "Ddp"));
  });
}

TEST_CASE("C065: ranks that run out of batches join the others' steps with zeros") {
  each_strategy([]<class Strategy>(Strategy, auto& world, int rank) {
    const int most = 3 + test::ranks();
    const int mine = most - rank;  // rank 0 has the most
    for (const bool reversed : {false, true}) {
      const int own = reversed ? most - (test::ranks() - 1 - rank) : mine;
      FreeTrainer<Strategy> trainer{world, scaled(rank), mean_loss, sgd, {.clip_norm = 100.0, .uneven_inputs = true}};
      for (int step = 0; step < own; ++step) {
        const at::Tensor x = input_of(rank, step, {rows, columns});
        trainer.step(x, x);
      }
      int called = 0;
      CHECK(trainer.join([&] { ++called; }) == static_cast<std::size_t>(most - own));
      CHECK(called == most - own);
      // Zero inputs give zero gradients.
      const auto expected = trained<Ddp<>>(world, {.clip_norm = 100.0}, most, [&](int step, const at::Tensor& x) {
        return step < own ? x : at::zeros_like(x);
      });
      CHECK(differing(values(trainer.model()), expected) == 0);

      // A second epoch, of even length.
      const at::Tensor x = input_of(rank, 100, {rows, columns});
      trainer.step(x, x);
      CHECK(trainer.join() == 0);
      CHECK(differing_from_rank_0(world, values(trainer.model())[0]) == 0);
      CHECK(trainer.ledger().balanced());
    }
  });
}

TEST_CASE("C065: a rank without any batch joins from the first step, unused parameters and buffers included") {
  if (test::ranks() == 1) return;
  test::on_ranks(test::ranks(), [](int rank) {
    torch::set_num_threads(1);
    auto world = join<ShmRing>();
    Free model = scaled(rank);
    model.parameters.emplace_back("spare", test::parameter(rank, {5}));
    model.buffers.emplace_back("seen", at::full({2}, rank, at::kFloat));
    const at::Tensor buffer = model.buffers[0].second;
    Trainer<Free, Zero<2>, ShmRing> trainer{
        world,
        model,
        mean_loss,
        sgd,
        {.unused = unused_parameters::find, .broadcast_buffers = true, .uneven_inputs = true}};
    const at::Tensor spare = trainer.model().parameters[2].second.detach().clone();
    if (rank != 0) {  // rank 0 has none
      for (int step = 0; step < 3; ++step) {
        const at::Tensor x = input_of(rank, step, {rows, columns});
        buffer.fill_(10 * rank + step);  // what its own forward before this one would have left
        trainer.step(x, x);
        CHECK(buffer[0].item<int>() == 10 + step);  // rank 1's: the lowest that has batches
      }
    }
    CHECK(trainer.join() == (rank == 0 ? 3U : 0U));
    CHECK(buffer[0].item<int>() == 12);
    CHECK(differing(trainer.model().parameters[2].second, spare) == 0);
    CHECK(differing_from_rank_0(world, trainer.model().parameters[0].second) == 0);
  });
}

// A joined rank had a gradient of zeros where the others had none: its weights decayed, theirs did not.
TEST_CASE("C065: a joined rank leaves alone what no rank reaches, and may begin with joining") {
  if (test::ranks() == 1) return;
  const auto check = []<class Strategy>(Strategy, auto& world, int rank, const TrainerOptions& unused) {
    Free model = scaled(rank);
    model.parameters.emplace_back("spare", test::parameter(rank, {5}));
    const Recipe decaying = [](const std::vector<OwnedParameter>& owned) {
      return any(torch::optim::AdamW(values_of(owned), torch::optim::AdamWOptions(0.1).weight_decay(0.5)));
    };
    TrainerOptions options = unused;
    options.clip_norm = 1.0;
    options.uneven_inputs = true;
    FreeTrainer<Strategy> trainer{world, model, mean_loss, decaying, options};
    const auto start = values(trainer.model());
    for (int epoch = 0; epoch < 2; ++epoch) {
      const int own = epoch == 0 ? 2 * rank : 2;  // rank 0 begins without a batch
      for (int step = 0; step < own; ++step) {
        const at::Tensor x = input_of(rank, 10 * epoch + step, {rows, columns});
        trainer.step(x, x);
      }
      trainer.join();
      const auto now = values(trainer.model());
      CHECK(differing(now[2], start[2]) == 0);
      CHECK(differing(now[0], start[0]) > 0);
      for (const at::Tensor& it : now) CHECK(differing_from_rank_0(world, it) == 0);
    }
    CHECK(trainer.ledger().balanced());
  };
  each_strategy([&]<class Strategy>(Strategy strategy, auto& world, int rank) {
    check(strategy, world, rank, {.unused = unused_parameters::find});
    check(strategy, world, rank, {.static_graph = true});
  });
}

TEST_CASE("C065: ranks with batches that do different things are told both") {
  if (test::ranks() == 1) return;
  test::on_ranks(test::ranks(), [](int rank) {
    auto world = join<ShmRing>();
    FreeTrainer<Ddp<>> trainer{world, scaled(rank), mean_loss, sgd, {.uneven_inputs = true}};
    const at::Tensor x = input_of(rank, 0, {rows, columns});
    trainer.backward(trainer.forward(x).mean());
    const char* const words = "Trainer::update on rank 0 meets Trainer::backward on rank 1; ranks that have batches";
    if (rank == 0)
      CHECK_THROWS_WITH_AS(trainer.update(), doctest::Contains(words), Error);
    else
      CHECK_THROWS_WITH_AS(trainer.backward(trainer.forward(x).mean()), doctest::Contains(words), Error);
    barrier(world);  // all know: the world stays usable
  });
  test::on_ranks(test::ranks(), [](int rank) {
    auto world = join<ShmRing>();
    FreeTrainer<Ddp<>> trainer{world, scaled(rank), mean_loss, sgd};
    CHECK_THROWS_WITH_AS(trainer.join(), doctest::Contains("join() needs TrainerOptions::uneven_inputs"), Error);
  });
}

TEST_CASE("static_graph: a step that reaches other parameters than the first is refused by name") {
  const auto refused = []<class Strategy>(Strategy, bool more) {
    test::on_ranks(test::ranks(), [&](int rank) {
      auto world = join<ShmRing>();
      bool all = !more;
      const Free model{
          {{"always", test::parameter(rank, {7})}, {"sometimes", test::parameter(rank, {5})}},
          [&](const auto& p, const at::Tensor& x) { return all ? x * p[0].sum() + p[1].sum() : x * p[0].sum(); }};
      FreeTrainer<Strategy> trainer{world, model, mean_loss, sgd, {.static_graph = true}};
      const at::Tensor x = input_of(rank, 0, {4});
      for (int step = 0; step < 3; ++step) trainer.step(x, x);
      all = more;
      CHECK_THROWS_WITH(trainer.step(x, x),
                        doctest::Contains(more ? "received a gradient, but none in the first step"
                                               : "parameter 1 of 2, \"sometimes\", got no gradient"));
    });
  };
  for (const bool more : {false, true}) {
    refused(Ddp<>{}, more);
    refused(Zero<2>{}, more);
  }
}

// Ddp's replicas parted: what one rank had reached in a micro-batch of its own counted there, and nowhere else.
TEST_CASE(
    "static_graph: a micro-batch, or a gradient by hand, of what the first step did not reach is refused by name") {
  const auto refused = []<class Strategy>(Strategy, bool by_hand) {
    test::on_ranks(test::ranks(), [&](int rank) {
      auto world = join<ShmRing>(JoinOptions{.timeout = std::chrono::seconds(20)});
      bool all = false;
      const Free model{
          {{"always", test::parameter(rank, {7})}, {"sometimes", test::parameter(rank, {5})}},
          [&](const auto& p, const at::Tensor& x) { return all ? x * p[0].sum() + p[1].sum() : x * p[0].sum(); }};
      FreeTrainer<Strategy> trainer{world, model, mean_loss, sgd, {.static_graph = true}};
      const at::Tensor x = input_of(rank, 0, {4});
      for (int step = 0; step < 3; ++step) trainer.step(x, x);
      all = rank == 0;
      const auto error = test::error_of([&] {
        {
          const auto locally = trainer.accumulate();
          trainer.backward(trainer.forward(x).mean());
        }
        all = false;
        if (by_hand) trainer.model().parameters[1].second.mutable_grad() = at::ones({5});
        if (by_hand) trainer.reduce_gradients();
        trainer.backward(trainer.forward(x).mean());
      });
      REQUIRE(error);
      CHECK(test::says(*error, "\"sometimes\" received a gradient, but none in the first step"));
    });
  };
  for (const bool by_hand : {false, true}) {
    refused(Ddp<>{}, by_hand);
    refused(Zero<2>{}, by_hand);
  }
}

TEST_CASE("after a failure, parameters cannot be shared in the same world, and that is said") {
  test::on_ranks(test::ranks(), [](int rank) {
    auto world = join<ShmRing>();
    auto failed = world.split(0, rank);
    failed.poison(Error(ErrorKind::poisoned, "given up by the test", rank, rank));
    CHECK_THROWS_WITH_AS((FreeTrainer<Zero<3>>{world, scaled(rank), mean_loss, sgd}),
                         doctest::Contains("arena was given up after a failure; join again"), Error);
  });
}

TEST_CASE("C084: groups by whole shape keep decay off what has one dimension, shards included") {
  each_strategy([]<class Strategy>(Strategy, auto& world, int rank) {
    const auto recipe = [](std::vector<OwnedParameter> owned) {
      const auto [matrices, others] = group_parameters(owned, is_matrix);
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(
          matrices, std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(0.1).weight_decay(0.5)));
      groups.emplace_back(
          others, std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(0.01).weight_decay(0.0)));
      return torch::optim::AdamW(groups, torch::optim::AdamWOptions(0.1));
    };
    const auto run = [&]<class S>(S) {
      FreeTrainer<S> trainer{world, scaled(rank), mean_loss, recipe};
      for (int step = 0; step < 3; ++step) {
        const at::Tensor x = input_of(rank, step, {rows, columns});
        trainer.step(x, x);
      }
      return values(trainer.model());
    };
    CHECK(differing(run(Strategy{}), run(Ddp<>{})) == 0);
  });
}

namespace {

/// A rate for each step, set before it as a training loop would.
Recipe adam_w_by(WarmUpCosine rate) {
  return [rate](const std::vector<OwnedParameter>& owned) {
    const auto optimizer = std::make_shared<AdamW<>>(values_of(owned), AdamOptions{.weight_decay = 0.1});
    return AnyOptimizer{[optimizer, rate, step = 0]() mutable {
      optimizer->set_learning_rate(rate.at(step++));
      optimizer->step();
    }};
  };
}
Recipe sgd_by(StepDecay rate) {
  return [rate](const std::vector<OwnedParameter>& owned) {
    const auto optimizer = std::make_shared<torch::optim::SGD>(values_of(owned), torch::optim::SGDOptions(1.0));
    return AnyOptimizer{[optimizer, rate, step = 0]() mutable {
      for (auto& group : optimizer->param_groups()) group.options().set_lr(rate.at(step));
      ++step;
      optimizer->step();
    }};
  };
}

}  // namespace

TEST_CASE("optimizers that treat elements alike, and their learning rates, give shards the bits of the whole") {
  using torch::optim::Adagrad, torch::optim::AdagradOptions, torch::optim::RMSprop, torch::optim::RMSpropOptions;
  const std::vector<std::pair<std::string, Recipe>> recipes{
      {"SGD, momentum", momentum_sgd()},
      {"Adagrad", recipe_of<Adagrad>(AdagradOptions(0.1).lr_decay(0.1).weight_decay(0.1))},
      {"RMSprop", recipe_of<RMSprop>(RMSpropOptions(0.1).alpha(0.9).weight_decay(0.1))},
      {"RMSprop, momentum", recipe_of<RMSprop>(RMSpropOptions(0.1).momentum(0.9))},
      {"AdamW, warm-up and cosine", adam_w_by({.peak = 0.1, .warm_up = 2, .steps = 4})},
      {"SGD, step by step", sgd_by({.start = 0.1, .every = 2, .factor = 0.3})}};
  each_strategy([&]<class Strategy>(Strategy, auto& world, int rank) {
    for (const auto& each : recipes) {
      const std::string& optimizer = each.first;
      const Recipe& recipe = each.second;
      CAPTURE(optimizer);
      // Its buckets say how averages are added up.
      FreeTrainer<Ddp<>> packed{world, scaled(rank), mean_loss, momentum_sgd()};
      OneProcess reference(scaled(0), recipe);
      FreeTrainer<Strategy> trainer{world, scaled(rank), mean_loss, recipe};
      for (int step = 0; step < 4; ++step) {
        const auto input = [&](int of) { return input_of(of, step, {rows, columns}); };
        packed.step(input(rank), input(rank));
        reference.set(averaged(layouts_of(packed), reference.gradients_of(world.size(), [&](const Free& it, int other) {
          mean_loss(it.forward(input(other)), {}).backward();
        })));
        reference.update();
        trainer.step(input(rank), input(rank));
        CAPTURE(step);
        CHECK(differing(values(trainer.model()), reference.weights()) == 0);
      }
    }
  });
}

// A rank that is ahead of the others would hold all of its gradients otherwise.
TEST_CASE("a rank ahead of the others has at most five pieces of gradients at a time, of several dtypes too") {
  if (test::ranks() == 1) return;
  const auto check = [](int rank, bool mixed) {
    auto world = join<ShmRing>();
    const std::size_t bytes = 100'000 * sizeof(float);
    Free model{{}, [](const auto& p, const at::Tensor& x) {
                 at::Tensor y = x;
                 for (const auto& value : p) y = y * value.slice(0, 0, 50'000).to(at::kFloat);
                 return y;
               }};
    for (int i = 0; i < 24; ++i) {
      const bool wide = mixed && i % 2 == 1;
      const at::Tensor value = parameter(rank, {wide ? 50'000 : 100'000}, wide ? at::kDouble : at::kFloat);
      model.parameters.emplace_back("p" + std::to_string(i), value);
    }
    if (rank == 0) {
      for (const auto& it : model.parameters) {
        it.second.register_hook([](const at::Tensor& gradient) {
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
          return gradient;
        });
      }
    }
    FreeTrainer<Zero<2>> trainer{world, model, mean_loss, sgd, {.piece_bytes = 1}};
    for (int step = 0; step < 4; ++step) {
      world.arena()->watch_use();
      const at::Tensor x = input_of(rank, step, {50'000});
      trainer.step(x, x);
      const Arena::Use use = world.arena()->use();
      CHECK(use.most - use.now <= 5 * (bytes + line_pair_bytes));
      CHECK(use.most - use.now >= (rank == 0 ? 1 : 3) * bytes);
    }
  };
  test::on_ranks(test::ranks(), [&](int rank) {
    check(rank, false);
    check(rank, true);
  });
}
