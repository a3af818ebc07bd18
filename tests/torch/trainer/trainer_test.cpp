// SPDX-License-Identifier: Apache-2.0
// The Trainer's surface: how models, recipes and losses may be given, what the start checks say, what evaluate and
// accumulate do, and what an exception on one rank does to the others.
#include <torch/torch.h>

#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/ranks.hpp"
#include "support/torch_training.hpp"
#include "tandem/tandem.hpp"

namespace {

using tandem::test::differing;

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::Dropout dropout{nullptr};
  explicit NetImpl(std::int64_t width = 8) {
    first = register_module("first", torch::nn::Linear(4, width));
    second = register_module("second", torch::nn::Linear(torch::nn::LinearOptions(width, 1).bias(false)));
    dropout = register_module("dropout", torch::nn::Dropout(0.5));
  }
  at::Tensor forward(const at::Tensor& x) { return second(dropout(torch::tanh(first(x)))); }
};
TORCH_MODULE(Net);

using Trainer = tandem::Trainer<NetImpl, tandem::Ddp<>, tandem::ShmRing>;

at::Tensor squared(const at::Tensor& output, const at::Tensor& target) { return (output - target).pow(2).mean(); }

auto sgd = [](std::vector<at::Tensor> parameters) {
  return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(0.1));
};

at::Tensor batch(int seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(seed));
  return at::randn({6, 4}, generator);
}
at::Tensor target() { return at::zeros({6, 1}); }

/// Everything that matters after two steps, for comparing ways to say the same.
template <class T>
std::vector<at::Tensor> weights_after_two_steps(T&& trainer) {
  trainer.model().eval();  // no dropout: ranks and runs must agree
  for (int step = 0; step < 2; ++step) trainer.step(batch(step), target());
  std::vector<at::Tensor> result;
  for (const auto& value : trainer.model().parameters()) result.push_back(value.detach().clone());
  return result;
}

}  // namespace

TEST_CASE("a model may be given by value, by pointer, in a holder, or as a function of any of these") {
  tandem::test::on_ranks(tandem::test::ranks(), [](int) {
    auto world = tandem::join<tandem::ShmRing>();
    const auto seeded = [](auto make) {
      torch::manual_seed(3);
      return make();
    };
    const auto expected = weights_after_two_steps(Trainer{world, seeded([] { return NetImpl(); }), squared, sgd});
    const auto check = [&](const char* how, const std::vector<at::Tensor>& weights) {
      CHECK_MESSAGE(differing(expected, weights) == 0, how);
    };
    NetImpl named = seeded([] { return NetImpl(); });
    check("an lvalue", weights_after_two_steps(Trainer{world, named, squared, sgd}));
    check("a shared_ptr",
          weights_after_two_steps(Trainer{world, seeded([] { return std::make_shared<NetImpl>(); }), squared, sgd}));
    check("a holder", weights_after_two_steps(Trainer{world, seeded([] { return Net(); }), squared, sgd}));
    check("a function",
          weights_after_two_steps(Trainer{world, [&] { return seeded([] { return NetImpl(); }); }, squared, sgd}));
    check("a function of a pointer",
          weights_after_two_steps(
              Trainer{world, [&] { return seeded([] { return std::make_shared<NetImpl>(); }); }, squared, sgd}));
    check("the holder's type", weights_after_two_steps(tandem::Trainer<Net, tandem::Ddp<>, tandem::ShmRing>{
                                   world, seeded([] { return Net(); }), squared, sgd}));
    check("a pointer's type",
          weights_after_two_steps(tandem::Trainer<std::shared_ptr<NetImpl>, tandem::Ddp<>, tandem::ShmRing>{
              world, seeded([] { return std::make_shared<NetImpl>(); }), squared, sgd}));
    CHECK_THROWS_WITH_AS((Trainer{world, std::shared_ptr<NetImpl>(), squared, sgd}),
                         "tandem: the model is a null pointer; build it first", tandem::Error);
  });
}

TEST_CASE("a recipe takes tensors or named parameters, and returns an optimizer by value or pointer") {
  tandem::test::on_ranks(tandem::test::ranks(), [](int) {
    auto world = tandem::join<tandem::ShmRing>();
    const auto make = [&](auto recipe) {
      torch::manual_seed(3);
      return weights_after_two_steps(Trainer{world, NetImpl(), squared, recipe});
    };
    const auto expected = make(sgd);
    CHECK(differing(expected, make([](const auto& parameters) {
                      return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1));
                    })) == 0);
    CHECK(differing(expected, make([](std::vector<at::Tensor> parameters) -> std::unique_ptr<torch::optim::Optimizer> {
                      return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1));
                    })) == 0);
    std::vector<std::string> names;
    CHECK(differing(expected, make([&](std::vector<tandem::OwnedParameter> owned) {
                      std::vector<at::Tensor> values;
                      for (const auto& each : owned) {
                        names.push_back(each.name);
                        values.push_back(each.value);
                        CHECK(each.full_shape == each.value.sizes().vec());
                      }
                      return torch::optim::SGD(values, torch::optim::SGDOptions(0.1));
                    })) == 0);
    CHECK(names == std::vector<std::string>{"first.weight", "first.bias", "second.weight"});

    Trainer trainer{world, NetImpl(), squared, sgd};
    trainer.optimizer<torch::optim::SGD>().param_groups()[0].options().set_lr(0.0);
    const at::Tensor before = trainer.model().first->weight.detach().clone();
    trainer.step(batch(0), target());
    CHECK(differing(before, trainer.model().first->weight) == 0);
    CHECK_THROWS_AS(trainer.optimizer<torch::optim::Adam>(), tandem::Error);
  });
}

TEST_CASE("step is forward, backward and update; the loss it returns is this rank's") {
  tandem::test::on_ranks(tandem::test::ranks(), [](int rank) {
    auto world = tandem::join<tandem::ShmRing>();
    torch::manual_seed(3);
    Trainer whole{world, NetImpl(), squared, sgd};
    torch::manual_seed(3);
    Trainer parts{world, NetImpl(), squared, sgd};
    whole.model().eval();
    parts.model().eval();
    for (int step = 0; step < 3; ++step) {
      const at::Tensor x = batch(10 * rank + step);
      const at::Tensor loss = squared(parts.forward(x), target());
      parts.backward(loss);
      CHECK(parts.model().first->weight.grad().defined());
      parts.update();
      CHECK_FALSE(parts.model().first->weight.grad().defined());
      CHECK(whole.step(x, target()) == loss.item<double>());
    }
    CHECK(differing(whole.model().parameters(), parts.model().parameters()) == 0);
    CHECK(whole.ledger().balanced());
    CHECK(whole.data() == tandem::Coordinate(world.rank(), world.size()));
    CHECK(std::string(Trainer::reference()).find("DistributedDataParallel") != std::string::npos);
  });
}

TEST_CASE("ranks draw random numbers of their own, and the library draws none") {
  tandem::test::on_ranks(tandem::test::ranks(), [](int rank) {
    auto world = tandem::join<tandem::ShmRing>();
    torch::manual_seed(7);
    NetImpl net;
    const at::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
    Trainer trainer{world, net, squared, sgd};
    CHECK(differing(before, at::detail::getDefaultCPUGenerator().get_state()) == 0);
    torch::manual_seed(static_cast<std::uint64_t>(70 + rank));
    trainer.step(batch(0), target());  // dropout on
    CHECK(trainer.ledger().balanced());
  });
}

TEST_CASE("evaluate uses the evaluation mode, keeps no graph, sends nothing and changes nothing") {
  tandem::test::on_ranks(tandem::test::ranks(), [](int rank) {
    auto world = tandem::join<tandem::ShmRing>();
    Trainer trainer{world, NetImpl(), squared, sgd};
    const auto moved = trainer.ledger().measured;
    if (rank == 0) {  // alone: no rank waits for another
      const double first = trainer.evaluate(batch(1), target());
      CHECK(first == trainer.evaluate(batch(1), target()));  // with dropout two runs would differ
      CHECK(trainer.model().is_training());
      CHECK(torch::GradMode::is_enabled());
      CHECK_FALSE(trainer.model().first->weight.grad().defined());
    }
    CHECK(trainer.ledger().measured == moved);
    trainer.step(batch(rank), target());
  });
}

TEST_CASE("accumulate adds up locally and sends nothing") {
  tandem::test::on_ranks(tandem::test::ranks(), [](int rank) {
    auto world = tandem::join<tandem::ShmRing>();
    torch::manual_seed(3);
    Trainer trainer{world, NetImpl(), squared, sgd};
    trainer.model().eval();
    trainer.step(batch(rank), target());  // the order of the buckets is exchanged once, here
    const auto moved = trainer.ledger().measured;
    {
      const auto locally = trainer.accumulate();
      trainer.backward(squared(trainer.forward(batch(rank)), target()));
      const at::Tensor once = trainer.model().first->weight.grad().clone();
      trainer.backward(squared(trainer.forward(batch(rank)), target()));
      CHECK(differing(once + once, trainer.model().first->weight.grad()) == 0);
      CHECK(trainer.ledger().measured == moved);
    }
    trainer.backward(squared(trainer.forward(batch(rank)), target()));
    trainer.update();
    // Every rank must hold the same weights.
    const at::Tensor mine = trainer.model().first->weight.detach().clone();
    const at::Tensor root = mine.clone();
    tandem::broadcast(world, root, 0);
    CHECK(differing(mine, root) == 0);
    CHECK(trainer.ledger().balanced());
  });
}

TEST_CASE("the norm before clipping can be read") {
  tandem::test::on_ranks(tandem::test::ranks(), [](int) {
    auto world = tandem::join<tandem::ShmRing>();
    Trainer trainer{world, NetImpl(), squared, sgd, {.clip_norm = 1e-3}};
    trainer.model().eval();
    trainer.backward(squared(trainer.forward(batch(0)), target()));
    double sum = 0;
    for (const auto& value : trainer.model().parameters()) sum += value.grad().pow(2).sum().item<double>();
    trainer.update();
    CHECK(trainer.gradient_norm() == doctest::Approx(std::sqrt(sum)).epsilon(1e-5));
  });
}

// --- start checks ---------------------------------------------------------------------------------------------------

namespace {

/// What every rank's constructor throws; all must say the same, and the world must stay usable.
template <class Make>
std::string refusal(Make make) {
  std::string text;
  auto world = tandem::join<tandem::ShmRing>();
  try {
    make(world);
  } catch (const tandem::Error& error) {
    CHECK(error.kind() == tandem::ErrorKind::mismatch);
    text = error.what();
  }
  CHECK_FALSE(world.poisoned());
  tandem::barrier(world);
  return text;
}

}  // namespace

TEST_CASE("the first difference between ranks is named on all of them, with both ranks and both values") {
  const int ranks = tandem::test::ranks();
  if (ranks == 1) return;
  const int odd = ranks - 1;
  const std::string on_odd = " on rank " + std::to_string(odd);
  tandem::test::on_ranks(ranks, [&](int rank) {
    CHECK(refusal([&](auto& world) {
            Trainer{world, NetImpl(rank == odd ? 9 : 8), squared, sgd};
          }) == "tandem: parameter 0 is \"first.weight\" float32 [8, 4] on rank 0 and \"first.weight\" float32 [9, 4]" +
                    on_odd + "; build the same model on all ranks");
  });
  tandem::test::on_ranks(ranks, [&](int rank) {
    CHECK(refusal([&](auto& world) {
            NetImpl net;
            if (rank == odd) net.second->to(at::kDouble);
            Trainer{world, net, squared, sgd};
          }) ==
          "tandem: parameter 2 is \"second.weight\" float32 [1, 8] on rank 0 and \"second.weight\" float64 [1, 8]" +
              on_odd + "; build the same model on all ranks");
  });
  tandem::test::on_ranks(ranks, [&](int rank) {
    CHECK(refusal([&](auto& world) {
            NetImpl net;
            if (rank == odd) net.first->bias.set_requires_grad(false);
            Trainer{world, net, squared, sgd};
          }) == "tandem: parameter 1 is \"first.bias\" float32 [8] on rank 0 and \"first.bias\" float32 [8], frozen" +
                    on_odd + "; build the same model on all ranks");
  });
  tandem::test::on_ranks(ranks, [&](int rank) {
    CHECK(refusal([&](auto& world) {
            NetImpl net;
            if (rank == odd) net.register_parameter("extra", at::zeros({2}));
            Trainer{world, net, squared, sgd};
          }) == "tandem: parameter 0 is \"first.weight\" float32 [8, 4] on rank 0 and \"extra\" float32 [2]" + on_odd +
                    "; build the same model on all ranks");
  });
  tandem::test::on_ranks(ranks, [&](int rank) {
    CHECK(refusal([&](auto& world) {
            NetImpl net;
            if (rank == 0) net.second->register_parameter("zoom", at::zeros({2}));
            Trainer{world, net, squared, sgd};
          }) ==
          "tandem: parameter 3 is \"second.zoom\" float32 [2] on rank 0 and missing on rank 1; build the same model on "
          "all ranks");
  });
  tandem::test::on_ranks(ranks, [&](int rank) {
    CHECK(refusal([&](auto& world) {
            NetImpl net;
            net.register_buffer("mean", at::zeros({rank == odd ? 4 : 3}));
            Trainer{world, net, squared, sgd};
          }) == "tandem: buffer 0 is \"mean\" float32 [3] on rank 0 and \"mean\" float32 [4]" + on_odd +
                    "; build the same model on all ranks");
  });
  tandem::test::on_ranks(ranks, [&](int rank) {
    CHECK(refusal([&](auto& world) {
            Trainer{world, NetImpl(), squared, sgd, {.intra_op_threads = rank == odd ? 2 : 1}};
          }) ==
          "tandem: the number of intra-op threads is 1 on rank 0 and 2" + on_odd +
              "; results would differ in bits; set both alike on all ranks (ATEN_CPU_CAPABILITY, at::set_num_threads)");
  });
  const auto with_options = [&](const tandem::TrainerOptions& usual, const tandem::TrainerOptions& other,
                                const std::string& difference) {
    tandem::test::on_ranks(ranks, [&](int rank) {
      CHECK(refusal([&](auto& world) {
              Trainer{world, NetImpl(), squared, sgd, rank == odd ? other : usual};
            }) == "tandem: TrainerOptions::" + difference + on_odd + "; construct the Trainer alike on all ranks");
    });
  };
  with_options({.clip_norm = 1.0}, {.clip_norm = 2.0}, "clip_norm is 1 on rank 0 and 2");
  with_options({.clip_norm = 1.0 / (1 << 24)}, {.clip_norm = 0.5 / (1 << 24)},
               "clip_norm is 5.9604644775390625e-08 on rank 0 and 2.9802322387695312e-08");
  with_options({.clip_value = 1.0}, {.clip_value = 1.0 + 1.0 / (1 << 24)},
               "clip_value is 1 on rank 0 and 1.0000000596046448");
  with_options({.trim_after_update = true}, {.trim_after_update = false}, "trim_after_update is on on rank 0 and off");
  with_options({}, {.gradient_hook = [](const std::string&, at::Tensor&) {}},
               "gradient_hook is unset on rank 0 and set");
  tandem::test::on_ranks(ranks, [&](int rank) {
    using Halved = tandem::Trainer<NetImpl, tandem::Ddp<0, tandem::compress::bf16>, tandem::ShmRing>;
    CHECK(refusal([&](auto& world) {
            if (rank == odd)
              Halved{world, NetImpl(), squared, sgd};
            else
              Trainer{world, NetImpl(), squared, sgd};
          }) == "tandem: the strategy's compression is none on rank 0 and bfloat16" + on_odd +
                    "; construct the Trainer alike on all ranks");
  });
  tandem::test::on_ranks(ranks, [&](int rank) {
    ::setenv("ATEN_CPU_CAPABILITY", "default", rank == odd ? 1 : 0);
    if (rank != odd) ::unsetenv("ATEN_CPU_CAPABILITY");
    const std::string text = refusal([&](auto& world) { Trainer{world, NetImpl(), squared, sgd}; });
    if (at::get_cpu_capability() == "DEFAULT" && rank != odd) return;  // a machine without vector units
    CHECK_MESSAGE(text.find("tandem: ATen's CPU capability is ") == 0, text);
    CHECK_MESSAGE(text.find("DEFAULT" + on_odd) != std::string::npos, text);
  });
}

TEST_CASE("ranks that share processors get one intra-op thread each; a rank alone keeps its own") {
  const int ranks = tandem::test::ranks();
  tandem::test::on_ranks(ranks, [&](int) {
    torch::set_num_threads(2);
    auto world = tandem::join<tandem::ShmRing>();
    Trainer trainer{world, NetImpl(), squared, sgd};
    const bool share = ranks > 1 && 2 * ranks > static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
    CHECK(torch::get_num_threads() == (share ? 1 : 2));
  });
}

TEST_CASE("a degree that the world has not is refused on all ranks, and the world stays usable") {
  const int ranks = tandem::test::ranks();
  tandem::test::on_ranks(ranks, [&](int) {
    auto world = tandem::join<tandem::ShmRing>();
    const auto make = [&] {
      tandem::Trainer<NetImpl, tandem::Ddp<7>, tandem::ShmRing>{world, NetImpl(), squared, sgd};
    };
    CHECK_THROWS_WITH_AS(
        make(), ("tandem: world size " + std::to_string(ranks) + " is not 7; use Ddp<>, or start 7 ranks").c_str(),
        tandem::Error);
    CHECK_FALSE(world.poisoned());
    tandem::barrier(world);
  });
}

// --- failure --------------------------------------------------------------------------------------------------------

namespace {

struct Boom : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws on one rank: in forward, or in a gradient hook during backward.
struct Failing : torch::nn::Module {
  at::Tensor w, v;
  int* countdown;
  bool in_backward;
  Failing(int* when, bool backward) : countdown(when), in_backward(backward) {
    w = register_parameter("w", torch::ones({4, 4}));
    v = register_parameter("v", torch::ones({4, 4}));
  }
  at::Tensor forward(const at::Tensor& x) {
    const bool now = --*countdown == 0;
    if (now && !in_backward) throw Boom("the data is bad");
    const at::Tensor y = at::mm(x, w);
    if (now)
      y.register_hook([](const at::Tensor& g) -> at::Tensor {
        throw Boom("the gradient is bad");
        return g;
      });
    return at::mm(y, v);
  }
};

}  // namespace

TEST_CASE("C048: an exception on one rank reaches its caller with its type, and the others at once with its words") {
  const int ranks = tandem::test::ranks();
  const int culprit = ranks - 1;
  for (const bool in_backward : {false, true}) {
    tandem::test::on_ranks(ranks, [&](int rank) {
      auto world = tandem::join<tandem::ShmRing>(tandem::JoinOptions{.timeout = std::chrono::seconds(30)});
      int countdown = rank == culprit ? 3 : -1;
      tandem::Trainer<Failing, tandem::Ddp<>, tandem::ShmRing> trainer{
          world, std::make_shared<Failing>(&countdown, in_backward), squared, sgd};
      const auto begin = std::chrono::steady_clock::now();
      for (int step = 0; step < 2; ++step) trainer.step(batch(rank), at::zeros({6, 4}));
      if (rank == culprit) {
        CHECK_THROWS_WITH_AS(trainer.step(batch(rank), at::zeros({6, 4})),
                             in_backward ? "the gradient is bad" : "the data is bad", Boom);
      } else {
        try {
          trainer.step(batch(rank), at::zeros({6, 4}));
          FAIL("rank " << rank << " went on without rank " << culprit);
        } catch (const tandem::Error& error) {
          const std::string text = error.what();
          CHECK_MESSAGE(text.find("rank " + std::to_string(culprit)) != std::string::npos, text);
          CHECK_MESSAGE(text.find(in_backward ? "the gradient is bad" : "the data is bad") != std::string::npos, text);
        }
      }
      CHECK(world.poisoned());
      CHECK_THROWS_AS(tandem::barrier(world), tandem::Error);
      CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
    });
  }
}

TEST_CASE("C048: an exception that ends one rank's program") {
  const int ranks = tandem::test::ranks();
  if (ranks == 1) return;
  const auto endings = tandem::test::run_ranks(ranks, [&](int rank) {
    auto world = tandem::join<tandem::ShmRing>(tandem::JoinOptions{.timeout = std::chrono::seconds(30)});
    Trainer trainer{world, NetImpl(), squared, sgd};
    for (int step = 0; step < 3; ++step) {
      if (rank == 1 && step == 2) _exit(7);  // without a word
      trainer.step(batch(rank), target());
    }
  });
  for (int rank = 0; rank < ranks; ++rank) {
    CHECK(endings[static_cast<std::size_t>(rank)].code == (rank == 1 ? 7 : 1));
    CHECK(endings[static_cast<std::size_t>(rank)].signal == 0);
  }
}

TEST_CASE("a model that cannot be built on one rank stops the others at once") {
  const int ranks = tandem::test::ranks();
  if (ranks == 1) return;
  tandem::test::on_ranks(ranks, [&](int rank) {
    auto world = tandem::join<tandem::ShmRing>(tandem::JoinOptions{.timeout = std::chrono::seconds(30)});
    const auto make = [&] {
      Trainer{world,
              [&]() -> NetImpl {
                if (rank == 1) throw Boom("no memory for the model");
                return NetImpl();
              },
              squared, sgd};
    };
    if (rank == 1) {
      CHECK_THROWS_AS(make(), Boom);
    } else {
      CHECK_THROWS_WITH_AS(make(), doctest::Contains("no memory for the model"), tandem::Error);
    }
  });
}

TEST_CASE("what cannot be is said in one sentence") {
  tandem::test::on_ranks(tandem::test::ranks(), [](int) {
    const auto said = [](auto act) {
      auto world = tandem::join<tandem::ShmRing>();
      Trainer trainer{world, NetImpl(), squared, sgd};
      tandem::barrier(world);
      try {
        act(trainer);
      } catch (const tandem::Error& error) {
        return std::string(error.what());
      }
      return std::string("nothing");
    };
    CHECK(said([](Trainer& trainer) { trainer.backward(trainer.forward(batch(0))); }).find("must be one number") !=
          std::string::npos);
  });
  tandem::test::on_ranks(tandem::test::ranks(), [](int) {
    auto world = tandem::join<tandem::ShmRing>();
    Trainer trainer{world, NetImpl(), squared, sgd};
    tandem::barrier(world);
    CHECK_THROWS_WITH_AS(trainer.backward(at::zeros({})), doctest::Contains("depends on no parameter"), tandem::Error);
  });
}
