// SPDX-License-Identifier: Apache-2.0
// Ddp in the cases that are reported against other systems (unused parameters, tied modules, mixed dtypes, layouts,
// replaced gradients ...), against an oracle that adds gradients in the contract's order in one process.
#include <torch/torch.h>

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/free_model.hpp"
#include "support/one_process.hpp"
#include "support/ranks.hpp"
#include "support/torch_training.hpp"
#include "tandem/tandem.hpp"

namespace {

using tandem::test::averaged;
using tandem::test::differing;
using tandem::test::Free;
using tandem::test::input_of;
using tandem::test::layouts_of;
using tandem::test::mean_loss;
using tandem::test::parameter;
using tandem::test::Parameters;
using tandem::test::sgd;

using Trainer = tandem::Trainer<Free, tandem::Ddp<>, tandem::ShmRing>;

/// Trains `make(rank)` for some steps, and one process' emulation of all ranks beside it; counts differing elements.
/// The layout of the buckets is taken from the Trainer: that it is PyTorch's is oracle_test.cpp's affair.
void against_one_process(const std::function<Free(int rank)>& make, at::IntArrayRef input_sizes, int steps,
                         tandem::TrainerOptions options = {}) {
  const int ranks = tandem::test::ranks();
  tandem::test::on_ranks(ranks, [&](int rank) {
    torch::set_num_threads(1);
    auto world = tandem::join<tandem::ShmRing>();
    Trainer trainer{world, make(rank), mean_loss, sgd, options};
    Free reference = make(0);
    std::vector<at::Tensor> ours, theirs;
    for (const auto& [name, value] : trainer.model().parameters) ours.push_back(value);
    for (const auto& [name, value] : reference.parameters) theirs.push_back(value);
    CHECK(differing(ours, theirs) == 0);
    const auto optimizer = sgd(theirs);
    for (int step = 0; step < steps; ++step) {
      const at::Tensor x = input_of(rank, step, input_sizes);
      trainer.backward(mean_loss(trainer.forward(x), x));
      std::vector<std::vector<at::Tensor>> by_rank;
      for (int other = 0; other < ranks; ++other) {
        for (const auto& value : theirs) value.mutable_grad().reset();
        const at::Tensor y = input_of(other, step, input_sizes);
        mean_loss(reference.forward(y), y).backward();
        by_rank.push_back(tandem::test::gradients(theirs));
      }
      const auto expected = averaged(layouts_of(trainer), by_rank);
      const auto wrong = differing(tandem::test::gradients(ours), expected);
      CHECK_MESSAGE(wrong == 0, wrong, " gradient elements differ in step ", step, " at ", ranks, " ranks");
      for (std::size_t i = 0; i < theirs.size(); ++i) theirs[i].mutable_grad() = expected[i];
      trainer.update();
      optimizer->step();
      CHECK(differing(ours, theirs) == 0);
      for (std::size_t i = 0; i < ours.size(); ++i) CHECK(ours[i].strides() == theirs[i].strides());
    }
    CHECK(trainer.ledger().balanced());
  });
}

}  // namespace

TEST_CASE("a gradient is a view of its bucket in the arena: nothing was copied") {
  tandem::test::on_ranks(tandem::test::ranks(), [&](int rank) {
    auto world = tandem::join<tandem::ShmRing>();
    Trainer trainer{world,
                    Free{{{"w", parameter(rank, {5, 3})}, {"b", parameter(rank, {3})}, {"s", parameter(rank, {})}},
                         [](const auto& p, const at::Tensor& x) { return (at::mm(x, p[0]) + p[1]) * p[2]; }},
                    mean_loss, sgd};
    for (int step = 0; step < 3; ++step) {
      trainer.backward(mean_loss(trainer.forward(input_of(rank, step, {4, 5})), {}));
      const auto& buckets = trainer.engine().buckets();
      REQUIRE(buckets.size() == 1);
      const auto& layout = buckets[0].layout();
      for (std::size_t place = 0; place < layout.items.size(); ++place) {
        const at::Tensor gradient = trainer.model().parameters[layout.items[place]].second.grad();
        CHECK(gradient.data_ptr() == buckets[0].view(place).data_ptr());
        CHECK(world.arena()->contains(gradient.data_ptr(), gradient.nbytes()));
      }
      trainer.update();
    }
  });
}

TEST_CASE("C055: an unused parameter is named in the same backward, and no rank hangs") {
  const int ranks = tandem::test::ranks();
  for (const bool everywhere : {true, false}) {
    tandem::test::on_ranks(ranks, [&](int rank) {
      auto world = tandem::join<tandem::ShmRing>(tandem::JoinOptions{.timeout = std::chrono::seconds(20)});
      const bool skips = everywhere || rank == ranks - 1;
      Trainer trainer{world,
                      Free{{{"used", parameter(rank, {4, 4})}, {"idle.weight", parameter(rank, {4, 4})}},
                           [skips](const auto& p, const at::Tensor& x) {
                             return skips ? at::mm(x, p[0]) : at::mm(x, p[0]) + at::mm(x, p[1]);
                           }},
                      mean_loss, sgd};
      std::string said;
      try {
        trainer.step(input_of(rank, 0, {2, 4}), at::Tensor());
      } catch (const tandem::Error& error) {
        said = error.what();
        if (skips) CHECK((error.kind() == tandem::ErrorKind::argument || error.kind() == tandem::ErrorKind::poisoned));
      }
      CHECK_MESSAGE(said.find("\"idle.weight\"") != std::string::npos, said);
      CHECK(world.poisoned());
      CHECK_THROWS_AS(trainer.step(input_of(rank, 1, {2, 4}), at::Tensor()), tandem::Error);
    });
  }
}

TEST_CASE("C057: a module used several times in one forward") {
  against_one_process(
      [](int rank) {
        return Free{{{"w", parameter(rank, {7, 7})}, {"b", parameter(rank, {7})}},
                    [](const auto& p, const at::Tensor& x) {
                      const auto f = [&](const at::Tensor& y) { return at::tanh(at::linear(y, p[0], p[1])); };
                      return f(f(x)) + f(x.slice(0, 0, 1)) * f(x * 2);
                    }};
      },
      {3, 7}, 4);
}

TEST_CASE("C059: nothing to train passes through") {
  tandem::test::on_ranks(tandem::test::ranks(), [&](int rank) {
    auto world = tandem::join<tandem::ShmRing>();
    const at::Tensor x = input_of(rank, 0, {2, 3});
    {
      Trainer none{world, Free{{}, [](const auto&, const at::Tensor& y) { return at::relu(y); }}, mean_loss, sgd};
      CHECK(none.step(x, x) == at::relu(x).to(at::kDouble).mean().item<double>());
      CHECK(none.evaluate(x, x) == at::relu(x).to(at::kDouble).mean().item<double>());
    }
    {
      Trainer frozen{world,
                     Free{{{"w", parameter(rank, {3, 3}).set_requires_grad(false)}},
                          [](const auto& p, const at::Tensor& y) { return at::mm(y, p[0]); }},
                     mean_loss, sgd};
      const at::Tensor before = frozen.model().parameters[0].second.clone();
      frozen.step(x, x);
      CHECK(differing(before, frozen.model().parameters[0].second) == 0);
      CHECK(differing(before, parameter(0, {3, 3})) == 0);  // equalised all the same
    }
    {
      // Linear(3, 0): parameters without elements beside one with some.
      Trainer empty{world,
                    Free{{{"none", parameter(rank, {0, 3})}, {"one", parameter(rank, {1})}},
                         [](const auto& p, const at::Tensor& y) { return at::linear(y, p[0]).sum() + p[1]; }},
                    mean_loss, sgd};
      for (int step = 0; step < 3; ++step) empty.step(x, x);
      CHECK(empty.ledger().balanced());
    }
    tandem::barrier(world);
  });
}

namespace {
struct NoInput {
  at::Tensor w = at::ones({2}).set_requires_grad(true);
  at::Tensor forward() const { return w * 2; }
  Parameters named_parameters() const { return {{"w", w}}; }
};
}  // namespace

TEST_CASE("C059: a model whose forward takes no input") {
  tandem::test::on_ranks(tandem::test::ranks(), [&](int) {
    auto world = tandem::join<tandem::ShmRing>();
    tandem::Trainer<NoInput, tandem::Ddp<>, tandem::ShmRing> trainer{
        world, NoInput{}, [](const at::Tensor& y, const at::Tensor& t) { return (y - t).pow(2).mean(); }, sgd};
    CHECK(trainer.step(at::zeros({2})) == 4.0);
  });
}

TEST_CASE("C060: four dtypes, odd sizes, tiny and default buckets: each gradient keeps its dtype and its bits") {
  const auto make = [](int rank) {
    return Free{{{"f32", parameter(rank, {3})},
                 {"bf16", parameter(rank, {5}, at::kBFloat16)},
                 {"f64", parameter(rank, {7}, at::kDouble)},
                 {"f16", parameter(rank, {1}, at::kHalf)},
                 {"f32b", parameter(rank, {5, 5})},
                 {"bf16b", parameter(rank, {31}, at::kBFloat16)}},
                [](const auto& p, const at::Tensor& x) {
                  at::Tensor sum = at::zeros({1}, at::kDouble);
                  for (const auto& value : p) {
                    const at::Tensor scaled =
                        value * x.flatten().slice(0, 0, value.numel()).view(value.sizes()).to(value.scalar_type());
                    sum = sum + (scaled * scaled).to(at::kDouble).sum();
                  }
                  return sum;
                }};
  };
  against_one_process(make, {40}, 4, {.buckets = tandem::BucketCaps::every(16)});
  against_one_process(make, {40}, 4, {.buckets = tandem::BucketCaps::every(1 << 20)});
  against_one_process(make, {40}, 4, {});
}

TEST_CASE("more tiny buckets than operations may be pending") {
  against_one_process(
      [](int rank) {
        Free model{{}, [](const auto& p, const at::Tensor& x) {
                     at::Tensor y = x;
                     for (const auto& value : p) y = y * value;
                     return y;
                   }};
        for (int i = 0; i < 90; ++i) model.parameters.emplace_back("p" + std::to_string(i), parameter(rank, {2}));
        return model;
      },
      {3, 2}, 3, {.buckets = tandem::BucketCaps::every(8)});
}

TEST_CASE("C066: construction makes all ranks equal to rank 0, parameters and buffers of any dtype and layout") {
  tandem::test::on_ranks(tandem::test::ranks(), [&](int rank) {
    auto world = tandem::join<tandem::ShmRing>();
    const auto make = [](int source) {
      const auto flag = input_of(source, 9, {6}) > 0;
      return Free{
          {{"contiguous", parameter(source, {4, 3})},
           {"transposed", parameter(source, {5, 2}).detach().t().set_requires_grad(true)},
           {"strided", parameter(source, {4, 6}).detach().slice(1, 0, 6, 2).set_requires_grad(true)},
           {"scalar", parameter(source, {})},
           {"half", parameter(source, {3}, at::kBFloat16)}},
          [](const auto& p, const at::Tensor& x) { return x.mean() + p[0].sum(); },
          {{"float", input_of(source, 1, {7})}, {"counter", at::full({}, 1000 + source, at::kLong)}, {"flags", flag}}};
    };
    Free model = make(rank);
    std::vector<std::vector<std::int64_t>> strides;
    for (const auto& [name, value] : model.parameters) strides.push_back(value.strides().vec());
    Trainer trainer{world, model, mean_loss, sgd};
    const Free root = make(0);
    for (std::size_t i = 0; i < root.parameters.size(); ++i) {
      const at::Tensor& value = trainer.model().parameters[i].second;
      CHECK_MESSAGE(differing(value, root.parameters[i].second) == 0, root.parameters[i].first);
      CHECK(value.strides().vec() == strides[i]);
      CHECK(value.is_leaf());
      CHECK(value.requires_grad());
    }
    for (std::size_t i = 0; i < root.buffers.size(); ++i) {
      CHECK_MESSAGE(differing(trainer.model().buffers[i].second, root.buffers[i].second) == 0, root.buffers[i].first);
    }
  });
}

TEST_CASE("C067: channels-last parameters, transposed ones and ones with gaps") {
  against_one_process(
      [](int rank) {
        return Free{{{"conv", parameter(rank, {3, 2, 3, 3})
                                  .detach()
                                  .contiguous(at::MemoryFormat::ChannelsLast)
                                  .set_requires_grad(true)},
                     {"transposed", parameter(rank, {5, 3}).detach().t().set_requires_grad(true)},
                     {"gaps", parameter(rank, {3, 10}).detach().slice(1, 0, 10, 2).set_requires_grad(true)}},
                    [](const auto& p, const at::Tensor& x) {
                      return at::conv2d(x, p[0]).mean({2, 3}).matmul(p[1]) * p[2].sum(0);
                    }};
      },
      {2, 2, 6, 6}, 4);
}

TEST_CASE("C067: channels-last on one rank only is said at construction, on every rank") {
  const int ranks = tandem::test::ranks();
  if (ranks == 1) return;
  tandem::test::on_ranks(ranks, [&](int rank) {
    auto world = tandem::join<tandem::ShmRing>();
    at::Tensor weight = parameter(rank, {3, 2, 3, 3}).detach();
    if (rank == 1) weight = weight.contiguous(at::MemoryFormat::ChannelsLast);
    const auto make = [&] {
      Trainer trainer{world,
                      Free{{{"conv", weight.set_requires_grad(true)}},
                           [](const auto& p, const at::Tensor& x) { return at::conv2d(x, p[0]); }},
                      mean_loss, sgd};
    };
    CHECK_THROWS_WITH_AS(
        make(),
        "tandem: parameter 0 is \"conv\" float32 [3, 2, 3, 3] on rank 0 and \"conv\" float32 [3, 2, 3, 3], "
        "strides [18, 1, 6, 2] on rank 1; build the same model on all ranks",
        tandem::Error);
    CHECK_FALSE(world.poisoned());
    tandem::barrier(world);
  });
}

TEST_CASE("C069: released, zeroed, replaced and rescaled gradients in turn") {
  const int ranks = tandem::test::ranks();
  tandem::test::on_ranks(ranks, [&](int rank) {
    torch::set_num_threads(1);
    auto world = tandem::join<tandem::ShmRing>();
    const auto make = [](int source) {
      return Free{{{"w", parameter(source, {6, 6})}, {"b", parameter(source, {6})}},
                  [](const auto& p, const at::Tensor& x) { return at::tanh(at::linear(x, p[0], p[1])); }};
    };
    Trainer trainer{world, make(rank), mean_loss, sgd, {.after_update = tandem::AfterUpdate::keep}};
    Free reference = make(0);
    std::vector<at::Tensor> ours, theirs;
    for (const auto& [name, value] : trainer.model().parameters) ours.push_back(value);
    for (const auto& [name, value] : reference.parameters) theirs.push_back(value);
    const auto optimizer = sgd(theirs);
    // What a program may do to the gradients between two steps, on both sides.
    const auto between = [&](int step, const std::vector<at::Tensor>& parameters) {
      torch::NoGradGuard no_grad;
      for (const auto& value : parameters) {
        at::Tensor& gradient = value.mutable_grad();
        if (step % 4 == 0)
          gradient.reset();
        else if (step % 4 == 1)
          gradient.zero_();
        else if (step % 4 == 2)
          gradient = gradient.clone();
        else
          gradient.mul_(0.5);
      }
    };
    for (int step = 0; step < 8; ++step) {
      const auto kept = tandem::test::gradients(theirs);
      const at::Tensor x = input_of(rank, step, {3, 6});
      trainer.backward(mean_loss(trainer.forward(x), x));
      std::vector<std::vector<at::Tensor>> by_rank;
      for (int other = 0; other < ranks; ++other) {
        for (std::size_t i = 0; i < theirs.size(); ++i) {
          theirs[i].mutable_grad() = kept[i].defined() ? kept[i].clone() : at::Tensor();
        }
        const at::Tensor y = input_of(other, step, {3, 6});
        mean_loss(reference.forward(y), y).backward();
        by_rank.push_back(tandem::test::gradients(theirs));
      }
      const auto expected = averaged(layouts_of(trainer), by_rank);
      CHECK(differing(tandem::test::gradients(ours), expected) == 0);
      for (std::size_t i = 0; i < theirs.size(); ++i) theirs[i].mutable_grad() = expected[i];
      trainer.update();
      optimizer->step();
      CHECK(differing(ours, theirs) == 0);
      between(step, ours);
      between(step, theirs);
    }
  });
}

TEST_CASE("C062: a gradient penalty trains") {
  against_one_process(
      [](int rank) {
        return Free{{{"w", parameter(rank, {4, 4})}}, [](const auto& p, const at::Tensor& x) {
                      const at::Tensor y = at::tanh(at::mm(x, p[0]));
                      const auto slope = torch::autograd::grad({y.pow(2).sum()}, {p[0]}, {}, true, true);
                      return y.mean() + slope[0].pow(2).mean();
                    }};
      },
      {3, 4}, 3);
}

TEST_CASE("C012: sparse gradients and complex parameters are refused by name") {
  tandem::test::on_ranks(tandem::test::ranks(), [&](int rank) {
    {
      auto world = tandem::join<tandem::ShmRing>(
          tandem::JoinOptions{.identity = tandem::Identity{.rendezvous = "tandem-test-" + std::to_string(getpid())}});
      Trainer trainer{
          world,
          Free{{{"embedding", parameter(rank, {6, 2})}},
               [](const auto& p, const at::Tensor& x) { return at::embedding(p[0], x.argmax(1), -1, false, true); }},
          mean_loss, sgd};
      CHECK_THROWS_WITH_AS(
          trainer.step(input_of(rank, 0, {3, 6}), at::Tensor()),
          "tandem: the gradient of parameter \"embedding\" is sparse; build the layer with dense gradients "
          "(Embedding: sparse(false))",
          tandem::Error);
    }
    auto world = tandem::join<tandem::ShmRing>();
    const auto make = [&] {
      Trainer trainer{world,
                      Free{{{"phase", at::ones({2}, at::kComplexFloat).set_requires_grad(true)}},
                           [](const auto& p, const at::Tensor&) { return at::abs(p[0]); }},
                      mean_loss, sgd};
    };
    CHECK_THROWS_WITH_AS(
        make(),
        "tandem: parameter \"phase\" is ComplexFloat on cpu; gradients are averaged for dense float32, "
        "float64, float16 and bfloat16 on the CPU only",
        tandem::Error);
  });
}

TEST_CASE("gradients written by hand are averaged by reduce_gradients") {
  const int ranks = tandem::test::ranks();
  tandem::test::on_ranks(ranks, [&](int rank) {
    auto world = tandem::join<tandem::ShmRing>();
    Trainer trainer{
        world,
        Free{{{"w", at::zeros({3}).set_requires_grad(true)}}, [](const auto& p, const at::Tensor&) { return p[0]; }},
        mean_loss,
        [](std::vector<at::Tensor> p) { return torch::optim::SGD(std::move(p), torch::optim::SGDOptions(1.0)); }};
    const at::Tensor& w = trainer.model().parameters[0].second;
    tandem::barrier(world);
    CHECK_THROWS_AS(trainer.update(), tandem::Error);  // nothing was averaged: a local update would part the ranks
    CHECK(world.poisoned());
    auto again = tandem::join<tandem::ShmRing>(tandem::JoinOptions{
        .identity = tandem::Identity{.rank = rank,
                                     .size = ranks,
                                     .local_rank = rank,
                                     .local_size = ranks,
                                     .rendezvous = std::string(std::getenv("TANDEM_RENDEZVOUS")) + "-again"}});
    Trainer second{again, trainer.model(), mean_loss, [](std::vector<at::Tensor> p) {
                     return torch::optim::SGD(std::move(p), torch::optim::SGDOptions(1.0));
                   }};
    for (int step = 0; step < 3; ++step) {
      w.mutable_grad() = at::full({3}, static_cast<double>(ranks * (rank + 1)));
      second.reduce_gradients();
      second.update();
    }
    CHECK(w[0].item<float>() == -3.0F * static_cast<float>(ranks * (ranks + 1) / 2));
  });
}

// BatchNorm's statistics: each rank's batch moves them, and rank 0's are everybody's before the next forward. PyTorch
// leaves them alone at forwards that follow one within no_sync.
TEST_CASE("buffers become rank 0's before a forward, on request") {
  const int ranks = tandem::test::ranks();
  tandem::test::on_ranks(ranks, [&](int rank) {
    torch::set_num_threads(1);
    auto world = tandem::join<tandem::ShmRing>();
    const auto make = [&](const at::Tensor& statistic) {
      return Free{{{"weight", parameter(0, {3})}},
                  [statistic](const std::vector<at::Tensor>& p, const at::Tensor& x) {
                    torch::NoGradGuard no_grad;
                    at::Tensor moved = statistic;
                    moved.mul_(0.9).add_(x.mean(0), 0.1);
                    torch::AutoGradMode with_grad(true);
                    return (x - statistic) * p[0];
                  },
                  {{"statistic", statistic}, {"count", at::zeros({}, at::kLong)}}};
    };
    const auto moved_by = [&](const at::Tensor& before, int who, int step) {
      return before.mul(0.9).add(input_of(who, step, {5, 3}).mean(0), 0.1);
    };
    const at::Tensor mine = input_of(rank, 77, {3});
    Trainer trainer{world, make(mine), mean_loss, sgd, tandem::TrainerOptions{.broadcast_buffers = true}};
    at::Tensor first = input_of(0, 77, {3});  // rank 0's before each forward
    for (int step = 0; step < 3; ++step) {
      const at::Tensor x = input_of(rank, step, {5, 3});
      trainer.step(x, x);
      CHECK(differing(mine, moved_by(first, rank, step)) == 0);
      first = moved_by(first, 0, step);
    }
    at::Tensor own = moved_by(first, rank, 10);
    {
      const auto locally = trainer.accumulate();
      trainer.backward(trainer.forward(input_of(rank, 10, {5, 3})).to(at::kDouble).mean());
    }
    CHECK(differing(mine, own) == 0);  // the forward before was one whose gradients were averaged
    trainer.backward(trainer.forward(input_of(rank, 11, {5, 3})).to(at::kDouble).mean());
    own = moved_by(own, rank, 11);
    CHECK(differing(mine, own) == 0);  // this one follows a forward that was not
    trainer.update();
  });
}

// It skipped the exchange of the order in which gradients arrive, which the others do after the second step.
TEST_CASE("static_graph: a rank that reaches no parameter takes part in every step") {
  tandem::test::on_ranks(tandem::test::ranks(), [](int rank) {
    auto world = tandem::join<tandem::ShmRing>();
    const auto scaled = [](const std::vector<at::Tensor>& values, const at::Tensor& x) { return values[0] * x; };
    Trainer trainer{world, Free{{{"scale", parameter(rank, {4})}}, scaled}, mean_loss, sgd, {.static_graph = true}};
    const bool reaches = rank == 0;
    at::Tensor expected = parameter(0, {4}).detach().clone();
    at::Tensor momentum = at::zeros({4});
    for (int step = 0; step < 4; ++step) {
      const at::Tensor x = at::full({4}, 1.0 + step);
      trainer.backward(reaches ? trainer.forward(x).sum() : x.clone().requires_grad_().sum());
      trainer.update();
      const at::Tensor gradient = x * (1.0F / static_cast<float>(world.size()));
      momentum = step == 0 ? gradient : momentum * 0.9 + gradient;
      expected = expected.add(momentum, -0.1);
      CHECK(differing(trainer.model().parameters[0].second.detach(), expected) == 0);
    }
    CHECK(trainer.ledger().balanced());
  });
}
