// SPDX-License-Identifier: Apache-2.0
// Zero<3, reference::fsdp2> against the rules of torch.distributed.fsdp.fully_shard, written out in plain libtorch
// operations on every rank. scripts/verify_python holds it against fully_shard itself.
#include <torch/torch.h>

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpt/reference.hpp"
#include "support/cut_models.hpp"
#include "support/one_process.hpp"
#include "support/ranks.hpp"
#include "support/torch_training.hpp"
#include "support/worlds.hpp"
#include "tandem/tandem.hpp"
#include "tandem/transport/tcp.hpp"

namespace {

using namespace tandem;
using test::differing;
using FullyShard = Zero<3, reference::fsdp2>;

/// Rows that no number of ranks divides, fewer rows than ranks, a number, and a unit without parameters.
struct Net : torch::nn::SequentialImpl {
  explicit Net(std::uint64_t seed) {
    torch::manual_seed(seed);
    push_back(torch::nn::Embedding(53, 33));
    push_back(std::make_shared<test::Affine>(33, 97));
    push_back(torch::nn::Tanh());
    push_back(std::make_shared<test::Affine>(97, 2));
    push_back(std::make_shared<test::Scale>());
    push_back(std::make_shared<test::Affine>(2, 53));
  }
  at::Tensor forward(const at::Tensor& tokens) { return torch::nn::SequentialImpl::forward(tokens); }
};

/// fully_shard's parts in one process, on the gradients of all ranks.
class Rules {
 public:
  explicit Rules(Net& net, int ranks) : parameters_(net.parameters()), ranks_(ranks) {
    std::size_t index = 0;
    for (const auto& unit : net) {
      units_.emplace_back();
      for (std::size_t i = 0; i < unit.ptr()->parameters().size(); ++i) units_.back().push_back(index++);
    }
  }
  /// [rank][parameter] to averages by parameter.
  std::vector<at::Tensor> average(const std::vector<std::vector<at::Tensor>>& gradients) const {
    std::vector<at::Tensor> result(parameters_.size());
    for (const auto& unit : units_) {
      if (unit.empty()) continue;
      std::vector<at::Tensor> buffers;
      for (const auto& of_rank : gradients) {
        std::vector<at::Tensor> pieces;
        for (int part = 0; part < ranks_; ++part) {
          for (const std::size_t i : unit)
            pieces.push_back(padded(of_rank[i]).narrow(0, part * each(i), each(i)).flatten());
        }
        buffers.push_back(at::cat(pieces));
      }
      const at::Tensor sum = gpt::ring_sum(buffers) / ranks_;
      const std::int64_t shard = sum.numel() / ranks_;
      std::int64_t at = 0;
      for (const std::size_t i : unit) {
        const std::int64_t part = padded(gradients[0][i]).numel() / ranks_;
        std::vector<at::Tensor> parts;
        for (int rank = 0; rank < ranks_; ++rank) parts.push_back(sum.narrow(0, rank * shard + at, part));
        result[i] = at::cat(parts).narrow(0, 0, parameters_[i].numel()).view(parameters_[i].sizes());
        at += part;
      }
    }
    return result;
  }
  void clip(const std::vector<at::Tensor>& averages, double limit) const {
    std::vector<at::Tensor> squares;
    for (int rank = 0; rank < ranks_; ++rank) {
      std::vector<at::Tensor> norms;
      for (std::size_t i = 0; i < averages.size(); ++i) {
        const at::Tensor rows = averages[i].dim() == 0 ? averages[i].view({1}) : averages[i];
        norms.push_back(at::linalg_vector_norm(
            rows.slice(0, std::min(rows.size(0), rank * each(i)), std::min(rows.size(0), (rank + 1) * each(i))), 2.0));
      }
      squares.push_back(at::stack(norms).pow(2));
    }
    const at::Tensor total = at::linalg_vector_norm(gpt::ring_sum(squares).pow(0.5), 2.0);
    const at::Tensor factor = at::clamp((total + 1e-6).reciprocal() * limit, std::nullopt, 1.0);
    for (const at::Tensor& average : averages) average.mul_(factor);
  }

 private:
  std::int64_t rows(std::size_t i) const { return parameters_[i].dim() == 0 ? 1 : parameters_[i].size(0); }
  std::int64_t each(std::size_t i) const { return (rows(i) + ranks_ - 1) / ranks_; }
  at::Tensor padded(const at::Tensor& gradient) const {
    const at::Tensor table = gradient.dim() == 0 ? gradient.view({1}) : gradient;
    auto sizes = table.sizes().vec();
    sizes[0] = (sizes[0] + ranks_ - 1) / ranks_ * ranks_;
    const at::Tensor result = at::zeros(sizes);
    result.narrow(0, 0, table.size(0)).copy_(table);
    return result;
  }

  std::vector<at::Tensor> parameters_;
  int ranks_;
  std::vector<std::vector<std::size_t>> units_;
};

struct Terms {
  int micro_batches = 1;
  TrainerOptions options{};
};

std::unique_ptr<torch::optim::Optimizer> adam_w(const std::vector<at::Tensor>& parameters) {
  return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-2));
}

template <class T>
void compare(const Terms& terms) {
  test::on_ranks(
      test::ranks(),
      [&](int rank) {
        torch::set_num_threads(1);
        auto world = join<T>();
        Trainer<Net, FullyShard, T> trainer{world, Net(7 + static_cast<std::uint64_t>(rank)), test::word_loss, adam_w,
                                            terms.options};
        Net peer(7);
        const Rules rules(peer, world.size());
        const auto theirs = peer.parameters();
        const auto optimizer = adam_w(theirs);
        const bool each_time = terms.options.accumulate == accumulation::shard_sums;
        const auto batch = [&](int number) {
          auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(100 * rank + number));
          return std::pair{at::randint(0, 53, {3, 5}, generator, at::kLong),
                           at::randint(0, 53, {3, 5}, generator, at::kLong)};
        };
        /// Every rank's gradients as they stand.
        const auto of_all_ranks = [&] {
          std::vector<std::vector<at::Tensor>> all(static_cast<std::size_t>(world.size()));
          for (const at::Tensor& parameter : theirs) {
            const at::Tensor own = parameter.grad().flatten().contiguous();
            const at::Tensor gathered = at::empty({world.size() * own.numel()});
            all_gather(world, own, gathered);
            for (int r = 0; r < world.size(); ++r) {
              all[static_cast<std::size_t>(r)].push_back(
                  gathered.narrow(0, r * own.numel(), own.numel()).view(parameter.sizes()));
            }
          }
          return all;
        };
        std::int64_t wrong_gradients = 0, wrong_weights = 0;
        for (int step = 0; step < 4; ++step) {
          std::vector<at::Tensor> averages;
          for (int k = 0; k < terms.micro_batches; ++k) {
            const auto [tokens, target] = batch(step * terms.micro_batches + k);
            {
              const at::Tensor loss = test::word_loss(trainer.forward(tokens), target) / terms.micro_batches;
              if (k + 1 < terms.micro_batches) {
                const auto more = trainer.accumulate();
                trainer.backward(loss);
              } else {
                trainer.backward(loss);
              }
            }
            (test::word_loss(peer.forward(tokens), target) / terms.micro_batches).backward();
            if (!each_time && k + 1 < terms.micro_batches) continue;
            const torch::NoGradGuard no_grad;
            const auto some = rules.average(of_all_ranks());
            for (std::size_t i = 0; i < some.size(); ++i) {
              if (averages.size() <= i)
                averages.push_back(some[i].clone());
              else
                averages[i].add_(some[i]);
            }
            optimizer->zero_grad();
          }
          for (const Shard& shard : trainer.engine().shards()) {
            wrong_gradients +=
                std::abs(differing(shard.value.grad(),
                                   averages[shard.item].flatten().slice(0, static_cast<std::int64_t>(shard.range.begin),
                                                                        static_cast<std::int64_t>(shard.range.end))));
          }
          {
            const torch::NoGradGuard no_grad;
            if (terms.options.clip_norm) rules.clip(averages, *terms.options.clip_norm);
          }
          for (std::size_t i = 0; i < averages.size(); ++i) at::Tensor(theirs[i]).mutable_grad() = averages[i];
          optimizer->step();
          optimizer->zero_grad();
          trainer.update();
          for (const at::Tensor& parameter : trainer.model().parameters()) CHECK_THROWS(parameter.const_data_ptr());
          const auto whole = trainer.unshard();
          wrong_weights += differing(trainer.model().parameters(), theirs);
        }
        MESSAGE(std::string(FullyShard::name), ", rank ", rank, " of ", world.size(), ": ", wrong_gradients,
                " gradient and ", wrong_weights, " weight elements differ from fully_shard's rules");
        CHECK(wrong_gradients == 0);
        CHECK(wrong_weights == 0);
        CHECK(trainer.ledger().balanced());
        CHECK((world.size() == 1 || trainer.ledger().measured > 0));
      },
      std::chrono::seconds(100));
}

}  // namespace

TEST_CASE("reference::fsdp2: no element differs") {
  compare<ShmRing>({.options = {.clip_norm = 0.7}});
  compare<Tcp>({.options = {.clip_norm = 0.07}});
}
TEST_CASE("reference::fsdp2 with micro-batches, reduced at the end or each time: no element differs") {
  compare<ShmRing>({.micro_batches = 3, .options = {.clip_norm = 0.7}});
  compare<ShmRing>({.micro_batches = 3, .options = {.clip_norm = 0.07, .accumulate = accumulation::shard_sums}});
  compare<ShmRing>({.micro_batches = 2, .options = {.reshard_after_forward = false}});
}

TEST_CASE("reference::fsdp2 says what it does not do") {
  const auto refused = [](const TrainerOptions& options, const char* words) {
    test::on_ranks(test::ranks(), [&](int) {
      auto world = join<ShmRing>();
      CHECK_THROWS_WITH_AS((Trainer<Net, FullyShard, ShmRing>{world, Net(7), test::word_loss, adam_w, options}),
                           doctest::Contains(words), Error);
    });
  };
  refused({.after_update = AfterUpdate::keep}, "no rank has all averages to keep");
  refused({.static_graph = true}, "every parameter must take part");
  refused({.placement = Placement::shared}, "every rank has its rows");
  refused({.uneven_inputs = true}, "uneven_inputs needs parameters that are whole on every rank");
}

TEST_CASE("reference::fsdp2: gradients written by hand are averaged") {
  test::on_ranks(test::ranks(), [](int rank) {
    torch::set_num_threads(1);
    auto world = join<ShmRing>();
    Trainer<Net, FullyShard, ShmRing> trainer{world, Net(7), test::word_loss, adam_w};
    for (const at::Tensor& parameter : trainer.model().parameters()) {
      at::Tensor(parameter).mutable_grad() = at::full(parameter.sizes(), static_cast<float>(rank));
    }
    trainer.reduce_gradients();
    const float mean = static_cast<float>(test::ranks() - 1) / 2;
    for (const Shard& shard : trainer.engine().shards()) CHECK(shard.value.grad().eq(mean).all().item<bool>());
    trainer.update();
    const auto whole = trainer.unshard();
    for (const at::Tensor& parameter : trainer.model().parameters()) {
      CHECK(test::differing_from_rank_0(world, parameter) == 0);
    }
  });
}
