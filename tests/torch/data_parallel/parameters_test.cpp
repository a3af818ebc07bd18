// SPDX-License-Identifier: Apache-2.0
// Parameters that break sharded training elsewhere, under every strategy: none, tiny, frozen, tied, of several dtypes
// and layouts, in groups with options of their own.
#include <torch/torch.h>

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
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

using Input = std::function<at::Tensor(int rank, int step)>;

Input noise(std::vector<std::int64_t> sizes) {
  return [sizes = std::move(sizes)](int rank, int step) { return input_of(rank, step, sizes); };
}
/// Small whole numbers: gradients that are such numbers have the same average in any order of addition.
Input whole_numbers(std::int64_t count) {
  return [count](int rank, int step) { return input_of(rank, step, {count}).mul(4).round(); };
}

/// Trains under every strategy, and in one process beside it: no element of any weight may differ.
void as_one_process(Communicator<ShmRing>& world, const std::function<Free(int rank)>& make, const Recipe& recipe,
                    const Input& input, int steps, const TrainerOptions& options = {}) {
  torch::set_num_threads(1);
  std::vector<std::vector<at::Tensor>> expected;
  OneProcess reference(make(0), recipe);
  for (int step = 0; step < steps; ++step) {
    reference.backward(world.size(),
                       [&](const Free& model, int rank) { model.forward(input(rank, step)).sum().backward(); });
    reference.update();
    expected.push_back(test::copies(reference.weights()));
  }
  for_each_strategy([&]<class S>() {
    auto trainer = trainer_of<S>(world, make(world.rank()), recipe, options);
    for (int step = 0; step < steps; ++step) {
      trainer.backward(trainer.forward(input(world.rank(), step)).sum());
      trainer.update();
      const auto wrong = differing(weights(trainer.model()), expected[static_cast<std::size_t>(step)]);
      CHECK_MESSAGE(wrong == 0, std::string(S::name), ", step ", step, ": ", wrong,
                    " elements differ from one process");
    }
    CHECK(trainer.ledger().balanced());
  });
}

/// Each parameter times as many elements of x, added up.
at::Tensor weighted(const std::vector<at::Tensor>& parameters, const at::Tensor& x) {
  at::Tensor sum = at::zeros({});
  std::int64_t begin = 0;
  for (const auto& value : parameters) {
    sum = sum + (value * x.slice(0, begin, begin + value.numel()).view(value.sizes())).sum();
    begin += value.numel();
  }
  return sum;
}

/// The parameters of a group, which its names' beginnings or ends tell.
template <class Which>
std::vector<at::Tensor> group_of(const std::vector<OwnedParameter>& owned, Which which) {
  std::vector<at::Tensor> result;
  for (const auto& it : owned) {
    if (which(it.name)) result.push_back(it.value);
  }
  return result;
}

struct GroupOptions {
  std::function<bool(const std::string&)> holds;
  double rate;
  double decay;
};
/// Options by group for three optimizers; a rank that owns nothing of a group has an empty one.
template <class Adam>
Recipe adam_by(const std::vector<GroupOptions>& groups) {
  return [groups](const std::vector<OwnedParameter>& owned) {
    std::vector<AdamGroup> result;
    for (const auto& it : groups) {
      AdamOptions options;
      options.learning_rate = it.rate;
      options.weight_decay = it.decay;
      result.push_back({group_of(owned, it.holds), options});
    }
    return test::any(Adam(std::move(result)));
  };
}
Recipe sgd_by(const std::vector<GroupOptions>& groups) {
  return [groups](const std::vector<OwnedParameter>& owned) {
    std::vector<torch::optim::OptimizerParamGroup> result;
    for (const auto& it : groups) {
      result.emplace_back(group_of(owned, it.holds),
                          std::make_unique<torch::optim::SGDOptions>(
                              torch::optim::SGDOptions(it.rate).momentum(0.9).weight_decay(it.decay)));
    }
    return test::any(torch::optim::SGD(std::move(result), torch::optim::SGDOptions(1.0)));
  };
}
std::vector<Recipe> recipes_by(const std::vector<GroupOptions>& groups) {
  return {adam_by<Adam<>>(groups), adam_by<AdamW<>>(groups), sgd_by(groups)};
}

bool starts(const std::string& name, const char* with) { return name.rfind(with, 0) == 0; }
bool ends(const std::string& name, const std::string& with) {
  return name.size() >= with.size() && name.compare(name.size() - with.size(), with.size(), with) == 0;
}

}  // namespace

TEST_CASE("C059: no parameters, frozen ones only, or only such as have no elements") {
  on_ranks(2, [](int rank) {
    auto world = join<ShmRing>();
    const at::Tensor x = input_of(rank, 0, {2, 3});
    for_each_strategy([&]<class S>() {
      {
        auto none = trainer_of<S>(world, Free{{}, [](const auto&, const at::Tensor& y) { return at::relu(y); }},
                                  test::momentum_sgd());
        CHECK(none.step(x, x) == at::relu(x).to(at::kDouble).mean().template item<double>());
      }
      {
        auto frozen = trainer_of<S>(world,
                                    Free{{{"w", parameter(rank, {3, 3}).set_requires_grad(false)}},
                                         [](const auto& p, const at::Tensor& y) { return at::mm(y, p[0]); }},
                                    test::momentum_sgd());
        const at::Tensor expected = parameter(0, {3, 3}).detach();  // equalised all the same
        CHECK(frozen.step(x, x) == at::mm(x, expected).to(at::kDouble).mean().template item<double>());
        CHECK(differing(expected, frozen.model().parameters[0].second) == 0);
      }
      {
        // Linear(3, 0), by itself.
        auto empty =
            trainer_of<S>(world,
                          Free{{{"weight", parameter(rank, {0, 3})}, {"bias", parameter(rank, {0})}},
                               [](const auto& p, const at::Tensor& y) { return at::linear(y, p[0], p[1]).sum(); }},
                          test::momentum_sgd(), TrainerOptions{.clip_norm = 1.0});
        for (int step = 0; step < 3; ++step) CHECK(empty.step(x, x) == 0.0);
        CHECK(empty.gradient_norm() == 0.0);
        CHECK(empty.ledger().balanced());
      }
      barrier(world);
    });
  });
}

TEST_CASE(
    "C060: four dtypes and odd sizes in one bucket, whole or in pieces: each weight keeps its dtype and its bits") {
  const auto make = [](int source) {
    return Free{{{"f32", parameter(source, {3})},
                 {"bf16", parameter(source, {5}, at::kBFloat16)},
                 {"f64", parameter(source, {7}, at::kDouble)},
                 {"f16", parameter(source, {1}, at::kHalf)},
                 {"f32b", parameter(source, {5, 5})},
                 {"bf16b", parameter(source, {31}, at::kBFloat16)}},
                [](const auto& p, const at::Tensor& x) {
                  std::vector<at::Tensor> values;
                  for (const auto& value : p) values.push_back(value.to(at::kDouble));
                  return weighted(values, x).pow(2) + weighted(values, x.flip(0));
                }};
  };
  on_ranks(2, [&](int) {
    auto world = join<ShmRing>();
    as_one_process(world, make, momentum_sgd(), noise({72}), 4);
    as_one_process(world, make, momentum_sgd(), noise({72}), 4, {.piece_bytes = 1});
    as_one_process(world, make, momentum_sgd(), noise({72}), 4, {.buckets = BucketCaps::every(16), .piece_bytes = 1});
  });
}

TEST_CASE("C066: construction makes three ranks equal to rank 0, whatever the dtype and layout") {
  on_ranks(3, [](int rank) {
    auto world = join<ShmRing>();
    const auto make = [](int source) {
      return Free{{{"contiguous", parameter(source, {4, 3})},
                   {"transposed", parameter(source, {5, 2}).detach().t().set_requires_grad(true)},
                   {"scalar", parameter(source, {})},
                   {"half", parameter(source, {3}, at::kBFloat16)},
                   {"frozen", parameter(source, {7}).set_requires_grad(false)}},
                  [](const auto& p, const at::Tensor& x) { return x.mean() + p[0].sum(); },
                  {{"float", input_of(source, 1, {7})},
                   {"counter", at::full({}, (std::int64_t{1} << 53) + 1 + source, at::kLong)},
                   {"flags", input_of(source, 9, {6}) > 0}}};
    };
    const Free root = make(0);
    for_each_strategy([&]<class S>() {
      auto trainer = trainer_of<S>(world, make(rank), test::momentum_sgd());
      const auto compare = [&](const test::Parameters& ours, const test::Parameters& theirs) {
        for (std::size_t i = 0; i < theirs.size(); ++i) {
          CHECK_MESSAGE(differing(ours[i].second, theirs[i].second) == 0, std::string(S::name), " ", theirs[i].first);
          CHECK(ours[i].second.strides() == theirs[i].second.strides());
          CHECK(ours[i].second.requires_grad() == theirs[i].second.requires_grad());
          CHECK(ours[i].second.is_leaf());
        }
      };
      compare(trainer.model().parameters, root.parameters);
      compare(trainer.model().buffers, root.buffers);
    });
  });
}

TEST_CASE("C067: channels-last weights have the gradients of their logical elements") {
  on_ranks(2, [](int) {
    auto world = join<ShmRing>();
    as_one_process(
        world,
        [](int source) {
          const at::Tensor weight = parameter(source, {2, 3, 3, 3}).detach();
          return Free{{{"conv", weight.contiguous(at::MemoryFormat::ChannelsLast).set_requires_grad(true)},
                       {"bias", parameter(source, {2})}},
                      [](const auto& p, const at::Tensor& x) { return at::tanh(at::conv2d(x, p[0], p[1])).mean(); }};
        },
        test::momentum_sgd(), noise({2, 3, 5, 5}), 3);
  });
}

TEST_CASE("C073: models and groups of fewer elements than there are ranks") {
  using Shape = std::vector<std::int64_t>;
  const std::vector<std::vector<std::pair<std::string, Shape>>> models{
      {{"one", {1}}},
      {{"two", {2}}},
      {{"linear.weight", {5, 3}}, {"linear.bias", {5}}},
      {{"two", {2}}, {"linear.weight", {5, 3}}, {"one", {1}}, {"linear.bias", {5}}}};
  const std::vector<GroupOptions> groups{{[](const auto& name) { return starts(name, "one"); }, 0.1, 0.0},
                                         {[](const auto& name) { return starts(name, "two"); }, 0.01, 0.1},
                                         {[](const auto& name) { return starts(name, "linear"); }, 0.03, 0.2}};
  on_ranks(4, [&](int) {
    auto world = join<ShmRing>();
    for (const auto& shapes : models) {
      std::int64_t elements = 0;
      for (const auto& [name, shape] : shapes) elements += c10::multiply_integers(shape);
      for (const Recipe& recipe : recipes_by(groups)) {
        as_one_process(
            world,
            [&](int source) {
              Free model{{}, weighted};
              for (const auto& [name, shape] : shapes) model.parameters.emplace_back(name, parameter(source, shape));
              return model;
            },
            recipe, whole_numbers(elements), 3);
      }
    }
  });
}

TEST_CASE("C074: parameters of no dimension and of one element, at one rank and at two") {
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [](int) {
      auto world = join<ShmRing>();
      for (const auto& sizes : {std::vector<std::int64_t>{}, std::vector<std::int64_t>{1}}) {
        for_each_strategy([&]<class S>() {
          auto trainer = trainer_of<S>(world,
                                       Free{{{"p", at::ones(sizes).set_requires_grad(true)}},
                                            [](const auto& p, const at::Tensor&) { return p[0] * 3; }},
                                       test::plain_sgd(0.1));
          CHECK(trainer.step(at::Tensor(), at::Tensor()) == 3.0);
          const at::Tensor& p = trainer.model().parameters[0].second;
          CHECK(p.sizes() == at::IntArrayRef(sizes));
          CHECK(p.template item<float>() == doctest::Approx(0.7).epsilon(1e-7));
        });
      }
    });
  }
}

TEST_CASE("C075: frozen weights never change, decay included; a new Trainer trains what was unfrozen") {
  const auto names = {"embedding", "first", "second", "head"};
  const auto make = [&](int source) {
    Free model{{}, [](const auto& p, const at::Tensor& x) {
                 at::Tensor y = x;
                 for (const auto& value : p) y = at::tanh(at::mm(y, value));
                 return y.mean();
               }};
    int seed = 10 * source;
    for (const char* name : names) {
      model.parameters.emplace_back(name, parameter(seed, {5, 5}).set_requires_grad(seed % 2 == 0));
      ++seed;
    }
    return model;
  };
  const std::vector<GroupOptions> all{{[](const auto&) { return true; }, 0.05, 0.1}};
  on_ranks(2, [&](int rank) {
    torch::set_num_threads(1);
    auto world = join<ShmRing>();
    for (const Recipe& recipe : {adam_by<AdamW<>>(all), sgd_by(all)}) {
      for_each_strategy([&]<class S>() {
        const Free model = make(rank);
        Free alone = make(0);
        const auto train = [&](int begin, int end) {
          auto trainer = trainer_of<S>(world, model, recipe);
          OneProcess reference(alone, recipe);
          for (int step = begin; step < end; ++step) {
            trainer.backward(trainer.forward(input_of(rank, step, {3, 5})));
            trainer.update();
            reference.backward(2, [&](const Free& it, int other) {
              it.forward(input_of(other, step, {3, 5})).backward();
            });
            reference.update();
            CHECK(differing(weights(model), reference.weights()) == 0);
          }
        };
        const Free start = make(0);
        const auto moved = [&](std::size_t i) {
          return differing(model.parameters[i].second, start.parameters[i].second);
        };
        train(0, 3);
        for (std::size_t i = 0; i < 4; ++i) CHECK(moved(i) == (i % 2 == 0 ? 25 : 0));
        for (const Free& it : {model, alone}) it.parameters[1].second.set_requires_grad(true);
        train(3, 5);
        CHECK(moved(1) == 25);
        CHECK(moved(3) == 0);
      });
    }
  });
}

TEST_CASE("C075: weights frozen under a Trainer are named in an error") {
  for_each_strategy([]<class S>() {
    on_ranks(2, [](int rank) {
      auto world = join<ShmRing>(JoinOptions{.timeout = std::chrono::seconds(20)});
      const Free model{{{"one", parameter(rank, {3})}, {"two", parameter(rank, {4})}}, weighted};
      auto trainer = trainer_of<S>(world, model, test::momentum_sgd());
      trainer.step(input_of(rank, 0, {7}), at::Tensor());
      model.parameters[1].second.set_requires_grad(false);
      const auto error = test::error_of([&] { trainer.step(input_of(rank, 1, {7}), at::Tensor()); });
      REQUIRE(error);
      CHECK_MESSAGE(test::says(*error, "parameter 1 of 2, \"two\", got no gradient on rank "),
                    std::string(error->what()));
    });
  });
}

TEST_CASE("C075: weights unfrozen under a Trainer are trained, or named in an error") {
  for_each_strategy([]<class S>() {
    on_ranks(2, [](int rank) {
      auto world = join<ShmRing>(JoinOptions{.timeout = std::chrono::seconds(20)});
      const Free model{{{"one", parameter(rank, {3})}, {"two", parameter(rank, {4}).set_requires_grad(false)}},
                       weighted};
      auto trainer = trainer_of<S>(world, model, test::momentum_sgd());
      trainer.step(input_of(rank, 0, {7}), at::Tensor());
      model.parameters[1].second.set_requires_grad(true);
      const auto error = test::error_of([&] { trainer.step(input_of(rank, 1, {7}), at::Tensor()); });
      if (error) {
        CHECK_MESSAGE(test::says(*error, "\"two\""), std::string(error->what()));
      } else {
        CHECK(differing(model.parameters[1].second, parameter(0, {4})) == 4);
      }
    });
  });
}

TEST_CASE("C076: bfloat16 weights with float32 ones between them keep their dtypes and bits") {
  const auto make = [](int source) {
    return Free{{{"base.0", parameter(source, {7}, at::kBFloat16)},
                 {"adapter.0", parameter(source, {3})},
                 {"base.1", parameter(source, {5, 3}, at::kBFloat16)},
                 {"adapter.1", parameter(source, {11})}},
                [](const auto& p, const at::Tensor& x) {
                  std::vector<at::Tensor> values;
                  for (const auto& value : p) values.push_back(value.to(at::kFloat));
                  return weighted(values, x).pow(2) + weighted(values, x.flip(0)).pow(2);
                }};
  };
  const Recipe by_torch = [](const std::vector<OwnedParameter>& owned) {
    return test::any(torch::optim::Adam(test::values_of(owned), 0.01));
  };
  const Recipe by_tandem = [](const std::vector<OwnedParameter>& owned) {
    for (const auto& it : owned) {
      const bool is_base = starts(it.name, "base");
      CHECK((it.value.scalar_type() == (is_base ? at::kBFloat16 : at::kFloat)));
    }
    return test::any(Adam<>(test::values_of(owned)));
  };
  on_ranks(2, [&](int) {
    auto world = join<ShmRing>();
    as_one_process(world, make, by_torch, noise({36}), 3);
    as_one_process(world, make, by_tandem, noise({36}), 3);
  });
}

TEST_CASE("C079: a tied weight counts once in the norm: 28.284271, not 40") {
  on_ranks(2, [](int rank) {
    auto world = join<ShmRing>();
    // Rank 0's gradients are 1 more than 20 and rank 1's 1 less.
    const double share = rank == 0 ? 21 : 19;
    for_each_strategy([&]<class S>() {
      for (const bool twice : {false, true}) {
        const at::Tensor tied = at::zeros({2}).set_requires_grad(true);
        Free model{{{"embedding.weight", tied}}, [](const auto& p, const at::Tensor& x) { return (p[0] * x).sum(); }};
        if (twice) {
          model.parameters.emplace_back("head.weight", tied);
          model.compute = [](const auto& p, const at::Tensor& x) {
            return (p[0] * x).sum() * 0.25 + (p[1] * x).sum() * 0.75;
          };
        }
        auto trainer = trainer_of<S>(world, model, test::plain_sgd(1.0), TrainerOptions{.clip_norm = 1e6});
        trainer.backward(trainer.forward(at::full({2}, share)));
        trainer.update();
        CHECK(trainer.gradient_norm() == doctest::Approx(28.284271).epsilon(1e-7));
        CHECK(differing(tied, at::full({2}, -20.0F)) == 0);
      }
    });
  });
}

TEST_CASE("C084: groups interleaved by name, whose borders are not those of shards") {
  const std::vector<GroupOptions> groups{{[](const auto& name) { return ends(name, "bias"); }, 0.01, 0.0},
                                         {[](const auto& name) { return ends(name, "weight"); }, 0.1, 0.1}};
  const auto make = [](int source) {
    Free model{{}, [](const auto& p, const at::Tensor& x) { return weighted(p, x).tanh() + weighted(p, x.pow(2)); }};
    for (const auto& [name, count] : std::vector<std::pair<std::string, std::int64_t>>{
             {"a.weight", 5}, {"a.bias", 3}, {"b.weight", 7}, {"b.bias", 1}, {"c.weight", 11}}) {
      model.parameters.emplace_back(name, parameter(source, {count}));
    }
    return model;
  };
  const auto loss = [](const Free& model, int rank, int step) { return model.forward(input_of(rank, step, {27})); };
  on_ranks(3, [&](int rank) {
    torch::set_num_threads(1);
    auto world = join<ShmRing>();
    for (const Recipe& recipe : recipes_by(groups)) {
      std::vector<std::vector<at::Tensor>> expected;
      {  // Ddp's buckets say in which order three ranks' gradients are added.
        auto trainer = trainer_of<Ddp<>>(world, make(rank), recipe);
        OneProcess reference(make(0), recipe);
        for (int step = 0; step < 4; ++step) {
          trainer.backward(loss(trainer.model(), rank, step));
          reference.set(test::averaged(
              test::layouts_of(trainer),
              reference.gradients_of(3, [&](const Free& model, int other) { loss(model, other, step).backward(); })));
          trainer.update();
          reference.update();
          expected.push_back(test::copies(reference.weights()));
          CHECK(differing(weights(trainer.model()), expected.back()) == 0);
        }
      }
      for_each_strategy([&]<class S>() {
        auto trainer = trainer_of<S>(world, make(rank), recipe);
        for (int step = 0; step < 4; ++step) {
          trainer.backward(loss(trainer.model(), rank, step));
          trainer.update();
          CHECK(differing(weights(trainer.model()), expected[static_cast<std::size_t>(step)]) == 0);
        }
      });
    }
  });
}

namespace {

/// Two units that hold one module, and two that hold one tensor.
struct TiedImpl : torch::nn::Module {
  struct Unit : torch::nn::Module {
    std::shared_ptr<torch::nn::LinearImpl> inner;
    explicit Unit(const std::shared_ptr<torch::nn::LinearImpl>& shared) { inner = register_module("inner", shared); }
  };
  struct Head : torch::nn::Module {
    at::Tensor weight;
    explicit Head(const at::Tensor& shared) { weight = register_parameter("weight", shared); }
  };
  torch::nn::Embedding embedding{nullptr};
  std::shared_ptr<Unit> left, right;
  std::shared_ptr<Head> head;

  explicit TiedImpl(int seed) {
    torch::manual_seed(static_cast<std::uint64_t>(seed));
    embedding = register_module("embedding", torch::nn::Embedding(10, 6));
    const auto shared = std::make_shared<torch::nn::LinearImpl>(6, 6);
    left = register_module("left", std::make_shared<Unit>(shared));
    right = register_module("right", std::make_shared<Unit>(shared));
    head = register_module("head", std::make_shared<Head>(embedding->weight));
  }
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor y = embedding(tokens);
    for (const auto& unit : {left, right}) y = at::tanh(at::linear(y, unit->inner->weight, unit->inner->bias));
    return at::linear(y, head->weight);
  }
};

Free free_from(const std::shared_ptr<TiedImpl>& module) {
  Free model{{}, [module](const auto&, const at::Tensor& tokens) {
               return at::cross_entropy_loss(module->forward(tokens), tokens);
             }};
  for (const auto& item : module->named_parameters()) model.parameters.emplace_back(item.key(), item.value());
  return model;
}

}  // namespace

TEST_CASE("C091: a tied embedding, and one module under two parents: stored once, and still tied after training") {
  on_ranks(2, [](int rank) {
    torch::set_num_threads(1);
    auto world = join<ShmRing>();
    const Input tokens = [](int who, int step) {
      return input_of(who, step, {7}).mul(3).to(at::kLong).add(10).remainder(10);
    };
    as_one_process(
        world, [](int source) { return free_from(std::make_shared<TiedImpl>(source)); }, test::momentum_sgd(), tokens,
        4);
    for_each_strategy([&]<class S>() {
      const auto module = std::make_shared<TiedImpl>(rank);
      const Free model = free_from(module);
      CHECK(model.parameters.size() == 6);  // by name
      std::int64_t owned = 0;
      auto trainer = trainer_of<S>(world, model, [&](const std::vector<OwnedParameter>& mine) {
        for (const auto& it : mine) owned += it.value.numel();
        return test::momentum_sgd()(mine);
      });
      const std::int64_t elements = 10 * 6 + 6 * 6 + 6;
      if (std::string(S::name) == "Ddp") {
        CHECK(owned == elements);
      } else {
        all_reduce(world, std::span(&owned, 1), Sum{});
        CHECK(owned == elements);
      }
      trainer.backward(trainer.forward(tokens(rank, 0)));
      trainer.update();
      CHECK(module->head->weight.is_same(module->embedding->weight));
      CHECK(module->head->weight.data_ptr() == module->embedding->weight.data_ptr());
      CHECK(module->left->inner->weight.data_ptr() == module->right->inner->weight.data_ptr());
    });
  });
}
