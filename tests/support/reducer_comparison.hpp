// SPDX-License-Identifier: Apache-2.0
// A strategy against PyTorch's own C++: c10d::Reducer over ProcessGroupGloo, in the same processes, on the same
// batches. After every backward all gradients that a rank has and after every update all weights must be equal, bit for
// bit.
#pragma once

#include <torch/torch.h>

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/c10d_oracle.hpp"
#include "support/ranks.hpp"
#include "support/torch_training.hpp"
#include "support/worlds.hpp"
#include "tandem/tandem.hpp"

namespace tandem::test {

struct Scenario {
  int steps = 5;
  int micro_batches = 1;
  TrainerOptions options{};
  tandem_oracle::ReducerOptions peer{};
};

inline std::unique_ptr<torch::optim::Optimizer> adam_w(const std::vector<at::Tensor>& parameters) {
  return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-3));
}

/// Elements in which the gradients that this rank has differ from `theirs`, those of the whole parameters: all of them,
/// or those of its shards.
template <class Trainer>
std::int64_t differing_gradients(Trainer& trainer, const std::vector<at::Tensor>& theirs) {
  if constexpr (requires { trainer.engine().shards(); }) {
    std::int64_t count = 0;
    for (const auto& shard : trainer.engine().shards()) {
      const at::Tensor whole = theirs[shard.item].grad();
      if (!whole.defined() || !shard.value.grad().defined()) {
        if (whole.defined() != shard.value.grad().defined()) count += shard.value.numel();
        continue;
      }
      const at::Tensor flat = whole.as_strided({whole.numel()}, {1});
      count += std::abs(differing(shard.value.grad(), flat.slice(0, static_cast<std::int64_t>(shard.range.begin),
                                                                 static_cast<std::int64_t>(shard.range.end))));
    }
    for (const auto& parameter : trainer.model().parameters()) CHECK_FALSE(parameter.grad().defined());
    return count;
  } else {
    return differing(gradients(trainer.model().parameters()), gradients(theirs));
  }
}

/// A WordNet with branches: which of them a forward takes depends on the rank, and unless it is `fixed` on the number
/// of the batch.
struct BranchNet : WordNet {
  torch::nn::Linear often{nullptr}, first{nullptr}, rare{nullptr}, never{nullptr};
  bool fixed = false;
  int rank = 0, number = 0;

  explicit BranchNet(std::uint64_t seed = 7) : WordNet(seed) {
    never = register_module("never", torch::nn::Linear(700, 30));
    often = register_module("often", torch::nn::Linear(700, 700));
    first = register_module("first", torch::nn::Linear(700, 700));
    rare = register_module("rare", torch::nn::Linear(50, 50));
  }
  void route(int of_rank, int batch) {
    rank = of_rank;
    number = fixed ? 0 : batch;
  }
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = norm(apply(in, embedding(tokens)));
    if ((rank + number) % 2 == 0) x = torch::tanh(apply(often, x));
    if (rank == 0) x = x + apply(first, x);
    x = torch::tanh(apply(middle, torch::gelu(x)));
    x = apply(out, apply(late, x));
    if (rank == 1 && number % 3 == 0) x = apply(rare, x);
    return x;
  }
};
/// One whose branches stay the same.
struct FixedBranchNet : BranchNet {
  explicit FixedBranchNet(std::uint64_t seed = 7) : BranchNet(seed) { fixed = true; }
};

/// Trains a model on both sides and checks that no element of gradients or weights ever differs.
template <class Strategy, class Transport = TestTransport, class Model = WordNet>
void compare_with_reducer(const Scenario& scenario) {
  const int ranks = test::ranks();
  const tandem_oracle::StoreFile store;
  on_ranks(
      ranks,
      [&](int rank) {
        torch::set_num_threads(1);
        auto world = join<Transport>();
        Trainer<Model, Strategy, Transport> trainer{world, Model(7 + static_cast<unsigned>(rank)),  // rank 0's must win
                                                    word_loss, adam_w, scenario.options};

        const tandem_oracle::GlooGroup group(store.path(), rank, ranks);
        Model peer(7);
        const auto theirs = peer.parameters();
        const auto ours = trainer.model().parameters();
        tandem_oracle::ReducerOracle reducer(group, theirs, scenario.peer);
        const auto optimizer = adam_w(theirs);

        std::int64_t wrong_gradients = 0;
        std::int64_t wrong_weights = 0;
        {
          const auto whole = trainer.unshard();
          wrong_weights += differing(ours, theirs);
        }
        std::size_t buckets_at_first = trainer.engine().buckets().size();
        bool rebuilt = false;
        const int K = scenario.micro_batches;
        for (int step = 0; step < scenario.steps; ++step) {
          const auto loss_of = [&](int k, auto&& forward) {
            const Batch batch(rank, step * K + k);
            if constexpr (requires { peer.route(0, 0); }) {
              peer.route(rank, step * K + k);
              trainer.model().route(rank, step * K + k);
            }
            const at::Tensor loss = word_loss(forward(batch.tokens), batch.target);
            return K == 1 ? loss : loss / K;
          };
          const auto our_loss = [&](int k) {
            return loss_of(k, [&](const at::Tensor& x) { return trainer.forward(x); });
          };
          const auto their_loss = [&](int k) {
            return loss_of(k, [&](const at::Tensor& x) { return peer.forward(x); });
          };

          const auto moved_before = trainer.ledger().measured;
          {
            const auto locally = trainer.accumulate();
            for (int k = 0; k + 1 < K; ++k) trainer.backward(our_loss(k));
          }
          bool gathers = false;
          if constexpr (requires { trainer.engine().schedule(); }) gathers = trainer.engine().schedule() != nullptr;
          // Nothing is sent until the last micro-batch, but for parameters that are not there.
          CHECK((gathers || trainer.ledger().measured == moved_before));
          trainer.backward(our_loss(K - 1));

          for (int k = 0; k + 1 < K; ++k) their_loss(k).backward();
          rebuilt = reducer.before_forward() || rebuilt;
          const at::Tensor last = their_loss(K - 1);
          reducer.before_backward(last);
          last.backward();
          reducer.after_backward();

          wrong_gradients += differing_gradients(trainer, theirs);
          if (scenario.options.clip_norm) clip_like_python(theirs, *scenario.options.clip_norm);
          trainer.update();
          optimizer->step();
          switch (scenario.options.after_update) {
            case AfterUpdate::release:
              optimizer->zero_grad();
              break;
            case AfterUpdate::zero:
              optimizer->zero_grad(false);
              break;
            case AfterUpdate::keep:
              break;
          }
          const auto whole = trainer.unshard();
          wrong_weights += differing(ours, theirs);
        }
        MESSAGE(std::string(Strategy::name), ", rank ", rank, " of ", ranks, ", ", scenario.steps,
                " steps: ", wrong_gradients, " gradient and ", wrong_weights,
                " weight elements differ from c10d::Reducer over gloo; buckets ", buckets_at_first, " then ",
                trainer.engine().buckets().size());
        CHECK(wrong_gradients == 0);
        CHECK(wrong_weights == 0);
        CHECK(rebuilt == !scenario.peer.find_unused);
        CHECK(trainer.engine().buckets().size() > 1);
        CHECK(trainer.ledger().balanced());
        CHECK((ranks == 1 || trainer.ledger().measured > 0));
        group.group()->barrier()->wait();
      },
      std::chrono::seconds(150));
}

}  // namespace tandem::test
