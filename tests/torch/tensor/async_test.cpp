// SPDX-License-Identifier: Apache-2.0
// The asynchronous and coalesced verbs on at::Tensor: the blocking verbs' results, who keeps storage alive, refusals.
#include <torch/torch.h>

#include <doctest/doctest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/ranks.hpp"
#include "support/torch_training.hpp"
#include "support/worlds.hpp"
#include "tandem/tandem.hpp"

using tandem::test::differing;
using tandem::test::TestTransport;

namespace {

/// Values of mixed sign that round in every addition.
at::Tensor values(int rank, std::int64_t count, at::ScalarType type, bool registered, auto& world) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(rank * 1000 + count));
  at::Tensor drawn = at::randn({count}, generator).mul(100).to(type);
  if (!registered) return drawn;
  at::Tensor result = tandem::arena_empty(world, {count}, type);
  result.copy_(drawn);
  return result;
}

}  // namespace

TEST_CASE("asynchronous verbs give what the blocking ones give, and keep their tensors until then") {
  const int ranks = tandem::test::ranks();
  tandem::test::on_ranks(ranks, [&](int rank) {
    auto world = tandem::join<TestTransport>();
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kLong}) {
      for (const bool registered : {false, true}) {
        const std::int64_t count = 30'000;
        const auto make = [&](int of) { return values(of, count, type, registered, world); };
        at::Tensor reduced = make(rank);
        at::Tensor whole = make(rank);
        at::Tensor sent = make(rank);
        at::Tensor part = at::zeros({count / ranks}, type);
        at::Tensor gathered = at::zeros({count / ranks * ranks}, type);
        const at::Tensor own = make(rank).narrow(0, 0, count / ranks);
        const at::Tensor input = make(rank);
        at::Tensor output = at::zeros_like(input);

        const at::Tensor expected_sum = make(rank);
        tandem::all_reduce(world, expected_sum, tandem::Sum{});
        const at::Tensor expected_part = at::zeros_like(part);
        const at::Tensor divisible = whole.narrow(0, 0, count / ranks * ranks);
        tandem::reduce_scatter(world, divisible, expected_part, tandem::Sum{});
        const at::Tensor expected_whole = at::zeros_like(gathered);
        tandem::all_gather(world, own, expected_whole);

        std::vector<tandem::Work> works;
        works.push_back(tandem::all_reduce_async(world, reduced, tandem::Sum{}));
        works.push_back(tandem::all_reduce_async(world, input, output, tandem::Sum{}));
        works.push_back(tandem::reduce_scatter_async(world, divisible, part, tandem::Sum{}));
        works.push_back(tandem::all_gather_async(world, own, gathered));
        works.push_back(tandem::broadcast_async(world, sent, ranks - 1));
        if (ranks > 1) CHECK(reduced.use_count() == 2);
        if (ranks > 1) CHECK(input.use_count() + output.use_count() == 4);
        for (auto& work : works) work.poll();
        for (auto& work : works) work.wait();
        CHECK(reduced.use_count() == 1);
        CHECK(part.use_count() == 1);
        CHECK(input.use_count() + output.use_count() == 2);
        CHECK(differing(reduced, expected_sum) == 0);
        CHECK(differing(output, expected_sum) == 0);
        CHECK(differing(input, make(rank)) == 0);
        CHECK(differing(part, expected_part) == 0);
        CHECK(differing(gathered, expected_whole) == 0);
        CHECK(differing(sent, make(ranks - 1)) == 0);
      }
    }
    // The caller's own references may go: the result is then only lost.
    tandem::Work work;
    {
      const at::Tensor temporary = values(rank, 100'000, at::kFloat, true, world);
      work = tandem::all_reduce_async(world, temporary, tandem::Sum{});
    }
    const at::Tensor other = tandem::arena_empty(world, {100'000});  // would get the same memory
    other.fill_(7);
    work.wait();
    CHECK(other.eq(7).all().item<bool>());
    CHECK(world.ledger().balanced());
  });
}

TEST_CASE("an asynchronous all-reduce from one tensor to another refuses what the blocking one refuses") {
  tandem::test::on_ranks(tandem::test::ranks(), [](int) {
    auto world = tandem::join<TestTransport>();
    const auto refused = [&](const at::Tensor& in, const at::Tensor& out, const char* words) {
      CHECK_THROWS_WITH_AS(static_cast<void>(tandem::all_reduce_async(world, in, out, tandem::Sum{})),
                           doctest::Contains(words), tandem::Error);
    };
    const at::Tensor whole = at::ones({10});
    refused(whole.narrow(0, 0, 6), whole.narrow(0, 3, 6), "overlap");
    refused(whole, at::ones({9}), "9");
    refused(whole, at::ones({10}, at::kDouble), "one dtype");
    refused(whole, at::ones({10, 2}).t(), "the output is not contiguous");
    refused(at::ones({10}).to_sparse(), whole, "the input is sparse");
    auto same = tandem::all_reduce_async(world, whole, whole, tandem::Sum{});
    same.wait();
    CHECK(whole.eq(world.size()).all().item<bool>());
    CHECK_FALSE(world.poisoned());
    tandem::barrier(world);
  });
}

TEST_CASE("C053: tensor and handle go by an exception while peers may write there; later memory is left alone") {
  if (tandem::test::ranks() == 1) return;
  tandem::test::on_ranks(tandem::test::ranks(), [](int rank) {
    for (int turn = 0; turn < 20; ++turn) {
      std::string noticed;
      tandem::JoinOptions options;
      options.notice = [&](const std::string& text) { noticed += text; };
      auto world = tandem::join<TestTransport>(options);
      try {
        const at::Tensor tensor = tandem::arena_empty(world, {1 << 18});
        tensor.fill_(1);
        auto work = tandem::all_reduce_async(world, tensor, tandem::Sum{});
        if (rank == turn % 2) throw std::runtime_error("of the user");
        work.wait();
        CHECK(world.size() > 2);  // of two, the other did not take part
      } catch (const std::runtime_error& error) {
        if (rank == turn % 2) CHECK(noticed.find("dropped without wait()") != std::string::npos);
      }
      const at::Tensor later = at::full({1 << 18}, 5.0F);
      CHECK_THROWS_AS(tandem::barrier(world), tandem::Error);
      CHECK(later.eq(5).all().item<bool>());
    }
  });
}

TEST_CASE("a coalesced list has the bits of the all-reduce over the concatenation") {
  const int ranks = tandem::test::ranks();
  tandem::test::on_ranks(ranks, [&](int rank) {
    auto world = tandem::join<TestTransport>();
    for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kDouble, at::kInt}) {
      for (const std::int64_t scale : {1, 100}) {
        std::vector<at::Tensor> list;
        for (const std::int64_t count : {3, 0, 64, 17, 131})
          list.push_back(values(rank, count * scale, type, false, world));
        list[2] = list[2].view({8, -1}).set_requires_grad(at::isFloatingType(type));
        std::vector<at::Tensor> flattened;
        for (const at::Tensor& it : list) flattened.push_back(it.detach().flatten());
        const at::Tensor flat = at::cat(flattened);
        tandem::all_reduce(world, flat, tandem::Sum{});
        const auto before = world.ledger();
        tandem::all_reduce_coalesced(world, list, tandem::Sum{});
        CHECK((world.ledger() - before).operations == 1);
        std::int64_t at = 0;
        for (const at::Tensor& it : list) {
          CHECK(differing(it.detach().flatten(), flat.narrow(0, at, it.numel())) == 0);
          at += it.numel();
        }
      }
    }
    tandem::all_reduce_coalesced(world, std::vector<at::Tensor>{}, tandem::Sum{});
    CHECK_THROWS_WITH_AS(
        tandem::all_reduce_coalesced(world, std::vector<at::Tensor>{at::ones({2}), at::ones({2}, at::kInt)},
                                     tandem::Sum{}),
        "tandem: all_reduce_coalesced: tensor 0 is float32 and tensor 1 int32; they must have one dtype",
        tandem::Error);
    CHECK_THROWS_WITH_AS(tandem::all_reduce_coalesced(
                             world, std::vector<at::Tensor>{at::ones({2}), at::ones({4, 2}).t()}, tandem::Sum{}),
                         doctest::Contains("tensor 1 is not contiguous"), tandem::Error);
    const at::Tensor base = at::ones({10});
    CHECK_THROWS_WITH_AS(tandem::all_reduce_coalesced(
                             world, std::vector<at::Tensor>{base.narrow(0, 0, 6), base.narrow(0, 5, 2)}, tandem::Sum{}),
                         doctest::Contains("buffers 0 and 1 overlap"), tandem::Error);
    CHECK_FALSE(world.poisoned());
    tandem::barrier(world);
  });
}
