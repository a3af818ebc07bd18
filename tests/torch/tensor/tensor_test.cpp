// SPDX-License-Identifier: Apache-2.0
// The collectives on at::Tensor: results, refusals by name, what autograd sees; and storage in the arena.
#include <torch/torch.h>

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/ranks.hpp"
#include "support/torch_tensors.hpp"
#include "support/torch_training.hpp"
#include "support/worlds.hpp"
#include "tandem/tandem.hpp"

namespace {

using tandem::test::differing;
using tandem::test::DirectIfAny;
using tandem::test::numbers;
using tandem::test::said;
using tandem::test::TestTransport;

}  // namespace

TEST_CASE(
    "all-reduce, its halves, broadcast and messages on every dtype, for sizes that divide and sizes that do not") {
  const int ranks = tandem::test::ranks();
  tandem::test::on_ranks(ranks, [&](int rank) {
    auto world = tandem::join<TestTransport>();
    for (const at::ScalarType type : tandem::test::number_dtypes) {
      for (const std::int64_t count : {0, 1, 12, 1021}) {
        INFO(c10::toString(type), " x ", count);
        at::Tensor sum = at::zeros({count}, at::kLong);
        for (int other = 0; other < ranks; ++other) sum += numbers(other, count, at::kLong);
        sum = sum.to(type);
        const at::Tensor mine = numbers(rank, count, type);

        const at::Tensor in_place = mine.clone();
        tandem::all_reduce(world, in_place, tandem::Sum{});
        CHECK(differing(in_place, sum) == 0);
        const at::Tensor out = at::empty_like(mine);
        tandem::all_reduce<tandem::Ring>(world, mine, out, tandem::Sum{});
        CHECK(differing(out, sum) == 0);
        CHECK(differing(mine, numbers(rank, count, type)) == 0);

        const auto slice = tandem::slice_of(static_cast<std::size_t>(count), ranks, rank);
        const auto own = [&](const at::Tensor& whole) {
          return whole.slice(0, static_cast<std::int64_t>(slice.begin), static_cast<std::int64_t>(slice.end));
        };
        const at::Tensor part = at::empty({static_cast<std::int64_t>(slice.size())}, type);
        tandem::reduce_scatter(world, mine, part, tandem::Sum{});
        CHECK(differing(part, own(sum)) == 0);
        const at::Tensor whole = at::zeros({count}, type);
        tandem::all_gather(world, part, whole);
        CHECK(differing(whole, sum) == 0);

        const at::Tensor copy = mine.clone();
        tandem::broadcast(world, copy, ranks - 1);
        CHECK(differing(copy, numbers(ranks - 1, count, type)) == 0);

        if (ranks > 1) {
          const at::Tensor got = at::empty_like(mine);
          if (rank == 0) tandem::send(world, mine, 1);
          if (rank == 1) {
            tandem::recv(world, got, 0);
            CHECK(differing(got, numbers(0, count, type)) == 0);
          }
        }
      }
    }
    CHECK(world.ledger().balanced());
  });
}

TEST_CASE("C009: what is not supported is refused by dtype and reduction; bool is reduced and moved") {
  tandem::test::on_ranks(tandem::test::ranks(), [](int rank) {
    auto world = tandem::join<TestTransport>();
    const auto sum_of = [](at::ScalarType type) {
      return [type](auto& w) { tandem::all_reduce(w, at::ones({3}, type), tandem::Sum{}); };
    };
    CHECK(
        said(world, [](auto& w) { tandem::all_reduce(w, at::ones({3}, at::kInt), tandem::Avg{}); }) ==
        "tandem: all_reduce: the tensor has dtype int32, which is not supported for Avg; convert it with tensor.to()");
    CHECK(said(world, sum_of(at::kBool)) ==
          "tandem: all_reduce: the tensor has dtype bool, which is not supported for Sum; convert it with tensor.to()");
    CHECK(
        said(world, sum_of(at::kShort)) ==
        "tandem: all_reduce: the tensor has dtype Short, which is not supported for Sum; convert it with tensor.to()");
    CHECK(said(world, [](auto& w) { tandem::broadcast(w, at::ones({3}, at::kShort), 0); }) ==
          "tandem: broadcast: the tensor has dtype Short, which is not supported; convert it with tensor.to()");
    CHECK(said(world,
               [](auto& w) {
                 tandem::all_reduce(w, at::quantize_per_tensor(at::ones({3}), 0.5, 0, at::kQInt8), tandem::Sum{});
               }) ==
          "tandem: all_reduce: the tensor has dtype QInt8, which is not supported for Sum; pass tensor.dequantize()");
    const at::Tensor flags = at::arange(9).remainder(2).eq(rank == 0 ? 1 : 0);
    tandem::broadcast(world, flags, 0);
    CHECK(differing(flags, at::arange(9).remainder(2).eq(1)) == 0);
    const at::Tensor any = at::arange(9).eq(rank);
    tandem::all_reduce(world, any, tandem::Max{});
    CHECK(differing(any, at::arange(9).lt(world.size())) == 0);
  });
}

TEST_CASE("C012: complex tensors are refused on all ranks, and pass as pairs of reals") {
  tandem::test::on_ranks(tandem::test::ranks(), [](int) {
    auto world = tandem::join<TestTransport>();
    const at::Tensor tensor = at::complex(at::ones({2}), at::tensor({1.0F, -2.0F}));
    const auto refusal = [](const char* reduction) {
      return std::string("tandem: all_reduce: the tensor has dtype ComplexFloat, which is not supported for ") +
             reduction + "; pass at::view_as_real(tensor)";
    };
    CHECK(said(world, [&](auto& w) { tandem::all_reduce(w, tensor, tandem::Sum{}); }) == refusal("Sum"));
    CHECK(said(world, [&](auto& w) { tandem::all_reduce(w, tensor, tandem::Max{}); }) == refusal("Max"));
    CHECK(said(world, [&](auto&) {
            tandem::view_of(tensor, "all_reduce", "the tensor", tandem::reduction_name<tandem::Prod>());
          }) == refusal("Prod"));
    tandem::all_reduce(world, at::view_as_real(tensor), tandem::Sum{});
    CHECK(differing(at::real(tensor), at::ones({2}) * world.size()) == 0);
    CHECK(differing(at::imag(tensor), at::tensor({1.0F, -2.0F}) * world.size()) == 0);
  });
}

TEST_CASE("a tensor without dimensions is one element") {
  const int ranks = tandem::test::ranks();
  tandem::test::on_ranks(ranks, [&](int rank) {
    auto world = tandem::join<TestTransport>();
    const at::Tensor scalar = at::scalar_tensor(rank + 1, at::kFloat);
    tandem::all_reduce(world, scalar, tandem::Sum{});
    CHECK(scalar.dim() == 0);
    CHECK(scalar.item<float>() == static_cast<float>(ranks * (ranks + 1) / 2));
    const at::Tensor whole = at::empty({ranks}, at::kLong);
    tandem::all_gather(world, at::scalar_tensor(rank, at::kLong), whole);
    CHECK(differing(whole, at::arange(ranks)) == 0);
  });
}

TEST_CASE("tensors that are not plain memory are refused by name, and the communicator stays usable") {
  tandem::test::on_ranks(tandem::test::ranks(), [](int) {
    auto world = tandem::join<TestTransport>();
    const auto reduce = [](const at::Tensor& tensor) {
      return [tensor](auto& w) { tandem::all_reduce(w, tensor, tandem::Sum{}); };
    };
    CHECK(said(world, reduce(at::Tensor())) == "tandem: all_reduce: the tensor is undefined; give it a value first");
    CHECK(said(world, reduce(at::zeros({3, 2}).t())) ==
          "tandem: all_reduce: the tensor is not contiguous (sizes [2, 3], strides [1, 2]); pass tensor.contiguous()");
    CHECK(said(world, reduce(at::zeros({1}).expand({4}))) ==
          "tandem: all_reduce: the tensor is not contiguous (sizes [4], strides [0]); pass tensor.contiguous()");
    CHECK(said(world, reduce(at::zeros({2, 2}).to_sparse())) ==
          "tandem: all_reduce: the tensor is sparse; pass tensor.to_dense()");
    CHECK(said(world, reduce(at::empty({2}, at::TensorOptions().device(at::kMeta)))) ==
          "tandem: all_reduce: the tensor is on meta and this transport moves host memory; pass tensor.cpu()");
    CHECK(said(world, reduce(at::imag(at::conj(at::ones({1}, at::kComplexFloat))).clone())) == "nothing");
    CHECK(said(world, [](auto& w) { tandem::all_gather(w, at::Tensor(), at::zeros({4})); }) ==
          "tandem: all_gather: the input is undefined; give it a value first");
    CHECK(said(world, [](auto& w) {
            tandem::broadcast(w, at::zeros({3, 2}).t(), 0);
          }).find("tandem: broadcast: ") == 0);
    CHECK(said(world, [](auto& w) { tandem::send(w, at::Tensor(), 0); }).find("tandem: send: ") == 0);
    CHECK(said(world, [](auto& w) { tandem::recv(w, at::Tensor(), 0); }).find("tandem: recv: ") == 0);
    CHECK(said(world, [](auto& w) {
            tandem::all_reduce(w, at::zeros({2}), at::zeros({2}, at::kDouble), tandem::Sum{});
          }) == "tandem: all_reduce: the input is float32 and the output float64; they must have one dtype");
    tandem::barrier(world);
  });
}

TEST_CASE("C016: in place on a leaf that requires grad, on its gradient, and on a view of it") {
  const int ranks = tandem::test::ranks();
  tandem::test::on_ranks(ranks, [&](int rank) {
    auto world = tandem::join<TestTransport>();
    at::Tensor leaf = numbers(rank, 6, at::kFloat).view({2, 3}).set_requires_grad(true);
    tandem::broadcast(world, leaf, 0);
    CHECK(differing(leaf, numbers(0, 6, at::kFloat).view({2, 3})) == 0);
    tandem::all_reduce(world, leaf, tandem::Avg{});
    CHECK(differing(leaf, numbers(0, 6, at::kFloat).view({2, 3})) == 0);
    tandem::all_reduce(world, leaf[1], tandem::Sum{});
    CHECK(differing(leaf[1], numbers(0, 6, at::kFloat).slice(0, 3, 6) * ranks) == 0);
    CHECK(leaf.is_leaf());
    CHECK(leaf.requires_grad());
    CHECK(leaf.grad_fn() == nullptr);
    leaf.mutable_grad() = numbers(rank, 6, at::kFloat).view({2, 3});
    tandem::all_reduce(world, leaf.mutable_grad(), tandem::Max{});
    CHECK(differing(leaf.grad(), numbers(ranks - 1, 6, at::kFloat).view({2, 3})) == 0);
  });
}

TEST_CASE("autograd notices when a value it saved was changed by a collective") {
  tandem::test::on_ranks(tandem::test::ranks(), [](int) {
    auto world = tandem::join<TestTransport>();
    const at::Tensor w = at::ones({3}).set_requires_grad(true);
    const at::Tensor y = (w * 2).exp();  // its backward needs y
    tandem::all_reduce(world, y, tandem::Sum{});
    CHECK_THROWS_WITH(y.sum().backward(), doctest::Contains("modified by an inplace operation"));
  });
}

TEST_CASE("C020: views that start anywhere; their neighbours stay as they are") {
  const int ranks = tandem::test::ranks();
  tandem::test::on_ranks(ranks, [&](int rank) {
    auto world = tandem::join<TestTransport>();
    for (const at::ScalarType type : {at::kByte, at::kBFloat16, at::kFloat, at::kDouble}) {
      for (std::int64_t start = 1; start <= 7; ++start) {
        const at::Tensor whole = at::full({1040}, 9, type);
        const at::Tensor view = whole.narrow(0, start, 1021);
        view.fill_(rank + 1);
        tandem::all_reduce(world, view, tandem::Sum{});
        const at::Tensor expected = at::full({1040}, 9, type);
        expected.narrow(0, start, 1021).fill_(ranks * (ranks + 1) / 2);
        CHECK(differing(whole, expected) == 0);
      }
    }
  });
}

TEST_CASE("a tensor in the arena is registered, works with autograd, and outlives its communicator") {
  tandem::test::on_ranks(tandem::test::ranks(), [](int rank) {
    at::Tensor kept;
    {
      auto world = tandem::join<TestTransport>();
      const at::Tensor tensor = tandem::arena_empty(world, {5, 40'000}, at::kFloat);
      CHECK(tensor.is_contiguous());
      CHECK(tensor.sizes() == at::IntArrayRef({5, 40'000}));
      CHECK(world.arena()->contains(tensor.data_ptr(), tensor.nbytes()));
      tensor.fill_(rank + 1);
      tandem::all_reduce<DirectIfAny>(world, tensor, tandem::Sum{});  // Direct refuses what is not registered
      CHECK(tensor.eq(world.size() * (world.size() + 1) / 2).all().item<bool>());
      if (TestTransport::has_windows && world.size() > 1) {
        CHECK(said(world, [&](auto& w) {
                tandem::all_reduce<DirectIfAny>(w, at::zeros({40'000}), tandem::Sum{});
              }).find("registered") != std::string::npos);
      }

      at::Tensor leaf = tandem::arena_empty(world, {3});
      leaf.fill_(2);
      leaf.set_requires_grad(true);
      leaf.pow(2).sum().backward();
      CHECK(leaf.grad()[0].item<float>() == 4.0F);
      CHECK_THROWS(leaf.detach().resize_({100'000'000}));  // would leave the arena
      CHECK(tandem::arena_empty(world, {0}).numel() == 0);
      CHECK(tandem::arena_empty(world, {}, at::kLong).numel() == 1);

      // Memory that was given back is used again.
      const void* first = tandem::arena_empty(world, {1000}).data_ptr();
      CHECK(tandem::arena_empty(world, {1000}).data_ptr() == first);
      kept = tensor;
      tandem::barrier(world);
    }
    CHECK(kept[4][39'999].item<float>() > 0);
    kept.add_(1);
  });
}
