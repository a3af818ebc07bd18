// SPDX-License-Identifier: Apache-2.0
// explain() says what the ledger then measures: for every verb, at sizes on both sides of every threshold, with buffers
// in the arena, outside of it and mixed.
#include "tandem/collective/explain.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <concepts>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "support/collective_laws.hpp"
#include "tandem/collective/all_reduce_coalesced.hpp"
#include "tandem/collective/all_to_all.hpp"
#include "tandem/collective/async.hpp"
#include "tandem/collective/gather.hpp"
#include "tandem/collective/reduce.hpp"
#include "tandem/collective/scatter.hpp"
#include "tandem/collective/send_recv.hpp"

using namespace tandem;
using namespace tandem::test;

namespace {

/// One call of a verb: what it is supposed to do, what it does, and by which ways it may go.
struct Deed {
  Verb verb;
  std::uint64_t bytes;
  Supposing supposing;
  std::function<void()> run;
};

/// Explains, then does it, on all ranks; holds bytes against the own ledger, and the sum of all ranks' against `total`.
template <class Algorithm = Auto>
Path check(World& world, std::atomic<std::uint64_t>& sum, const Deed& call) {
  const Explanation said = explain<Algorithm>(world, call.verb, call.bytes, call.supposing);
  CAPTURE(said.text());
  if (world.rank() == 0) sum = 0;
  barrier(world);
  const Ledger before = world.ledger();
  call.run();
  const Ledger used = world.ledger() - before;
  sum += used.measured;
  barrier(world);
  if (used.measured != said.bytes) FAIL_CHECK("measured " << used.measured << ": " << said.text());
  if (!used.balanced()) FAIL_CHECK("not balanced: " << said.text());
  const bool of_one_rank = said.path == Path::message;
  if (!of_one_rank && sum != said.total) FAIL_CHECK("all ranks measured " << sum << ": " << said.text());
  if (said.total < said.least) FAIL_CHECK("less than must move: " << said.text());
  if (said.path == Path::direct && said.total != said.least && said.verb != Verb::reduce &&
      said.verb != Verb::all_to_all_v)
    FAIL_CHECK("Direct moves the least: " << said.text());
  barrier(world);
  return said.path;
}

/// Ranks' buffers, of which those of `registered` ranks lie in the arena.
struct Memory {
  GuardedBuffer<float> in, out, part;
  Memory(const World& world, Registered registered, std::size_t count, std::size_t own)
      : in(arena_for(world, registered), count),
        out(arena_for(world, registered), count),
        part(arena_for(world, registered), own) {
    in.fill(samples<float>(count, world.rank()));
  }
  std::span<const float> input() { return in.span(); }
  std::span<const float> own() { return part.span(); }
};

Registration registration_of(const World& world, Registered registered) {
  if (registered == Registered::nowhere) return Registration::none;
  return registered == Registered::everywhere || world.size() == 1 ? Registration::all : Registration::some;
}

const std::vector<std::size_t> sizes{0, 2, 24, 2040, 2064, 61440, 144000};  // divisible by 2, 3 and 4; 8 KiB are 2048

}  // namespace

TEST_CASE("every verb does what explain says, in bytes of each rank and of all") {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    std::atomic<std::uint64_t> sum{0};
    on_threads(ranks, [&](World& world) {
      const auto n = static_cast<std::size_t>(ranks);
      const auto self = static_cast<std::size_t>(world.rank());
      for (const Registered registered : {Registered::nowhere, Registered::everywhere, Registered::on_last_rank}) {
        for (std::size_t count : sizes) {
          count = count / n * n;
          const std::uint64_t bytes = count * sizeof(float);
          std::vector<std::size_t> counts(n, count / n);  // uneven: the first rank gives half of its own to the last
          counts.back() += counts.front() - counts.front() / 2;
          counts.front() /= 2;
          if (n == 1) counts.front() = count;
          Memory even(world, registered, count, count / n);
          Memory uneven(world, registered, count, counts[self]);
          Supposing s;
          s.registration = registration_of(world, registered);
          Supposing v = s;
          v.counts = counts;
          const auto root = static_cast<int>(n) - 1;  // registered when only the last rank is
          Supposing r = s;
          r.root = root;
          Supposing rv = v;
          rv.root = root;
          const auto one = [&](Verb verb, const Supposing& supposing, const std::function<void()>& run) {
            return check(world, sum, {verb, verb == Verb::barrier ? 0 : bytes, supposing, run});
          };
          const std::span<float> in = even.in.span(), out = even.out.span(), part = even.part.span();
          one(Verb::all_reduce, s, [&] { all_reduce(world, in, Max{}); });
          one(Verb::all_reduce, s, [&] { all_reduce(world, even.input(), out, Max{}); });
          one(Verb::reduce_scatter, s, [&] { reduce_scatter(world, even.input(), part, Max{}); });
          one(Verb::all_gather, s, [&] { all_gather(world, even.own(), out); });
          one(Verb::reduce, r, [&] { reduce(world, even.input(), out, Max{}, root); });
          one(Verb::barrier, s, [&] { barrier(world); });
          one(Verb::reduce_scatter_v, v,
              [&] { reduce_scatter_v(world, uneven.input(), uneven.part.span(), counts, Max{}); });
          one(Verb::all_gather_v, v, [&] { all_gather_v(world, uneven.own(), uneven.out.span(), counts); });
          one(Verb::all_to_all, s, [&] { all_to_all(world, even.input(), out); });
          Supposing in_place = s;
          in_place.in_place = true;
          one(Verb::all_to_all, in_place, [&] { all_to_all(world, std::span<const float>(in), in); });
          // Of rooted verbs, which buffers others read depends on root: with one registered rank only, it is root here.
          Supposing source = r;
          if (registered == Registered::on_last_rank) source.registration = Registration::all;
          source.root_alone = registered == Registered::on_last_rank;
          one(Verb::broadcast, source, [&] { broadcast(world, in, root); });
          one(Verb::scatter, source, [&] { scatter(world, even.input(), part, root); });
          Supposing source_v = rv;
          source_v.registration = source.registration;
          one(Verb::scatter_v, source_v, [&] { scatter_v(world, uneven.input(), uneven.part.span(), counts, root); });
          if (registered != Registered::on_last_rank) {
            one(Verb::gather, r, [&] { gather(world, even.own(), out, root); });
            one(Verb::gather_v, rv, [&] { gather_v(world, uneven.own(), uneven.out.span(), counts, root); });
          }
          // What rank i sends to rank j: all different, and each row at most `count` long.
          std::vector<std::size_t> matrix(n * n), sent(n), received(n);
          for (std::size_t i = 0; i < n; ++i) {
            for (std::size_t j = 0; j < n; ++j) matrix[i * n + j] = count / n * (i + j + 1) / (2 * n);
          }
          for (std::size_t j = 0; j < n; ++j) {
            sent[j] = matrix[self * n + j];
            received[j] = matrix[j * n + self];
          }
          Supposing pairs = s;
          pairs.counts = matrix;
          const std::size_t given = std::accumulate(sent.begin(), sent.end(), std::size_t{0});
          const std::size_t taken = std::accumulate(received.begin(), received.end(), std::size_t{0});
          one(Verb::all_to_all_v, pairs,
              [&] { all_to_all_v(world, even.input().first(given), sent, out.first(taken), received); });

          const std::vector<std::span<float>> list{in.first(count / 3), in.subspan(count / 3), {}};
          one(Verb::all_reduce_coalesced, s,
              [&] { all_reduce_coalesced(world, std::span<const std::span<float>>(list), Max{}); });

          Supposing later = s;
          later.asynchronous = true;
          one(Verb::all_reduce, later, [&] { all_reduce_async(world, in, Max{}).wait(); });
          one(Verb::reduce_scatter, later, [&] { reduce_scatter_async(world, even.input(), part, Max{}).wait(); });
          one(Verb::all_gather, later, [&] { all_gather_async(world, even.own(), out).wait(); });
          source.asynchronous = true;
          one(Verb::broadcast, source, [&] { broadcast_async(world, in, root).wait(); });

          if (n > 1) {
            const int next = (world.rank() + 1) % ranks;
            const int before = (world.rank() + ranks - 1) % ranks;
            one(Verb::send_recv, s, [&] { send_recv(world, even.input(), next, out, before); });
            one(world.rank() == 0 ? Verb::send : Verb::recv, s, [&] {
              if (world.rank() == 0) send(world, even.input(), 1);
              if (world.rank() == 1) recv(world, out, 0);
            });
          }
        }
      }
    });
  }
}

TEST_CASE("forced algorithms") {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    std::atomic<std::uint64_t> sum{0};
    on_threads(ranks, [&](World& world) {
      const auto n = static_cast<std::size_t>(ranks);
      for (std::size_t count : {std::size_t{1200}, std::size_t{61440}}) {
        Memory memory(world, Registered::everywhere, count, count / n);
        const std::span<float> in = memory.in.span(), out = memory.out.span(), part = memory.part.span();
        Supposing s;
        s.registration = Registration::all;
        const auto each = [&]<class Algorithm>(Algorithm) {
          const auto one = [&](Verb verb, const std::function<void()>& run) {
            const Path path = check<Algorithm>(world, sum, {verb, count * sizeof(float), s, run});
            if (Algorithm::number != 0) CHECK(std::string(name_of(path)) == (ranks == 1 ? "Alone" : Algorithm::name));
          };
          one(Verb::all_reduce, [&] { all_reduce<Algorithm>(world, in, Max{}); });
          if constexpr (!std::same_as<Algorithm, Naive>) {
            one(Verb::reduce_scatter, [&] { reduce_scatter<Algorithm>(world, memory.input(), part, Max{}); });
            one(Verb::all_gather, [&] { all_gather<Algorithm>(world, memory.own(), out); });
          }
          if constexpr (!std::same_as<Algorithm, Pairwise>) {
            one(Verb::broadcast, [&] { broadcast<Algorithm>(world, in, 0); });
          }
        };
        each(DirectIfAny{});
        each(Ring{});
        each(Pairwise{});
        each(Naive{});
      }
    });
  }
}

TEST_CASE("without windows the number of ranks decides how long hops count for more than bytes") {
  on_threads(4, [](World& world) {
    if (TestTransport::has_windows) return;
    const auto way = [&](Verb verb, std::uint64_t bytes) { return explain(world, verb, bytes).path; };
    CHECK(way(Verb::all_reduce, 21'844) == Path::naive);
    CHECK(way(Verb::all_reduce, 21'848) == Path::pairwise);
    CHECK(way(Verb::all_reduce, 512 << 10) == Path::pairwise);
    CHECK(way(Verb::all_reduce, (512 << 10) + 4) == Path::ring);
    CHECK(way(Verb::broadcast, 21'844) == Path::naive);
    CHECK(way(Verb::broadcast, 21'848) == Path::ring);
    CHECK(way(Verb::all_gather, 64 << 10) == Path::pairwise);
    CHECK(way(Verb::all_gather, 4 << 20) == Path::ring);
    CHECK(way(Verb::reduce_scatter, 4 << 20) == Path::pairwise);
  });
}

TEST_CASE(
    "what goes to all others is copied in once where memory is shared, between two ranks only from one to the other") {
  for (const int ranks : {2, 3}) {
    on_threads(ranks, [&](World& world) {
      if (!TestTransport::has_windows) return;
      const Explanation said = explain(world, Verb::broadcast, 1 << 20, {.registration = Registration::some});
      CHECK(said.path == Path::bounce);
      CHECK(said.why == "not all of the ranks' buffers are registered, and what a rank gives goes to all others");
      CHECK(said.synchronisations == 1);
      CHECK((explain(world, Verb::all_gather, 3 << 20).path == Path::bounce) == (ranks > 2));
      const std::vector<std::size_t> counts(static_cast<std::size_t>(ranks), 1 << 18);
      const auto sum = static_cast<std::uint64_t>(ranks) << 20;
      CHECK((explain(world, Verb::all_gather_v, sum, {.counts = counts}).path == Path::bounce) == (ranks > 2));
      CHECK(explain(world, Verb::all_gather, 3 << 20, {.asynchronous = true}).path != Path::bounce);
    });
  }
}

TEST_CASE("the way, its reason and the bound in words; calls that there are not") {
  on_threads(2, [](World& world) {
    Supposing registered;
    registered.registration = Registration::all;
    const Explanation large = explain(world, Verb::all_reduce, 1 << 20, registered);
    CHECK(large.bytes == 1 << 20);
    CHECK(large.total == 2 << 20);
    CHECK(large.least == 2 << 20);
    if (TestTransport::has_windows) {
      CHECK(large.path == Path::direct);
      CHECK(large.text() ==
            "all_reduce of 1.00 MiB on rank " + std::to_string(world.rank()) +
                " of 2: Direct, since all ranks' buffers are registered; this rank moves 1048576 bytes, "
                "all ranks 2097152 where at least 2097152 must move, in 2 synchronisations");
    } else {
      CHECK(large.path == Path::ring);
      CHECK(large.why == "the ranks of Tcp do not map each other's memory");
    }
    CHECK(explain(world, Verb::all_reduce, 8).path == Path::line);
    CHECK(explain(world, Verb::all_reduce, 12).path == Path::staged);
    CHECK(explain(world, Verb::all_reduce, 8192).path == Path::staged);
    CHECK(explain(world, Verb::all_reduce, 8196).path == Path::naive);
    const bool windows = TestTransport::has_windows;
    CHECK(explain(world, Verb::all_reduce, (64 << 10) + 4).path == (windows ? Path::naive : Path::ring));
    CHECK(explain(world, Verb::broadcast, 8196).path == (windows ? Path::bounce : Path::naive));
    CHECK(explain(world, Verb::reduce_scatter, 8196).path == Path::pairwise);
    CHECK(explain(world, Verb::all_gather, 16384).path == Path::staged);
    CHECK(explain(world, Verb::all_gather, 16392).path == Path::ring);
    if (world.protocol().buffers().reads_others()) {
      // Whether ranks outnumber processors is the machine's affair; sizes are those of either.
      const bool crowded = world.protocol().crowded();
      const std::uint64_t most = (crowded ? 64U : 16U) << 10;
      CHECK(explain(world, Verb::all_gather, 2 * most).path == Path::ring);
      CHECK(explain(world, Verb::all_gather, 2 * most + 8).path == Path::fetch);
      CHECK(explain(world, Verb::all_to_all, 2 * most).path == Path::pairwise);
      CHECK(explain(world, Verb::all_to_all, 2 * most + 8).path == Path::fetch);
      const Supposing pending{.asynchronous = true};
      CHECK(explain(world, Verb::broadcast, (crowded ? 32U : 64U) << 10, pending).path == Path::ring);
      CHECK(explain(world, Verb::broadcast, ((crowded ? 32U : 64U) << 10) + 4, pending).path == Path::fetch);
      const std::uint64_t folded = (crowded ? 512U : 128U) << 10;
      const Explanation streamed = explain(world, Verb::all_reduce, folded);
      CHECK(streamed.path == Path::naive);
      CHECK(streamed.why == "none of the ranks' buffers are registered, and so little is streamed sooner than fetched");
      const Explanation fetched = explain(world, Verb::all_reduce, folded + 8);
      CHECK(fetched.path == Path::fetch);
      CHECK(fetched.synchronisations == 3);
      CHECK(fetched.why ==
            "none of the ranks' buffers are registered, and the system lets ranks read each other's memory");
      CHECK(explain(world, Verb::all_reduce, folded + 8, {.asynchronous = true}).path == Path::naive);
      CHECK(explain(world, Verb::all_to_all, 1 << 20, {.in_place = true}).path == Path::pairwise);
    }
    const auto refused = [&](auto call) { CHECK_THROWS_WITH_AS(call(), doctest::Contains("explain: "), Error); };
    const Explanation empty = explain(world, Verb::barrier, 0);
    CHECK(empty.text() == "barrier of 0 B on rank " + std::to_string(world.rank()) +
                              " of 2: Line, since it carries no bytes: the flags are all there is; this rank moves 0 "
                              "bytes, all ranks 0 where at least 0 must move, in 1 synchronisation");
    CHECK_THROWS_WITH_AS((void)explain(world, Verb::barrier, 8),
                         doctest::Contains("explain: it carries no bytes, so no 8"), Error);
    refused([&] { (void)explain(world, Verb::split, 8); });
    refused([&] { (void)explain(world, Verb::all_reduce, 7); });
    refused([&] { (void)explain<Naive>(world, Verb::all_gather, 8); });
    refused([&] { (void)explain(world, Verb::all_to_all_v, 8); });
    const std::vector<std::size_t> counts{1, 2};
    refused([&] { (void)explain(world, Verb::all_gather_v, 8, {.counts = counts}); });
    CHECK_THROWS_AS((void)explain(world, Verb::broadcast, 8, {.root = 2}), Error);
    CHECK_FALSE(world.poisoned());
  });
}
