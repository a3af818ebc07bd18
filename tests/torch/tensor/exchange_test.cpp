// SPDX-License-Identifier: Apache-2.0
// On at::Tensor: the verbs with a root, with counts by rank, and those that exchange parts; their forms on lists; and
// outputs that share memory.
#include <torch/torch.h>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/ranks.hpp"
#include "support/torch_tensors.hpp"
#include "support/torch_training.hpp"
#include "support/worlds.hpp"
#include "tandem/tandem.hpp"

namespace {

using tandem::test::differing;
using tandem::test::numbers;
using tandem::test::said;
using tandem::test::TestTransport;
using tandem::test::World;

/// What `from` has for `to`, `count` elements of it.
at::Tensor part(int from, int to, std::int64_t count, at::ScalarType type) {
  return numbers(3 * from + to, count, type);
}
/// f(r) of every rank, one after the other.
template <class F>
at::Tensor row(int ranks, F f) {
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < ranks; ++rank) parts.push_back(f(rank));
  return at::cat(parts);
}
template <class F>
std::vector<std::size_t> counts_of(int ranks, F f) {
  std::vector<std::size_t> counts;
  for (int rank = 0; rank < ranks; ++rank) counts.push_back(static_cast<std::size_t>(f(rank)));
  return counts;
}

void verbs_with_a_root(World& world, std::int64_t count, at::ScalarType type, int root) {
  const int ranks = world.size();
  const bool is_root = world.rank() == root;
  const at::Tensor nothing;
  const at::Tensor mine = numbers(world.rank(), count, type);
  const at::Tensor all = row(ranks, [&](int r) { return numbers(r, count, type); });
  const auto length = [&](int r) { return count + r; };
  const auto counts = counts_of(ranks, length);
  const at::Tensor all_v = row(ranks, [&](int r) { return numbers(r, length(r), type); });
  const at::Tensor mine_v = numbers(world.rank(), length(world.rank()), type);

  at::Tensor out = is_root ? at::empty_like(all) : nothing;
  tandem::gather(world, mine, out, root);
  if (is_root) CHECK(differing(out, all) == 0);
  out = is_root ? at::empty_like(all_v) : nothing;
  tandem::gather_v(world, mine_v, out, counts, root);
  if (is_root) CHECK(differing(out, all_v) == 0);
  out = at::empty_like(mine);
  tandem::scatter(world, is_root ? all : nothing, out, root);
  CHECK(differing(out, mine) == 0);
  out = at::empty_like(mine_v);
  tandem::scatter_v(world, is_root ? all_v : nothing, out, counts, root);
  CHECK(differing(out, mine_v) == 0);
}

void verbs_between_all(World& world, std::int64_t count, at::ScalarType type) {
  const int ranks = world.size();
  const int rank = world.rank();
  const auto length = [&](int from, int to) { return count + from + 2 * to; };
  const auto sent = [&](int to) { return length(rank, to); };
  const auto received = [&](int from) { return length(from, rank); };

  const at::Tensor all = row(ranks, [&](int from) { return part(from, rank, count, type); });
  at::Tensor out = at::empty_like(all);
  tandem::all_to_all(world, row(ranks, [&](int to) { return part(rank, to, count, type); }), out);
  CHECK(differing(out, all) == 0);
  const at::Tensor all_v = row(ranks, [&](int from) { return part(from, rank, received(from), type); });
  out = at::empty_like(all_v);
  tandem::all_to_all_v(world, row(ranks, [&](int to) { return part(rank, to, sent(to), type); }),
                       counts_of(ranks, sent), out, counts_of(ranks, received));
  CHECK(differing(out, all_v) == 0);

  const auto shared = counts_of(ranks, [&](int r) { return length(0, r); });
  const at::Tensor whole = row(ranks, [&](int r) { return numbers(r, length(0, r), type); });
  out = at::empty_like(whole);
  tandem::all_gather_v(world, numbers(rank, length(0, rank), type), out, shared);
  CHECK(differing(out, whole) == 0);

  const int next = (rank + 1) % ranks;
  const int before = (rank + ranks - 1) % ranks;
  out = at::empty({count}, type);
  tandem::send_recv(world, numbers(rank, count, type), next, out, before);
  CHECK(differing(out, numbers(before, count, type)) == 0);
}

void reductions(World& world, std::int64_t count, at::ScalarType type, int root) {
  const int ranks = world.size();
  const bool is_root = world.rank() == root;
  const auto counts = counts_of(ranks, [&](int r) { return count + r; });
  std::int64_t total = 0;
  std::int64_t own = 0;
  for (int r = 0; r < ranks; ++r) {
    if (r == world.rank()) own = total;
    total += count + r;
  }
  at::Tensor sum = at::zeros({total}, at::kLong);
  for (int r = 0; r < ranks; ++r) sum += numbers(r, total, at::kLong);
  sum = sum.to(type);
  const at::Tensor mine = numbers(world.rank(), total, type);

  const at::Tensor out = is_root ? at::empty_like(mine) : at::Tensor();
  tandem::reduce(world, mine, out, tandem::Sum{}, root);
  if (is_root) CHECK(differing(out, sum) == 0);
  const at::Tensor in_place = mine.clone();
  tandem::reduce(world, in_place, tandem::Sum{}, root);
  CHECK(differing(in_place, is_root ? sum : mine) == 0);
  const at::Tensor run = at::empty({count + world.rank()}, type);
  tandem::reduce_scatter_v(world, mine, run, counts, tandem::Sum{});
  CHECK(differing(run, sum.narrow(0, own, run.numel())) == 0);
}

void lists(World& world, std::int64_t count, at::ScalarType type) {
  const int ranks = world.size();
  const int rank = world.rank();
  const auto empties = [&](auto length) {
    std::vector<at::Tensor> tensors;
    for (int r = 0; r < ranks; ++r) tensors.push_back(at::zeros({length(r), 2}, type));
    return tensors;
  };
  const auto pair = [&](int r, std::int64_t length) { return numbers(r, 2 * length, type).view({length, 2}); };

  auto outs = empties([&](int r) { return count + r; });
  tandem::all_gather(world, pair(rank, count + rank), outs);
  for (int r = 0; r < ranks; ++r) CHECK(differing(outs[static_cast<std::size_t>(r)], pair(r, count + r)) == 0);
  const at::Tensor own = outs[static_cast<std::size_t>(rank)];
  for (int r = 0; r < ranks; ++r) {
    if (r != rank) outs[static_cast<std::size_t>(r)].zero_();
  }
  tandem::all_gather(world, own, outs);  // in place
  for (int r = 0; r < ranks; ++r) CHECK(differing(outs[static_cast<std::size_t>(r)], pair(r, count + r)) == 0);

  const int root = ranks - 1;
  outs = empties([&](int) { return count; });
  tandem::gather(world, pair(rank, count), rank == root ? outs : std::vector<at::Tensor>{}, root);
  for (int r = 0; rank == root && r < ranks; ++r) {
    CHECK(differing(outs[static_cast<std::size_t>(r)], pair(r, count)) == 0);
  }
  std::vector<at::Tensor> ins;
  for (int r = 0; r < ranks; ++r) ins.push_back(pair(r, count));
  const at::Tensor out = at::zeros({count, 2}, type);
  tandem::scatter(world, rank == root ? ins : std::vector<at::Tensor>{}, out, root);
  CHECK(differing(out, pair(rank, count)) == 0);

  ins.clear();
  for (int to = 0; to < ranks; ++to) ins.push_back(pair(rank, count + to));
  outs = empties([&](int) { return count + rank; });
  tandem::all_to_all(world, ins, outs);
  for (int from = 0; from < ranks; ++from) {
    CHECK(differing(outs[static_cast<std::size_t>(from)], pair(from, count + rank)) == 0);
  }
}

}  // namespace

TEST_CASE("every verb that exchanges, on every dtype") {
  const int ranks = tandem::test::ranks();
  tandem::test::on_ranks(ranks, [&](int) {
    auto world = tandem::join<TestTransport>();
    for (const at::ScalarType type : tandem::test::all_dtypes) {
      for (const std::int64_t count : {0, 1, 1021}) {
        INFO(c10::toString(type), " x ", count);
        for (int root = 0; root < ranks; ++root) {
          verbs_with_a_root(world, count, type, root);
          if (type != at::kBool) reductions(world, count, type, root);
        }
        verbs_between_all(world, count, type);
        lists(world, count, type);
      }
    }
    CHECK(world.ledger().balanced());
  });
}

TEST_CASE("C002: outputs that share memory, or are no memory of their own, are refused before anything is announced") {
  const int ranks = tandem::test::ranks();
  if (ranks == 1) return;
  tandem::test::on_ranks(ranks, [&](int rank) {
    auto world = tandem::join<TestTransport>();
    const auto place = static_cast<std::size_t>(rank);
    const at::Tensor mine = numbers(rank, 4, at::kFloat);
    const at::Tensor t = at::zeros({4});
    std::vector<at::Tensor> outs(static_cast<std::size_t>(ranks), t);
    CHECK(said(world, [&](auto& w) { tandem::all_gather(w, mine, outs); }) ==
          "tandem: all_gather: output 0 and output 1 share memory; give each its own");
    for (auto& it : outs) it = at::zeros({4});
    outs[0] = outs[1].narrow(0, 1, 3);  // in part
    CHECK(said(world, [&](auto& w) { tandem::all_gather(w, mine, outs); }).find("share memory") != std::string::npos);
    outs[0] = at::zeros({1}).expand({4});
    CHECK(said(world, [&](auto& w) { tandem::all_gather(w, mine, outs); }) ==
          "tandem: all_gather: output 0 is not contiguous (sizes [4], strides [0]); pass tensor.contiguous()");
    outs[0] = at::zeros({4}, at::kDouble);
    CHECK(said(world, [&](auto& w) { tandem::all_gather(w, mine, outs); }) ==
          "tandem: all_gather: output 0 is float64 and output 1 float32; they must have one dtype");
    outs.pop_back();
    CHECK(said(world, [&](auto& w) { tandem::all_gather(w, mine, outs); }).find("give one for each") !=
          std::string::npos);
    outs.assign(static_cast<std::size_t>(ranks), {});
    for (auto& it : outs) it = at::zeros({4});
    const at::Tensor other = outs[(place + 1) % outs.size()];
    CHECK(said(world, [&](auto& w) { tandem::all_gather(w, other, outs); }).find("the input and output ") !=
          std::string::npos);
    CHECK(said(world, [&](auto& w) { tandem::all_to_all(w, outs, outs); }).find("input 0 and output 0 share memory") !=
          std::string::npos);
    CHECK(said(world, [&](auto& w) { tandem::gather(w, mine, outs, 0); }) == "nothing");

    const at::Tensor base = at::zeros({4 * ranks + 1});
    const at::Tensor whole = base.narrow(0, 0, 4 * ranks);
    CHECK(said(world, [&](auto& w) {
            tandem::all_gather(w, base.narrow(0, 4 * rank + 1, 4), whole);
          }).find("input and output overlap") != std::string::npos);
    CHECK(said(world, [&](auto& w) {
            tandem::all_gather(w, mine, at::zeros({1}).expand({4 * ranks}));
          }).find("the output is not contiguous") != std::string::npos);
    const at::Tensor own = base.narrow(0, 4 * rank, 4);
    own.copy_(mine);
    tandem::all_gather(world, own, whole);
    CHECK(differing(whole, row(ranks, [&](int r) { return numbers(r, 4, at::kFloat); })) == 0);
  });
}

TEST_CASE("every form refuses what is no plain memory by the argument's name") {
  tandem::test::on_ranks(tandem::test::ranks(), [](int rank) {
    auto world = tandem::join<TestTransport>();
    const at::Tensor good = at::zeros({4});
    const at::Tensor bad = at::zeros({2, 2}).t();
    const at::Tensor sparse = at::zeros({2, 2}).to_sparse();
    const std::vector<std::size_t> counts(static_cast<std::size_t>(world.size()), 4);
    const auto words = [&](auto call) { return said(world, call); };
    CHECK(words([&](auto& w) { tandem::reduce(w, sparse, good, tandem::Sum{}, rank); }) ==
          "tandem: reduce: the input is sparse; pass tensor.to_dense()");
    CHECK(words([&](auto& w) { tandem::reduce(w, good, at::Tensor(), tandem::Sum{}, rank); }) ==
          "tandem: reduce: the output is undefined; give it a value first");
    CHECK(words([&](auto& w) { tandem::reduce(w, good, good.to(at::kInt), tandem::Sum{}, rank); }) ==
          "tandem: reduce: the input is float32 and the output int32; they must have one dtype");
    CHECK(words([&](auto& w) {
            tandem::reduce_scatter_v(w, bad, good, counts, tandem::Sum{});
          }).find("the input is not contiguous") != std::string::npos);
    CHECK(words([&](auto& w) { tandem::gather(w, good, bad, rank); }).find("the output is not contiguous") !=
          std::string::npos);
    CHECK(words([&](auto& w) { tandem::gather_v(w, sparse, good, counts, rank); }).find("the input is sparse") !=
          std::string::npos);
    CHECK(words([&](auto& w) { tandem::scatter(w, at::Tensor(), good, rank); }).find("the input is undefined") !=
          std::string::npos);
    CHECK(words([&](auto& w) { tandem::scatter_v(w, good, sparse, counts, rank); }).find("the output is sparse") !=
          std::string::npos);
    CHECK(words([&](auto& w) { tandem::all_to_all(w, bad, good); }).find("the input is not") != std::string::npos);
    CHECK(words([&](auto& w) { tandem::all_to_all_v(w, good, counts, sparse, counts); }).find("the output is sparse") !=
          std::string::npos);
    CHECK(words([&](auto& w) { tandem::all_gather_v(w, good, bad, counts); }).find("the output is not") !=
          std::string::npos);
    CHECK(words([&](auto& w) { tandem::send_recv(w, sparse, rank, good, rank); }).find("what is sent is sparse") !=
          std::string::npos);
    CHECK(words([&](auto& w) {
            tandem::send_recv(w, good, rank, at::empty({4}, at::TensorOptions().device(at::kMeta)), rank);
          }).find("what is received is on meta") != std::string::npos);
    tandem::barrier(world);
  });
}

TEST_CASE("C016: leaves that require grad as outputs of the verbs that exchange") {
  const int ranks = tandem::test::ranks();
  tandem::test::on_ranks(ranks, [&](int rank) {
    auto world = tandem::join<TestTransport>();
    const auto leaf_of = [](std::int64_t count) { return at::zeros({count}).set_requires_grad(true); };
    const auto still_leaf = [](const at::Tensor& tensor) {
      return tensor.is_leaf() && tensor.requires_grad() && tensor.grad_fn() == nullptr;
    };
    const at::Tensor all = row(ranks, [&](int r) { return numbers(r, 5, at::kFloat); });
    const at::Tensor scattered = leaf_of(5);
    tandem::scatter(world, all, scattered, 0);
    CHECK(still_leaf(scattered));
    CHECK(differing(scattered, numbers(rank, 5, at::kFloat)) == 0);
    std::vector<at::Tensor> outs;
    for (int r = 0; r < ranks; ++r) outs.push_back(leaf_of(5));
    tandem::all_gather(world, scattered, outs);
    for (int r = 0; r < ranks; ++r) {
      CHECK(still_leaf(outs[static_cast<std::size_t>(r)]));
      CHECK(differing(outs[static_cast<std::size_t>(r)], numbers(r, 5, at::kFloat)) == 0);
    }
    tandem::reduce(world, scattered, tandem::Sum{}, 0);
    CHECK(still_leaf(scattered));
  });
}
