// SPDX-License-Identifier: Apache-2.0
// Ddp against PyTorch's own C++: c10d::Reducer over ProcessGroupGloo, in the same processes, on the same batches. After
// every backward all gradients and after every update all weights must be equal, bit for bit.
#include <torch/torch.h>

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/c10d_oracle.hpp"
#include "support/ranks.hpp"
#include "support/torch_training.hpp"
#include "tandem/tandem.hpp"

namespace {

using tandem::test::Batch;
using tandem::test::differing;
using tandem::test::WordNet;

struct Scenario {
  int steps = 5;
  int micro_batches = 1;
  tandem::TrainerOptions options{};
  tandem_oracle::ReducerOptions peer{};
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::vector<at::Tensor>& parameters) {
  return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-3));
}

/// Trains a WordNet on both sides; the number of elements that ever differed, of gradients and of weights.
void compare(const Scenario& scenario) {
  const int ranks = tandem::test::ranks();
  const tandem_oracle::StoreFile store;
  tandem::test::on_ranks(
      ranks,
      [&](int rank) {
        torch::set_num_threads(1);
        auto world = tandem::join<tandem::ShmRing>();
        tandem::Trainer<WordNet, tandem::Ddp<>, tandem::ShmRing> trainer{
            world, WordNet(7 + static_cast<unsigned>(rank)),  // rank 0's weights must win
            tandem::test::word_loss, make_optimizer, scenario.options};

        const tandem_oracle::GlooGroup group(store.path(), rank, ranks);
        WordNet peer(7);
        const auto theirs = peer.parameters();
        const auto ours = trainer.model().parameters();
        tandem_oracle::ReducerOracle reducer(group, theirs, scenario.peer);
        const auto optimizer = make_optimizer(theirs);

        std::int64_t wrong_gradients = 0;
        std::int64_t wrong_weights = differing(ours, theirs);
        std::size_t buckets_at_first = trainer.engine().buckets().size();
        bool rebuilt = false;
        const int K = scenario.micro_batches;
        for (int step = 0; step < scenario.steps; ++step) {
          const auto loss_of = [&](int k, auto&& forward) {
            const Batch batch(rank, step * K + k);
            const at::Tensor loss = tandem::test::word_loss(forward(batch.tokens), batch.target);
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
          CHECK(trainer.ledger().measured == moved_before);  // nothing is sent until the last micro-batch
          trainer.backward(our_loss(K - 1));

          for (int k = 0; k + 1 < K; ++k) their_loss(k).backward();
          rebuilt = reducer.before_forward() || rebuilt;
          const at::Tensor last = their_loss(K - 1);
          reducer.before_backward();
          last.backward();

          wrong_gradients += differing(tandem::test::gradients(ours), tandem::test::gradients(theirs));
          if (scenario.options.clip_norm) tandem::test::clip_like_python(theirs, *scenario.options.clip_norm);
          trainer.update();
          optimizer->step();
          switch (scenario.options.after_update) {
            case tandem::AfterUpdate::release:
              optimizer->zero_grad();
              break;
            case tandem::AfterUpdate::zero:
              optimizer->zero_grad(false);
              break;
            case tandem::AfterUpdate::keep:
              break;
          }
          wrong_weights += differing(ours, theirs);
        }
        MESSAGE("rank ", rank, " of ", ranks, ", ", scenario.steps, " steps: ", wrong_gradients, " gradient and ",
                wrong_weights, " weight elements differ from c10d::Reducer over gloo; buckets ", buckets_at_first,
                " then ", trainer.engine().buckets().size());
        CHECK(wrong_gradients == 0);
        CHECK(wrong_weights == 0);
        CHECK(rebuilt);
        CHECK(trainer.engine().buckets().size() > 1);
        CHECK(trainer.ledger().balanced());
        CHECK((ranks == 1 || trainer.ledger().measured > 0));
        group.group()->barrier()->wait();
      },
      std::chrono::seconds(150));
}

}  // namespace

TEST_CASE("20 steps with PyTorch's default buckets: no element differs") { compare({.steps = 20}); }

TEST_CASE("an explicit bucket size applies to every bucket from step 2 on") {
  compare({.options = {.buckets = tandem::BucketCaps::every(300'000)}, .peer = {.bucket_bytes = 300'000}});
}

TEST_CASE("a list of bucket sizes applies from step 1 on") {
  compare({.options = {.buckets = tandem::BucketCaps::list({100'000, 1'500'000, 2'000'000})},
           .peer = {.bucket_bytes_list = {100'000, 1'500'000, 2'000'000}}});
}

TEST_CASE("clipping to 0.7, where Python's formula and C++'s differ") {
  compare({.steps = 10, .options = {.clip_norm = 0.7}});
}

TEST_CASE("three micro-batches added up locally, then one reduction") {
  compare({.steps = 6, .micro_batches = 3, .options = {.clip_norm = 0.7}});
}

TEST_CASE("gradients zeroed in place instead of released") {
  compare({.steps = 6, .options = {.after_update = tandem::AfterUpdate::zero}});
}

TEST_CASE("gradients kept from step to step: the next value is (old average + local) / N") {
  compare({.steps = 5, .options = {.after_update = tandem::AfterUpdate::keep}});
}

TEST_CASE("kept gradients and micro-batches together") {
  compare({.steps = 4, .micro_batches = 2, .options = {.after_update = tandem::AfterUpdate::keep}});
}
