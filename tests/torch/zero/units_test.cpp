// SPDX-License-Identifier: Apache-2.0
// Zero<3> with parameters apart: every rank has its shard, and a model that is cut is whole one unit after another.
// Held against PyTorch's own C++ DDP, and tried in the cases that break sharded parameters elsewhere.
#include "support/cut_models.hpp"
#include "support/errors.hpp"
#include "support/free_model.hpp"
#include "support/reducer_comparison.hpp"
#include "support/sleepy_model.hpp"
#include "tandem/transport/tcp.hpp"

namespace {

using namespace tandem;
using test::Affine;
using test::compare_with_reducer;
using test::differing;
using test::input_of;
using test::mean_loss;
using test::Scenario;
using test::sgd;
using test::Squash;

/// A torch::nn::Sequential of a WordNet's size.
struct CutNet : torch::nn::SequentialImpl {
  explicit CutNet(std::uint64_t seed = 7) {
    torch::manual_seed(seed);
    push_back(torch::nn::Embedding(50, 64));
    push_back(std::make_shared<Affine>(64, 700));
    push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({700})));
    push_back(std::make_shared<Squash>());
    push_back(std::make_shared<Affine>(700, 700));
    push_back(std::make_shared<Squash>());
    push_back(std::make_shared<Affine>(700, 350));
    push_back(std::make_shared<Affine>(350, 50));
  }
  at::Tensor forward(const at::Tensor& tokens) { return torch::nn::SequentialImpl::forward(tokens); }
};

/// Two affine maps with a squash between, cut in its type.
using Small = Stages<Affine, Squash, Affine>;
Small small(int rank) {
  torch::manual_seed(3 + static_cast<std::uint64_t>(rank));
  return Small(std::make_shared<Affine>(6, 5), std::make_shared<Squash>(), std::make_shared<Affine>(5, 4));
}
TrainerOptions apart(TrainerOptions options = {}) {
  options.placement = Placement::apart;
  return options;
}
/// A branch of which a forward takes one side.
struct Fork : torch::nn::Module {
  static inline int side = 0;
  std::shared_ptr<Affine> sides[2] = {register_module("left", std::make_shared<Affine>(5, 5)),
                                      register_module("right", std::make_shared<Affine>(5, 5))};
  at::Tensor forward(const at::Tensor& x) { return sides[side]->forward(x); }
};
using Forked = Stages<Affine, Fork, Affine, Fork, Affine>;
Forked forked(int rank) {
  torch::manual_seed(5 + static_cast<std::uint64_t>(rank));
  return Forked(std::make_shared<Affine>(6, 5), std::make_shared<Fork>(), std::make_shared<Affine>(5, 5),
                std::make_shared<Fork>(), std::make_shared<Affine>(5, 4));
}
template <class Model>
std::vector<at::Tensor> values(Model& model) {
  std::vector<at::Tensor> result;
  for (const auto& [name, value] : model.named_parameters()) result.push_back(value.detach().clone());
  return result;
}
template <class Model>
std::vector<at::Tensor> tensors(Model& model) {
  std::vector<at::Tensor> result;
  for (const auto& [name, value] : model.named_parameters()) result.push_back(value);
  return result;
}
/// Reading it is an error where it has none.
bool has_memory(const at::Tensor& tensor) {
  try {
    return tensor.const_data_ptr() != nullptr;
  } catch (const c10::Error&) {
    return false;
  }
}

template <class Transport>
void as_reducer() {
  const auto with = [](const Scenario& scenario) { compare_with_reducer<Zero<3>, Transport, CutNet>(scenario); };
  with({.steps = 4, .options = apart({.clip_norm = 0.7})});
  with({.steps = 3, .micro_batches = 2, .options = apart({.clip_norm = 0.7})});
  with({.steps = 3, .options = apart({.reshard_after_forward = false, .piece_bytes = 1})});
  with({.steps = 3, .options = apart({.static_graph = true}), .peer = {.static_graph = true}});
}

/// Trains as Ddp does, in `use`, which gets a trainer and a step; compares weights at the end.
template <class Transport = ShmRing, class F, class Model = Small>
void as_ddp(F use, TrainerOptions options = {}, int steps = 3, Model (*make)(int) = small) {
  test::on_ranks(test::ranks(), [&](int rank) {
    torch::set_num_threads(1);
    auto world = join<Transport>();
    std::vector<at::Tensor> expected;
    {
      Trainer<Model, Ddp<>, Transport> trainer{world, make(rank), mean_loss, sgd, options};
      for (int step = 0; step < steps; ++step) use(trainer, step, rank);
      expected = values(trainer.model());
    }
    Trainer<Model, Zero<3>, Transport> trainer{world, make(rank), mean_loss, sgd, apart(options)};
    for (int step = 0; step < steps; ++step) {
      use(trainer, step, rank);
      for (const at::Tensor& parameter : tensors(trainer.model())) CHECK_FALSE(has_memory(parameter));
    }
    const auto whole = trainer.unshard();
    CHECK(differing(values(trainer.model()), expected) == 0);
    CHECK(trainer.ledger().balanced());
  });
}

}  // namespace

TEST_CASE("units over ShmRing: no element differs") { as_reducer<ShmRing>(); }
TEST_CASE("units over Tcp: no element differs") { as_reducer<Tcp>(); }

TEST_CASE("two units are whole at a time, and none between steps") {
  test::on_ranks(test::ranks(), [](int rank) {
    auto world = join<ShmRing>();
    CutNet net(7 + static_cast<std::uint64_t>(rank));
    const auto parameters = net.parameters();
    std::size_t most = 0;
    const auto look = [&] {
      std::size_t whole = 0;
      for (const auto& parameter : parameters) whole += has_memory(parameter) ? 1 : 0;
      most = std::max(most, whole);
    };
    Trainer<CutNet, Zero<3>, ShmRing> trainer{world, net, test::word_loss, test::adam_w, apart()};
    for (const auto& parameter : parameters) parameter.register_hook([&](const at::Tensor&) { look(); });
    for (int step = 0; step < 2; ++step) {
      const test::Batch batch(rank, step);
      trainer.step(batch.tokens, batch.target);
      for (const auto& parameter : parameters) CHECK_FALSE(has_memory(parameter));
    }
    CHECK(parameters.size() == 11);
    CHECK(most >= 2);
    CHECK(most <= 5);  // of two units that have two parameters each, and one that is just through
  });
}

TEST_CASE("C092: over Tcp, pieces reduced beside a backward that sleeps at random give the bits of one at the end") {
  test::on_ranks(test::ranks(), [](int rank) {
    torch::set_num_threads(1);
    auto world = join<Tcp>();
    const TrainerOptions options{.clip_norm = 0.05, .buckets = BucketCaps::every(700), .piece_bytes = 1};
    Trainer<test::Free, Ddp<>, Tcp> apart{world, test::sleepy(rank, false), mean_loss, sgd, options};
    Trainer<test::Free, Zero<2>, Tcp> trainer{world, test::sleepy(rank, true), mean_loss, sgd, options};
    for (int step = 0; step < 20; ++step) {
      const at::Tensor x = input_of(rank, step, {3, 16});
      apart.step(x, x);  // Ddp waits for its reductions when backward is over
      trainer.step(x, x);
      CAPTURE(step);
      CHECK(differing(values(trainer.model()), values(apart.model())) == 0);
    }
  });
}

TEST_CASE("over Tcp there are two pieces of gradients at a time") {
  test::on_ranks(test::ranks(), [](int rank) {
    auto world = join<Tcp>();
    CutNet net(7);
    std::size_t largest = 0;
    for (const auto& parameter : net.parameters()) largest = std::max(largest, parameter.nbytes());
    Trainer<CutNet, Zero<2>, Tcp> trainer{world, net, test::word_loss, test::adam_w, {.piece_bytes = 1}};
    for (int step = 0; step < 3; ++step) {
      world.arena()->watch_use();
      const test::Batch batch(rank, step);
      trainer.step(batch.tokens, batch.target);
      const Arena::Use use = world.arena()->use();
      CHECK(use.most - use.now >= largest);
      CHECK(use.most - use.now <= 2 * (largest + line_pair_bytes));
    }
  });
}

TEST_CASE("between steps the room for units and gradients under way has gone, unless it is to stay") {
  test::on_ranks(test::ranks(), [](int rank) {
    auto world = join<ShmRing>();
    for (const bool trims : {false, true}) {
      Trainer<CutNet, Zero<3>, ShmRing> trainer{world, CutNet(7), test::word_loss, test::adam_w,
                                                apart({.trim_after_update = trims})};
      for (int step = 0; step < 3; ++step) {
        world.arena()->watch_use();
        const test::Batch batch(rank, step);
        trainer.step(batch.tokens, batch.target);
      }
      const Arena::Use use = world.arena()->use();
      CHECK(use.most > use.now + 4 * page_bytes);
      if (trims)
        CHECK(use.real <= use.now + 2 * page_bytes);
      else
        CHECK(use.real >= use.most);
    }
  });
}

TEST_CASE("C089: a parameter that is read while it is sharded is an error that names it") {
  test::on_ranks(test::ranks(), [](int rank) {
    auto world = join<ShmRing>();
    Trainer<Small, Zero<3>, ShmRing> trainer{world, small(rank), mean_loss, sgd, apart()};
    const at::Tensor weight = tensors(trainer.model())[0];
    CHECK(weight.sizes() == at::IntArrayRef({5, 6}));
    CHECK_THROWS_WITH(weight.detach().sum(),
                      doctest::Contains("parameter \"0.weight\" is read while other ranks have"));
    CHECK_THROWS_WITH(at::linear(at::ones({2, 6}), weight.detach()),
                      doctest::Contains("parameter \"0.weight\" is read"));
    CHECK_THROWS_WITH(weight.detach() * at::ones({6}), doctest::Contains("hold Trainer::unshard() on all ranks"));
    {
      const auto whole = trainer.unshard();
      Small of_rank_0 = small(0);
      CHECK(differing(values(trainer.model()), values(of_rank_0)) == 0);
      const auto moved = trainer.ledger().measured;
      if (rank == 0) trainer.evaluate(input_of(rank, 0, {3, 6}), at::Tensor());  // alone: nothing is to be gathered
      CHECK(trainer.ledger().measured == moved);
    }
    CHECK_THROWS_WITH(weight.detach().sum(), doctest::Contains("parameter \"0.weight\""));
    trainer.step(input_of(rank, 0, {3, 6}), at::Tensor());  // all the same
  });
}

TEST_CASE("an update while parameters are held whole is refused") {
  test::on_ranks(test::ranks(), [](int rank) {
    auto world = join<ShmRing>();
    Trainer<Small, Zero<3>, ShmRing> trainer{world, small(rank), mean_loss, sgd, apart()};
    const auto whole = trainer.unshard();
    trainer.backward(trainer.forward(input_of(rank, 0, {3, 6})).mean());
    CHECK_THROWS_WITH_AS(trainer.update(), doctest::Contains("update() while unshard() holds the parameters"), Error);
  });
}

namespace {
/// Ranks reach different sides; with `change`, other ones in every step.
template <class Transport>
void forks_as_ddp(TrainerOptions options, bool change) {
  options.piece_bytes = 1;
  as_ddp<Transport>(
      [=](auto& trainer, int step, int rank) {
        Fork::side = (rank + (change ? step : 0)) % 2;
        trainer.step(input_of(rank, step, {3, 6}), at::Tensor());
      },
      options, 4, forked);
}
}  // namespace

// Gathers of units and reductions of gradients are operations of one communicator: all ranks begin them in one order.
TEST_CASE("ranks that reach different parameters of a unit") {
  forks_as_ddp<ShmRing>({.unused = unused_parameters::find}, true);
  forks_as_ddp<ShmRing>({.static_graph = true}, false);
  forks_as_ddp<Tcp>({.unused = unused_parameters::find}, true);
}

TEST_CASE("C088: forwards without a backward, evaluation in between, two forwards before one backward") {
  as_ddp([](auto& trainer, int step, int rank) {
    const at::Tensor x = input_of(rank, step, {3, 6}), y = input_of(rank, step + 50, {3, 6});
    {
      const torch::NoGradGuard no_grad;
      trainer.forward(x);
    }
    const at::Tensor first = trainer.forward(x).mean();
    trainer.evaluate(y, y);
    const at::Tensor second = trainer.forward(y).square().mean();
    trainer.evaluate(x, x);
    trainer.backward(first + second);
    trainer.update();
  });
}

TEST_CASE("C088: a graph used twice") {
  as_ddp([](auto& trainer, int step, int rank) {
    const at::Tensor loss = trainer.forward(input_of(rank, step, {3, 6})).square().mean();
    if (step == 1) {  // of this rank alone: added to what the Trainer's backward averages
      loss.backward({}, true);
    }
    trainer.backward(loss);
    trainer.update();
  });
}

TEST_CASE("C088: a forward that is given up leaves nothing whole behind") {
  test::on_ranks(test::ranks(), [](int rank) {
    auto world = join<ShmRing>();
    Trainer<Small, Zero<3>, ShmRing> trainer{world, small(rank), mean_loss, sgd, apart()};
    for (int turn = 0; turn < 3; ++turn) trainer.forward(input_of(rank, turn, {3, 6}));  // the graph is dropped
    const at::Tensor x = input_of(rank, 0, {3, 6});
    trainer.step(x, x);
    for (const at::Tensor& parameter : tensors(trainer.model())) CHECK_FALSE(has_memory(parameter));
  });
}

TEST_CASE("C088: a graph of sharded units from before an update is refused by autograd") {
  test::on_ranks(test::ranks(), [](int rank) {
    auto world = join<ShmRing>(JoinOptions{.timeout = std::chrono::seconds(20)});
    Trainer<Small, Zero<3>, ShmRing> trainer{world, small(rank), mean_loss, sgd, apart()};
    const at::Tensor x = input_of(rank, 0, {3, 6});
    const at::Tensor before = trainer.forward(x).square().mean();
    trainer.step(x, x);
    CHECK_THROWS_WITH(trainer.backward(before), doctest::Contains("modified by an inplace operation"));
  });
}

TEST_CASE("C048: an exception in one rank's evaluation, where it is collective, reaches all") {
  if (test::ranks() == 1) return;
  test::on_ranks(test::ranks(), [](int rank) {
    auto world = join<ShmRing>(JoinOptions{.timeout = std::chrono::seconds(30)});
    const auto loss = [rank](const at::Tensor& output, const at::Tensor&) {
      if (rank == 1 && !output.requires_grad()) throw std::runtime_error("the validation data is bad");
      return output.mean();
    };
    Trainer<Small, Zero<3>, ShmRing> trainer{world, small(rank), loss, sgd, apart()};
    const at::Tensor x = input_of(rank, 0, {3, 6});
    trainer.step(x, x);
    if (rank == 1) {
      CHECK_THROWS_WITH_AS(trainer.evaluate(x, x), "the validation data is bad", std::runtime_error);
      CHECK(world.poisoned());
      std::this_thread::sleep_for(std::chrono::seconds(1));  // it does not leave
      return;
    }
    const auto begin = std::chrono::steady_clock::now();
    const auto error = test::error_of([&] {
      for (int turn = 0; turn < 2; ++turn) trainer.evaluate(x, x);  // this one's own first may be over before
    });
    REQUIRE(error);
    CHECK_MESSAGE(test::says(*error, "the validation data is bad"), std::string(error->what()));
    CHECK(error->peer() == 1);
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  });
}

// D: the bytes of all parameters; all ranks together, N of them.
TEST_CASE(
    "what a step moves: 2 D (N - 1) at levels 1 and 2 as under Ddp, D (N - 1) more where units are gathered twice") {
  test::on_ranks(test::ranks(), [](int rank) {
    auto world = join<ShmRing>();
    const auto moved = [&]<class Strategy>(Strategy, const TrainerOptions& options) {
      Trainer<Small, Strategy, ShmRing> trainer{world, small(rank), mean_loss, sgd, options};
      std::int64_t before = 0;
      for (int step = 0; step < 4; ++step) {
        before = static_cast<std::int64_t>(trainer.ledger().measured);
        const at::Tensor x = input_of(rank, step, {3, 6});
        trainer.step(x, x);
      }
      std::int64_t bytes = static_cast<std::int64_t>(trainer.ledger().measured) - before;
      all_reduce(world, std::span(&bytes, 1), Sum{});
      return bytes;
    };
    const std::int64_t others = world.size() - 1;
    const std::int64_t last = (5 * 4 + 4) * 4, all = (6 * 5 + 5) * 4 + last;
    CHECK(moved(Ddp<>{}, {}) == 2 * all * others);
    CHECK(moved(Zero<1>{}, {}) == 2 * all * others);
    CHECK(moved(Zero<2>{}, {}) == 2 * all * others);
    CHECK(moved(Zero<2, compress::bf16>{}, {}) == (all / 2 + all) * others);
    CHECK(moved(Zero<3>{}, {}) == all * others);  // one copy of the parameters
    CHECK(moved(Zero<3>{}, apart()) == (3 * all - last) * others);
    CHECK(moved(Zero<3>{}, apart({.reshard_after_forward = false})) == 2 * all * others);
  });
}

TEST_CASE("C062: a gradient penalty through sharded units") {
  as_ddp([](auto& trainer, int step, int rank) {
    const at::Tensor x = input_of(rank, step, {3, 6}).set_requires_grad(true);
    const at::Tensor loss = trainer.forward(x).square().mean();
    const auto gradient = torch::autograd::grad({loss}, {x}, {}, true, true)[0];
    trainer.backward(loss + gradient.square().sum());
    trainer.update();
  });
}

TEST_CASE("sums in shards, with units") {
  test::on_ranks(test::ranks(), [](int rank) {
    torch::set_num_threads(1);
    auto world = join<ShmRing>();
    const auto trained = [&](Placement placement) {
      Trainer<Small, Zero<3>, ShmRing> trainer{
          world, small(rank), mean_loss, sgd, {.accumulate = accumulation::shard_sums, .placement = placement}};
      for (int step = 0; step < 3; ++step) {
        {
          const auto more = trainer.accumulate();
          trainer.backward(trainer.forward(input_of(rank, 2 * step, {3, 6})).mean() / 2);
        }
        trainer.backward(trainer.forward(input_of(rank, 2 * step + 1, {3, 6})).mean() / 2);
        trainer.update();
      }
      const auto whole = trainer.unshard();
      return values(trainer.model());
    };
    CHECK(differing(trained(Placement::apart), trained(Placement::shared)) == 0);
  });
}

TEST_CASE("units without gradients, and with frozen ones") {
  for (const bool all : {false, true}) {
    test::on_ranks(test::ranks(), [&](int rank) {
      torch::set_num_threads(1);
      auto world = join<ShmRing>();
      const auto make = [&] {
        Small model = small(rank);
        const auto list = tensors(model);
        at::Tensor(list[2]).set_requires_grad(false);
        if (all) at::Tensor(list[3]).set_requires_grad(false);
        return model;
      };
      const at::Tensor x = input_of(rank, 0, {3, 6});
      Trainer<Small, Ddp<>, ShmRing> plain{world, make(), mean_loss, sgd};
      Trainer<Small, Zero<3>, ShmRing> sharded{world, make(), mean_loss, sgd, apart()};
      for (int step = 0; step < 3; ++step) {
        plain.step(x, x);
        sharded.step(x, x);
      }
      const auto whole = sharded.unshard();
      CHECK(differing(values(sharded.model()), values(plain.model())) == 0);
    });
  }
}

TEST_CASE("C091: a parameter of two units is refused by its name and theirs") {
  test::on_ranks(test::ranks(), [](int) {
    auto world = join<ShmRing>();
    const auto tied = std::make_shared<Affine>(6, 6);
    const auto make = [&] { return Small(tied, std::make_shared<Squash>(), tied); };
    CHECK_THROWS_WITH_AS((Trainer<Small, Zero<3>, ShmRing>{world, make, mean_loss, sgd, apart()}),
                         doctest::Contains("parameter \"0.weight\" is in the units 0 and 2 of the model"), Error);
  });
}

TEST_CASE("parameters apart at level 3 need a model that is cut") {
  test::on_ranks(test::ranks(), [](int rank) {
    auto world = join<ShmRing>();
    const test::Free whole{{{"weight", test::parameter(rank, {7})}},
                           [](const auto& p, const at::Tensor& x) { return x * p[0]; }};
    CHECK_THROWS_WITH_AS((Trainer<test::Free, Zero<3>, ShmRing>{world, whole, mean_loss, sgd, apart()}),
                         doctest::Contains("this model is not cut; give it as torch::nn::Sequential"), Error);
  });
}

namespace {
/// Leaves its second unit out when it is told to.
struct Skipping {
  std::vector<std::shared_ptr<Affine>> parts;
  bool skips = false;

  at::Tensor forward(at::Tensor x) {
    visit_units([&](auto& unit) { x = unit.forward(x); });
    return x;
  }
  template <class F>
  void visit_units(F f) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (!(skips && i == 1)) f(*parts[i]);
    }
  }
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const {
    std::vector<std::pair<std::string, at::Tensor>> all;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      all.emplace_back(std::to_string(i) + ".weight", parts[i]->weight);
      all.emplace_back(std::to_string(i) + ".bias", parts[i]->bias);
    }
    return all;
  }
};
}  // namespace

TEST_CASE("C090: a rank that leaves a unit out is an error on all ranks") {
  if (test::ranks() == 1) return;
  test::on_ranks(test::ranks(), [](int rank) {
    JoinOptions options;
    options.timeout = std::chrono::seconds(5);
    auto world = join<ShmRing>(options);
    Skipping model;
    for (int i = 0; i < 4; ++i) model.parts.push_back(std::make_shared<Affine>(6 + i, 7 + i));
    model.parts[1] = std::make_shared<Affine>(7, 7);
    model.parts[2] = std::make_shared<Affine>(7, 9);
    Trainer<Skipping, Zero<3>, ShmRing> trainer{world, model, mean_loss, sgd, apart()};
    const at::Tensor x = input_of(rank, 0, {3, 6});
    trainer.step(x, x);
    trainer.model().skips = rank == 1;
    CHECK_THROWS_WITH(trainer.step(x, x), doctest::Contains("parameter \"2."));
  });
}
