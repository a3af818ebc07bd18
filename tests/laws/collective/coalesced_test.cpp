// SPDX-License-Identifier: Apache-2.0
// Many buffers reduced as one: the bits of the all-reduce over their concatenation, one operation in the books, and
// lists that differ.
#include "tandem/collective/all_reduce_coalesced.hpp"

#include <doctest/doctest.h>

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "support/collective_laws.hpp"

using namespace tandem;
using namespace tandem::test;

namespace {

template <class E>
using Spans = std::span<const std::span<E>>;

/// A buffer each, filled with consecutive runs of `whole`.
template <class E>
std::deque<GuardedBuffer<E>> cut_up(const std::vector<E>& whole, const std::vector<std::size_t>& counts,
                                    const std::shared_ptr<Arena>& arena) {
  std::deque<GuardedBuffer<E>> buffers;
  std::size_t at = 0;
  for (const std::size_t count : counts) {
    buffers.emplace_back(arena, count, buffers.size() % 3);
    buffers.back().fill(part(whole, {at, at + count}));
    at += count;
  }
  return buffers;
}

template <class E, class Op>
void coalesced_law(const std::vector<std::size_t>& counts, const Op& op) {
  std::size_t total = 0;
  for (const std::size_t count : counts) total += count;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    CAPTURE(ranks);
    CAPTURE(total);
    const Case<E, Op> c(ranks, total, op, total);
    on_threads(ranks, [&](World& world) {
      const auto& mine = c.inputs[static_cast<std::size_t>(world.rank())];
      for (const Registered registered : {Registered::nowhere, Registered::on_last_rank}) {
        std::vector<E> flat = mine;
        all_reduce(world, std::span(flat), op);
        auto buffers = cut_up(mine, counts, arena_for(world, registered));
        std::vector<std::span<E>> spans;
        for (auto& it : buffers) spans.push_back(it.span());
        const Ledger before = world.ledger();
        all_reduce_coalesced(world, Spans<E>(spans), op);
        const Ledger used = world.ledger() - before;
        std::size_t at = 0;
        for (std::size_t i = 0; i < counts.size(); ++i) {
          if (!buffers[i].holds(part(flat, {at, at + counts[i]}))) FAIL_CHECK("not the bits of the flat all_reduce");
          if (!buffers[i].holds(part(c.result, {at, at + counts[i]}))) FAIL_CHECK("not the bits of the oracle");
          if (!buffers[i].guards_intact()) FAIL_CHECK("wrote outside buffer " << i);
          at += counts[i];
        }
        if (used.operations != 1 || !used.balanced()) FAIL_CHECK("the ledger: " << used.operations);
      }
    });
  }
}

}  // namespace

TEST_CASE("the bits of one all-reduce over the concatenation") {
  coalesced_law<float>({}, Sum{});
  coalesced_law<float>({1}, Sum{});
  coalesced_law<float>({0, 3, 0, 1, 700, 0}, Sum{});
  coalesced_law<float>({1003, 1, 4097, 0, 20011, 5}, Sum{});
  coalesced_law<BFloat16>({17, 4096, 2, 9001}, PreMulSum<float>{1.0F / 3.0F});
  coalesced_law<Affine>({700, 3, 5000}, Compose{});
}

TEST_CASE("a full arena costs speed on that rank, and nothing else") {
  JoinOptions options;
  options.arena_bytes = std::size_t{1} << 20;
  const Case<float, Sum> c(2, 20011, Sum{}, 3);
  on_threads(
      2,
      [&](World& world) {
        std::optional<ArenaArray<std::byte>> all;
        if (world.rank() == 1) all.emplace(world.arena(), (std::size_t{1} << 20) - page_bytes);
        std::vector<float> data = c.inputs[static_cast<std::size_t>(world.rank())];
        const std::span<float> spans[] = {std::span(data).first(11), std::span(data).subspan(11)};
        all_reduce_coalesced(world, Spans<float>(spans), Sum{});
        CHECK(data == c.result);
      },
      options);
}

TEST_CASE("lists that differ are a mismatch on every rank, and no data moves") {
  const auto must_differ = [](const std::vector<std::vector<std::size_t>>& counts, const std::string& words) {
    on_threads(2, [&](World& world) {
      const std::vector<float> mine = samples<float>(5000, world.rank());
      auto buffers = cut_up(mine, counts[static_cast<std::size_t>(world.rank())], nullptr);
      std::vector<std::span<float>> spans;
      for (auto& it : buffers) spans.push_back(it.span());
      try {
        all_reduce_coalesced(world, Spans<float>(spans), Sum{});
        FAIL_CHECK("rank " << world.rank() << " noticed nothing");
      } catch (const Error& error) {
        CAPTURE(std::string(error.what()));
        CHECK(error.kind() == ErrorKind::mismatch);
        CHECK(std::string(error.what()).find(words) != std::string::npos);
        CHECK(std::string(error.what()).find("coalesced_test.cpp") != std::string::npos);
      }
      std::size_t at = 0;
      for (auto& it : buffers) {
        CHECK(it.holds(part(mine, {at, at + it.span().size()})));
        at += it.span().size();
      }
    });
  };
  must_differ({{10, 20}, {20, 10}}, "the hash of the buffers' counts");
  must_differ({{10, 20}, {10, 20, 0}}, "the hash of the buffers' counts");
  must_differ({{3000, 2000}, {2000, 3000}}, "the hash of the buffers' counts");
  must_differ({{10, 20}, {10, 21}}, "the number of elements");
  must_differ({{}, {0}}, "the hash of the buffers' counts");
}

TEST_CASE("buffers that overlap are refused before anything is announced") {
  on_threads(2, [](World& world) {
    std::vector<float> data(100, 1.0F);
    const std::span<float> all(data);
    if (world.rank() == 0) {
      const std::span<float> spans[] = {all.subspan(50, 20), all.first(10), all.subspan(69, 2)};
      CHECK_THROWS_WITH_AS(all_reduce_coalesced(world, Spans<float>(spans), Sum{}),
                           doctest::Contains("buffers 0 and 2 overlap"), Error);
    }
    const std::span<float> spans[] = {all.subspan(50, 20), all.first(50),
                                      all.subspan(70, 30)};  // touch, and in any order
    all_reduce_coalesced(world, Spans<float>(spans), Sum{});
    CHECK(data == std::vector<float>(100, 2.0F));
    CHECK_FALSE(world.poisoned());
  });
}
