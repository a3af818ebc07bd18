// SPDX-License-Identifier: Apache-2.0
// Programs that do what a training loop usually does not, under every strategy: several forwards before a backward,
// buffers that are replaced, ranks with other numbers of batches or other parts of the model, parameters read outside
// forward, random numbers, hooks that sleep.
#include <torch/torch.h>

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/errors.hpp"
#include "support/free_model.hpp"
#include "support/one_process.hpp"
#include "support/ranks.hpp"
#include "support/sleepy_model.hpp"
#include "support/torch_training.hpp"
#include "tandem/tandem.hpp"

namespace {

using namespace tandem;
using namespace tandem::test;

struct ConvNetImpl : torch::nn::Module {
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  explicit ConvNetImpl(int seed) {
    torch::manual_seed(static_cast<std::uint64_t>(seed));
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3).bias(false)));
    norm = register_module("norm", torch::nn::BatchNorm2d(3));
  }
};
Free free_from(const std::shared_ptr<ConvNetImpl>& net) {
  Free model{{}, [net](const auto&, const at::Tensor& x) { return net->norm(net->conv(x)).pow(3).mean(); }};
  for (const auto& item : net->named_parameters()) model.parameters.emplace_back(item.key(), item.value());
  for (const auto& item : net->named_buffers()) model.buffers.emplace_back(item.key(), item.value());
  return model;
}

/// Three steps of two forwards and one backward, against one process.
template <class Strategy>
void two_forwards(Communicator<ShmRing>& world, bool broadcast_buffers) {
  const int rank = world.rank();
  const auto net = std::make_shared<ConvNetImpl>(rank);
  auto trainer = trainer_of<Strategy>(world, free_from(net), test::momentum_sgd(),
                                      TrainerOptions{.broadcast_buffers = broadcast_buffers});
  OneProcess reference(free_from(std::make_shared<ConvNetImpl>(0)), test::momentum_sgd());
  const auto loss = [](auto& model, int who, int step) {
    return model.forward(input_of(who, 2 * step, {4, 2, 6, 6})) +
           model.forward(input_of(who, 2 * step + 1, {4, 2, 6, 6}));
  };
  for (int step = 0; step < 3; ++step) {
    trainer.backward(loss(trainer, rank, step));
    reference.backward(2, [&](const Free& model, int other) { loss(model, other, step).backward(); });
    trainer.update();
    reference.update();
    CHECK(differing(weights(trainer.model()), reference.weights()) == 0);
  }
  CHECK(net->norm->num_batches_tracked.item<std::int64_t>() == 6);
  // Each rank's batches moved its own statistics; with broadcast_buffers rank 0's are everybody's before a forward.
  const auto parted = differing_from_rank_0(world, net->norm->running_mean);
  CHECK(parted == (rank == 0 ? 0 : 3));
  if (broadcast_buffers) {
    net->eval();
    trainer.forward(input_of(rank, 99, {4, 2, 6, 6}));
    CHECK(differing_from_rank_0(world, net->norm->running_mean) == 0);
    CHECK(differing_from_rank_0(world, net->norm->running_var) == 0);
  }
}

/// Residual blocks: with one left out the rest still fits.
Free blocks(int rank) {
  Free model{{}, [](const auto& p, const at::Tensor& x) {
               at::Tensor y = x;
               for (const auto& value : p) y = y + at::tanh(at::mm(y, value));
               return y.mean();
             }};
  for (std::size_t i = 0; i < 3; ++i) {
    model.parameters.emplace_back("block" + std::to_string(i) + ".weight",
                                  parameter(rank + 10 * static_cast<int>(i), {6, 6}));
  }
  return model;
}

}  // namespace

TEST_CASE("C063: two forwards with BatchNorm before one backward") {
  on_ranks(2, [](int) {
    torch::set_num_threads(1);
    auto world = join<ShmRing>();
    for_each_strategy([&]<class S>() { two_forwards<S>(world, false); });
  });
}

TEST_CASE("C063: two forwards with BatchNorm before one backward, buffers following rank 0") {
  on_ranks(2, [](int) {
    torch::set_num_threads(1);
    auto world = join<ShmRing>();
    for_each_strategy([&]<class S>() { two_forwards<S>(world, true); });
  });
}

TEST_CASE("C064: a counter of 64 bits follows rank 0 exactly") {
  on_ranks(2, [](int rank) {
    torch::set_num_threads(1);
    auto world = join<ShmRing>();
    for_each_strategy([&]<class S>() {
      const auto net = std::make_shared<ConvNetImpl>(rank);
      auto trainer =
          trainer_of<S>(world, free_from(net), test::momentum_sgd(), TrainerOptions{.broadcast_buffers = true});
      const std::int64_t large = (std::int64_t{1} << 53) + 1;  // no double has it
      net->norm->num_batches_tracked.fill_(rank == 0 ? large : 5);
      for (int step = 1; step <= 3; ++step) {
        trainer.step(input_of(rank, step, {4, 2, 6, 6}), at::Tensor());
        CHECK(net->norm->num_batches_tracked.template item<std::int64_t>() == large + step);
      }
    });
  });
}

TEST_CASE("C064: a buffer that forward replaces follows rank 0") {
  on_ranks(2, [](int rank) {
    auto world = join<ShmRing>();
    for_each_strategy([&]<class S>() {
      at::Tensor seen;
      Free* self = nullptr;
      auto trainer = trainer_of<S>(world,
                                   Free{{{"w", parameter(rank, {3})}},
                                        [&](const auto& p, const at::Tensor& x) {
                                          at::Tensor& statistic = self->buffers[0].second;
                                          seen = statistic.clone();
                                          statistic = statistic * 0.9 + x.mean(0) * 0.1;
                                          return (p[0] * x).mean();
                                        },
                                        {{"statistic", at::zeros({3})}}},
                                   test::momentum_sgd(), TrainerOptions{.broadcast_buffers = true});
      self = &trainer.model();
      for (int step = 0; step < 3; ++step) {
        trainer.step(input_of(rank, step, {5, 3}), at::Tensor());
        CHECK(differing_from_rank_0(world, seen) == 0);
      }
    });
  });
}

TEST_CASE("C065: one rank has five batches and the other three: both are told what each of them waits in") {
  const auto patience = std::chrono::seconds(1);
  for_each_strategy([&]<class S>() {
    for (const bool same_communicator : {false, true}) {
      on_ranks(2, [&](int rank) {
        auto world = join<ShmRing>(JoinOptions{.timeout = patience});
        auto trainer = trainer_of<S>(world, blocks(rank), test::momentum_sgd());
        const auto begin = std::chrono::steady_clock::now();
        const auto error = test::error_of([&] {
          for (int step = 0; step < (rank == 0 ? 5 : 3); ++step) {
            trainer.step(input_of(rank, step, {2, 6}), at::Tensor());
          }
          barrier(same_communicator ? trainer.engine().replicas() : world);
        });
        CHECK(std::chrono::steady_clock::now() - begin < patience + std::chrono::seconds(5));
        REQUIRE(error);
        const std::string said = error->what();
        const char* const reduction = std::string(S::name) == "Ddp" ? "all_reduce" : "reduce_scatter_v";
        if (same_communicator) {  // not taken for one another: noticed at once
          CHECK(error->kind() == ErrorKind::mismatch);
          CHECK_MESSAGE(said.find(reduction) != std::string::npos, said);
          CHECK_MESSAGE(said.find("barrier") != std::string::npos, said);
          CHECK_MESSAGE(said.find("operation ") != std::string::npos, said);
        } else {  // found at the deadline by one of them, who tells the other
          CHECK_MESSAGE(said.find(std::string(reduction) + " (operation ") != std::string::npos, said);
          CHECK_MESSAGE(said.find("barrier (operation 2,") != std::string::npos, said);
          CHECK_MESSAGE(said.find("did not take part within 1 s; it waits in") != std::string::npos, said);
        }
        CHECK_THROWS_AS(barrier(world), Error);
      });
    }
  });
}

TEST_CASE("C071: nothing in the library draws random numbers; masks differ with seeds and only with them") {
  on_ranks(2, [](int rank) {
    const auto state = [] { return at::detail::getDefaultCPUGenerator().get_state(); };
    torch::manual_seed(7);
    const at::Tensor before = state();
    auto world = join<ShmRing>();
    CHECK(differing(before, state()) == 0);
    const auto mask = [](const auto& p, const at::Tensor& x) { return at::dropout(x * p[0], 0.5, true); };
    for_each_strategy([&]<class S>() {
      const Free model{{{"w", at::ones({}).set_requires_grad(true)}}, mask};
      torch::manual_seed(7);
      auto trainer = trainer_of<S>(world, model, test::momentum_sgd(), TrainerOptions{.clip_norm = 1.0});
      trainer.backward((trainer.model().parameters[0].second * 2).sum());
      trainer.update();
      CHECK(differing(before, state()) == 0);
      const at::Tensor x = at::ones({1000});
      const auto differing_masks = [&](int seed) {
        torch::manual_seed(static_cast<std::uint64_t>(seed));
        const at::Tensor output = trainer.forward(x);
        CHECK(output.eq(0).sum().template item<std::int64_t>() > 400);
        return differing_from_rank_0(world, output);
      };
      CHECK(differing_masks(7) == 0);
      const auto of_their_own = differing_masks(7 + rank);
      CHECK((rank == 0 ? of_their_own == 0 : of_their_own > 400));
    });
  });
}

TEST_CASE("C088: forwards without backward, an evaluation between forward and backward, a graph used twice") {
  on_ranks(2, [](int rank) {
    torch::set_num_threads(1);
    auto world = join<ShmRing>();
    const auto x = [](int who, int step) { return input_of(who, step, {2, 6}); };
    for_each_strategy([&]<class S>() {
      auto trainer = trainer_of<S>(world, blocks(rank), test::momentum_sgd());
      OneProcess reference(blocks(0), test::momentum_sgd());
      const auto where = [&] {
        std::vector<void*> places;
        for (const auto& weight : weights(trainer.model())) places.push_back(weight.data_ptr());
        return places;
      };
      const auto places = where();
      for (int step = 0; step < 4; ++step) {
        CHECK(differing(trainer.forward(x(rank, 20 + step)), reference.model().forward(x(rank, 20 + step))) == 0);
        const at::Tensor loss = trainer.forward(x(rank, step));
        {
          torch::NoGradGuard no_grad;
          CHECK(differing(trainer.forward(x(rank, 30)), reference.model().forward(x(rank, 30))) == 0);
        }
        CHECK(trainer.evaluate(x(rank, 31), at::Tensor()) ==
              reference.model().forward(x(rank, 31)).to(at::kDouble).template item<double>());
        const bool twice = step == 1;
        if (twice) loss.backward({}, true);
        trainer.backward(loss);
        reference.backward(2, [&](const Free& model, int other) {
          const at::Tensor theirs = model.forward(x(other, step));
          if (twice) theirs.backward({}, true);
          theirs.backward();
        });
        trainer.update();
        reference.update();
        CHECK(differing(weights(trainer.model()), reference.weights()) == 0);
        // Nothing was gathered that would have to go: the parameters are where they were, and buckets give way.
        CHECK(where() == places);
        if constexpr (requires { S::level; }) {
          for (const auto& bucket : trainer.engine().buckets()) CHECK(bucket.has_memory() == (S::level == 1));
        }
      }
    });
  });
}

// Owners update memory that autograd does not connect with the parameters: old activations met new weights, silently.
TEST_CASE("C088: a graph from before an update is refused by autograd, under every strategy") {
  for_each_strategy([]<class S>() {
    on_ranks(2, [](int rank) {
      torch::set_num_threads(1);
      auto world = join<ShmRing>(JoinOptions{.timeout = std::chrono::seconds(20)});
      auto trainer = trainer_of<S>(world, blocks(rank), test::momentum_sgd());
      const at::Tensor before = trainer.forward(input_of(rank, 0, {2, 6}));
      trainer.step(input_of(rank, 1, {2, 6}), at::Tensor());
      const std::string name = S::name;
      CAPTURE(name);
      CHECK_THROWS_WITH(trainer.backward(before), doctest::Contains("modified by an inplace operation"));
    });
  });
}

TEST_CASE("C089: a parameter is itself outside its module's forward, too") {
  on_ranks(2, [](int rank) {
    torch::set_num_threads(1);
    auto world = join<ShmRing>();
    // The parent takes its children's weights directly.
    const auto make = [](int source) {
      return Free{{{"child.weight", parameter(source, {5, 4})}, {"child.scale", parameter(source, {})}},
                  [](const auto& p, const at::Tensor& x) {
                    CHECK(p[0].sizes() == at::IntArrayRef({5, 4}));
                    return (x * p[0] * p[1]).mean();
                  }};
    };
    const auto norm = [](const std::vector<at::Tensor>& list) {
      torch::NoGradGuard no_grad;
      at::Tensor sum = at::zeros({});
      for (const auto& value : list) sum = sum + value.pow(2).sum();
      return sum.sqrt();
    };
    for_each_strategy([&]<class S>() {
      auto trainer = trainer_of<S>(world, make(rank), test::momentum_sgd());
      OneProcess reference(make(0), test::momentum_sgd());
      for (int step = 0; step < 3; ++step) {
        const auto ours = weights(trainer.model());
        CHECK(ours[0].sizes() == at::IntArrayRef({5, 4}));
        CHECK(ours[1].dim() == 0);
        CHECK(differing(norm(ours), norm(reference.weights())) == 0);
        // And without the Trainer's forward.
        trainer.backward(trainer.model().forward(input_of(rank, step, {5, 4})));
        reference.backward(2, [&](const Free& model, int other) {
          model.forward(input_of(other, step, {5, 4})).backward();
        });
        trainer.update();
        reference.update();
        CHECK(differing(ours, reference.weights()) == 0);
      }
    });
  });
}

TEST_CASE("C090: a rank that skips a block is named with the block, on both ranks") {
  for_each_strategy([]<class S>() {
    on_ranks(2, [](int rank) {
      torch::set_num_threads(1);
      auto world = join<ShmRing>(JoinOptions{.timeout = std::chrono::seconds(5)});
      bool skips = false;
      Free model = blocks(rank);
      model.compute = [&skips, all = model.compute](const auto& p, const at::Tensor& x) {
        return skips ? all({p[0], p[2]}, x) : all(p, x);
      };
      auto trainer = trainer_of<S>(world, model, test::momentum_sgd());
      OneProcess reference(blocks(0), test::momentum_sgd());
      trainer.step(input_of(rank, 0, {2, 6}), at::Tensor());
      reference.backward(2, [](const Free& it, int other) { it.forward(input_of(other, 0, {2, 6})).backward(); });
      reference.update();
      CHECK(differing(weights(trainer.model()), reference.weights()) == 0);
      skips = rank == 1;
      const auto begin = std::chrono::steady_clock::now();
      const auto error = test::error_of([&] { trainer.step(input_of(rank, 1, {2, 6}), at::Tensor()); });
      CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
      REQUIRE(error);
      CHECK_MESSAGE(test::says(*error, "parameter 1 of 3, \"block1.weight\", got no gradient on rank 1"),
                    std::string(error->what()));
      CHECK(differing(weights(trainer.model()), reference.weights()) == 0);
    });
  });
}

TEST_CASE("C092: reductions beside a backward that sleeps at random give the bits of reductions after it") {
  on_ranks(2, [](int rank) {
    torch::set_num_threads(1);
    auto world = join<ShmRing>();
    const TrainerOptions options{.clip_norm = 0.05, .buckets = BucketCaps::every(700)};
    std::vector<std::vector<at::Tensor>> expected;
    {
      auto apart = trainer_of<Ddp<>>(world, sleepy(rank, false), test::momentum_sgd(), options);
      for (int step = 0; step < 20; ++step) {
        {
          const auto locally = apart.accumulate();
          apart.backward(apart.forward(input_of(rank, step, {3, 16})));
        }
        apart.reduce_gradients();
        apart.update();
        expected.push_back(test::copies(weights(apart.model())));
      }
    }
    OneProcess reference(sleepy(0, false), test::momentum_sgd());
    for (int step = 0; step < 20; ++step) {
      reference.backward(2, [&](const Free& model, int other) {
        model.forward(input_of(other, step, {3, 16})).backward();
      });
      test::clip_like_python(reference.weights(), 0.05);
      reference.update();
      CHECK(differing(reference.weights(), expected[static_cast<std::size_t>(step)]) == 0);
    }
    for_each_strategy([&]<class S>() {
      auto trainer = trainer_of<S>(world, sleepy(rank, true), test::momentum_sgd(), options);
      for (int step = 0; step < 20; ++step) {
        trainer.step(input_of(rank, step, {3, 16}), at::Tensor());
        const auto wrong = differing(weights(trainer.model()), expected[static_cast<std::size_t>(step)]);
        CHECK_MESSAGE(wrong == 0, std::string(S::name), ", step ", step, ": ", wrong, " elements differ");
      }
      CHECK(trainer.engine().buckets().size() > 6);
    });
  });
}
