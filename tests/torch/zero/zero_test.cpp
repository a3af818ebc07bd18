// SPDX-License-Identifier: Apache-2.0
// Zero in the cases that break sharded optimizers elsewhere: parameters smaller and larger than a shard, of no
// elements, of several dtypes, of any layout. Ddp, which is held against PyTorch elsewhere, says what the weights must
// be.
#include <torch/torch.h>

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "support/free_model.hpp"
#include "support/one_process.hpp"
#include "support/ranks.hpp"
#include "support/shared_page.hpp"
#include "support/torch_training.hpp"
#include "tandem/tandem.hpp"

namespace {

using namespace tandem;
using namespace tandem::test;

template <class Strategy>
void against_ddp(Communicator<ShmRing>& world, const std::function<Free(int)>& make, at::IntArrayRef sizes,
                 TrainerOptions options, const std::vector<std::vector<at::Tensor>>& expected) {
  Trainer<Free, Strategy, ShmRing> trainer{world, make(world.rank()), mean_loss, sgd, options};
  for (std::size_t step = 0; step < expected.size(); ++step) {
    const at::Tensor x = input_of(world.rank(), static_cast<int>(step), sizes);
    trainer.step(x, x);
    if (const auto wrong = differing(weights(trainer.model()), expected[step]); wrong != 0) {
      FAIL_CHECK(Strategy::name << ", step " << step << ": " << wrong << " elements differ from Ddp");
    }
  }
  CHECK(trainer.ledger().balanced());
}

/// Its input, times a weight for each element.
Free scaled(int rank, std::int64_t elements) {
  return Free{{{"weight", test::parameter(rank, {elements})}},
              [](const auto& p, const at::Tensor& x) { return x * p[0]; }};
}

/// All levels and placements, with and without clipping.
void as_ddp(const std::function<Free(int rank)>& make, at::IntArrayRef sizes, int steps = 4) {
  test::on_ranks(test::ranks(), [&](int rank) {
    torch::set_num_threads(1);
    auto world = join<ShmRing>();
    for (const bool clips : {false, true}) {
      TrainerOptions options;
      if (clips) options.clip_norm = 0.07;
      std::vector<std::vector<at::Tensor>> expected;
      {
        Trainer<Free, Ddp<>, ShmRing> trainer{world, make(rank), mean_loss, sgd, options};
        for (int step = 0; step < steps; ++step) {
          const at::Tensor x = input_of(rank, step, sizes);
          trainer.step(x, x);
          expected.emplace_back();
          for (const auto& value : weights(trainer.model())) expected.back().push_back(value.detach().clone());
        }
      }
      for (const Placement placement : {Placement::apart, Placement::shared}) {
        options.placement = placement;
        against_ddp<Zero<1>>(world, make, sizes, options, expected);
        against_ddp<Zero<2>>(world, make, sizes, options, expected);
        if (placement == Placement::shared) against_ddp<Zero<3>>(world, make, sizes, options, expected);
      }
    }
  });
}

}  // namespace

TEST_CASE("fewer elements than ranks, parameters without elements, and one larger than any shard") {
  as_ddp(
      [](int rank) {
        return Free{{{"one", test::parameter(rank, {1})}}, [](const auto& p, const at::Tensor& x) { return x * p[0]; }};
      },
      {3});
  as_ddp(
      [](int rank) {
        return Free{
            {{"none", test::parameter(rank, {0, 4})},
             {"small", test::parameter(rank, {3})},
             {"large", test::parameter(rank, {1000, 3})},
             {"last", test::parameter(rank, {2})}},
            [](const auto& p, const at::Tensor& x) { return p[0].sum() + (p[2] * x * p[1]).sum() * p[3].prod(); }};
      },
      {1000, 3});
}

TEST_CASE("several dtypes have shards of their own, and are clipped together") {
  as_ddp(
      [](int rank) {
        return Free{{{"a", test::parameter(rank, {37})},
                     {"b", test::parameter(rank, {11}, at::kDouble)},
                     {"c", test::parameter(rank, {5, 7})},
                     {"d", test::parameter(rank, {23}, at::kDouble)}},
                    [](const auto& p, const at::Tensor& x) {
                      return (p[0].sum() * x).sum() + (p[1].sum() * p[3]).sum() + (p[2] * p[2]).sum();
                    }};
      },
      {4});
}

TEST_CASE("a transposed parameter keeps its strides, and a strided one gets its values") {
  as_ddp(
      [](int rank) {
        const at::Tensor transposed = test::parameter(rank, {6, 9}).detach().t().set_requires_grad(true);
        const at::Tensor gaps = test::parameter(rank, {8, 4}).detach().narrow(1, 0, 2).set_requires_grad(true);
        return Free{{{"transposed", transposed}, {"gaps", gaps}},
                    [](const auto& p, const at::Tensor& x) { return (p[0].matmul(x)).sum() + (p[1] * p[1]).sum(); }};
      },
      {6, 2});
}

TEST_CASE("a recipe gets what this rank owns, under the parameters' names and with their whole shapes") {
  test::on_ranks(test::ranks(), [&](int rank) {
    auto world = join<ShmRing>();
    const auto make = [&] {
      return Free{{{"weight", test::parameter(rank, {10, 4})}, {"bias", test::parameter(rank, {4})}},
                  [](const auto& p, const at::Tensor& x) { return x.matmul(p[0]) + p[1]; }};
    };
    std::int64_t owned = 0;
    const auto recipe = [&](std::vector<OwnedParameter> parameters) {
      std::vector<at::Tensor> list;
      for (const auto& it : parameters) {
        CHECK(it.value.dim() == 1);
        CHECK(it.full_shape == (it.name == "weight" ? std::vector<std::int64_t>{10, 4} : std::vector<std::int64_t>{4}));
        owned += it.value.numel();
        list.push_back(it.value);
      }
      return torch::optim::SGD(list, 0.1);
    };
    Trainer<Free, Zero<2>, ShmRing> trainer{world, make(), mean_loss, recipe};
    all_reduce(world, std::span(&owned, 1), Sum{});
    CHECK(owned == 44);
    const at::Tensor x = input_of(rank, 0, {5, 10});
    trainer.backward(trainer.forward(x).mean());
    for (const auto& bucket : trainer.engine().buckets()) CHECK_FALSE(bucket.has_memory());  // level 2
    trainer.update();
  });
}

TEST_CASE("what would lose averages is refused") {
  test::on_ranks(test::ranks(), [&](int rank) {
    auto world = join<ShmRing>();
    CHECK_THROWS_WITH_AS((Trainer<Free, Zero<1>, ShmRing>{world, scaled(rank, 7), mean_loss, sgd,
                                                          TrainerOptions{.after_update = AfterUpdate::keep}}),
                         doctest::Contains("Zero cannot keep gradients from step to step"), Error);
  });
  test::on_ranks(test::ranks(), [&](int rank) {
    auto world = join<ShmRing>();
    Trainer<Free, Zero<1>, ShmRing> trainer{world, scaled(rank, 7), mean_loss, sgd};
    const at::Tensor x = input_of(rank, 0, {7});
    trainer.backward(trainer.forward(x).mean());
    CHECK_THROWS_WITH_AS(trainer.backward(trainer.forward(x).mean()),
                         doctest::Contains("a second backward before update() would lose the averages"), Error);
  });
}

TEST_CASE("a shared parameter that outlives its Trainer is still there, and keeps nobody from leaving") {
  if (test::ranks() == 1) return;
  test::SharedPage notes;
  test::on_ranks(test::ranks(), [&](int rank) {
    at::Tensor kept;
    {
      auto world = join<ShmRing>();
      Trainer<Free, Zero<3>, ShmRing> trainer{world, scaled(rank, 1000), mean_loss, sgd};
      const at::Tensor x = input_of(rank, 0, {1000});
      trainer.step(x, x);
      kept = trainer.model().parameters[0].second;
      if (rank == 0) {  // the others have left, although they keep a parameter
        CHECK_THROWS_WITH_AS(barrier(world), doctest::Contains("left the communicator"), Error);
        CHECK(notes->phase == 0);
        notes->seen = 1;
      }
    }
    const double sum = kept.detach().sum().item<double>();
    if (rank != 0) {
      const auto end = Deadline::after(std::chrono::seconds(20));
      while (notes->seen == 0 && !end.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      CHECK(notes->seen == 1);
      notes->phase = 1;
    }
    CHECK(kept.detach().sum().item<double>() == sum);
  });
}

TEST_CASE("parameters that every rank updates cannot be shared") {
  test::on_ranks(test::ranks(), [&](int rank) {
    auto world = join<ShmRing>();
    CHECK_THROWS_WITH_AS((Trainer<Free, Ddp<>, ShmRing>{world, scaled(rank, 7), mean_loss, sgd,
                                                        TrainerOptions{.placement = Placement::shared}}),
                         doctest::Contains("under Ddp every rank updates its own copy"), Error);
  });
}
