// SPDX-License-Identifier: Apache-2.0
// What must hold of the verbs with a root, with counts by rank, and of those that exchange parts between all ranks, as
// seen by one rank: see collective_laws.hpp, whose ways and cases these share.
#pragma once

#include "support/collective_laws.hpp"
#include "tandem/collective/all_to_all.hpp"
#include "tandem/collective/gather.hpp"
#include "tandem/collective/reduce.hpp"
#include "tandem/collective/scatter.hpp"
#include "tandem/collective/send_recv.hpp"

namespace tandem::test {

/// One call: `input` gives `result`, in buffers apart, or in one, where the smaller lies at `place` of the larger.
/// `call(in, out)` makes it. A rank that gets nothing has an empty result, one that gives nothing an empty input.
template <class E, class Call>
void exchange_law(World& world, const std::string& what, How how, const std::vector<E>& input,
                  const std::vector<E>& result, std::size_t place, std::optional<std::uint64_t> bytes, Call call) {
  const auto arena = arena_for(world, how.registered);
  const bool result_is_part = result.size() < input.size();
  const auto with_part = [&](std::vector<E> whole, const std::vector<E>& part_of_it) {
    std::copy(part_of_it.begin(), part_of_it.end(), whole.begin() + static_cast<std::ptrdiff_t>(place));
    return whole;
  };
  const std::vector<E> stale = samples<E>(result.size(), world.rank(), 77);
  const std::vector<E> shared = result_is_part ? input : with_part(stale, input);
  GuardedBuffer<E> in(arena, how.in_place ? shared.size() : input.size(), how.shift);
  GuardedBuffer<E> out(arena, how.in_place ? 0 : result.size(), how.shift + 1);
  in.fill(how.in_place ? shared : input);
  if (!how.in_place) out.fill(stale);
  const auto at = [&](std::size_t count, bool is_part) {
    return is_part ? in.span().subspan(place, count) : in.span();
  };
  const Ledger before = world.ledger();
  if (how.in_place)
    call(std::span<const E>(at(input.size(), !result_is_part)), at(result.size(), result_is_part));
  else
    call(std::span<const E>(in.span()), out.span());
  const auto after = result_is_part ? with_part(input, result) : result;
  if (how.in_place ? !in.holds(after) : !out.holds(result)) FAIL_CHECK(what << "wrong bits");
  if (!how.in_place && !in.holds(input)) FAIL_CHECK(what << "the input changed");
  if (!in.guards_intact() || !out.guards_intact()) FAIL_CHECK(what << "wrote outside its buffer");
  check_ledger(world, before, bytes, what);
}

/// Where the parts of all ranks lie, one after the other; the oracle's own.
inline std::vector<Range> consecutive(const std::vector<std::size_t>& counts) {
  std::vector<Range> ranges;
  for (const std::size_t count : counts) {
    const std::size_t begin = ranges.empty() ? 0 : ranges.back().end;
    ranges.push_back({begin, begin + count});
  }
  return ranges;
}
inline std::vector<std::size_t> equal_counts(int ranks, std::size_t each) {
  return std::vector<std::size_t>(static_cast<std::size_t>(ranks), each);
}
/// About `each` a rank, some with none.
inline std::vector<std::size_t> uneven_counts(int ranks, std::size_t each) {
  std::vector<std::size_t> counts;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank)
    counts.push_back((rank + each) % 3 == 1 ? 0 : each + 5 * rank);
  return counts;
}

/// The documented bytes: `loaded` beside the flags, out of windows, in pieces and when fetched, else `sent`; nothing
/// where it depends on whose buffers are read.
inline std::optional<std::uint64_t> moved_bytes(const World& world, How how, std::size_t staged, bool fetched,
                                                std::uint64_t loaded, std::uint64_t sent) {
  if (world.size() == 1) return 0;
  const bool mixed = seen(how) == Registered::on_last_rank && staged >= 4096;
  if (mixed && (staged <= 8192 || !fetched)) return std::nullopt;
  return staged <= 8192 || seen(how) == Registered::everywhere || fetched ? loaded : sent;
}

/// gather and scatter, equal or not, of what `whole` holds.
template <class E>
void rooted_laws(World& world, const std::vector<std::size_t>& counts, bool equal, int root, How how) {
  const auto rank = static_cast<std::size_t>(world.rank());
  const auto ranges = consecutive(counts);
  const std::vector<E> whole = samples<E>(ranges.back().end, root, 5);
  const std::vector<E> own = part(whole, ranges[rank]);
  const bool is_root = world.rank() == root;
  const std::size_t place = is_root ? ranges[rank].begin : 0;
  const std::vector<E> none;
  const std::uint64_t own_bytes = own.size() * sizeof(E);
  const std::uint64_t others = whole.size() * sizeof(E) - own_bytes;
  const std::string suffix = (equal ? " " : "_v ") + std::string("with root ") + std::to_string(root);
  const std::size_t longest = *std::max_element(counts.begin(), counts.end());

  exchange_law(world, describe(world, ("gather" + suffix).c_str(), "Auto", whole.size(), sizeof(E), how), how, own,
               is_root ? whole : none, place,
               moved_bytes(world, how, longest * sizeof(E), fetches(world, longest * sizeof(E), Kind::moves),
                           is_root ? others : 0, is_root ? 0 : own_bytes),
               [&](std::span<const E> in, std::span<E> out) {
                 equal ? gather(world, in, out, root) : gather_v(world, in, out, counts, root);
               });
  exchange_law(world, describe(world, ("scatter" + suffix).c_str(), "Auto", whole.size(), sizeof(E), how), how,
               is_root ? whole : none, own, place,
               moved_bytes(world, how, whole.size() * sizeof(E),
                           fetches(world, whole.size() * sizeof(E) / counts.size(), Kind::moves),
                           is_root ? 0 : own_bytes, is_root ? others : 0),
               [&](std::span<const E> in, std::span<E> out) {
                 equal ? scatter(world, in, out, root) : scatter_v(world, in, out, counts, root);
               });
}

template <class E>
void all_gather_v_law(World& world, const std::vector<std::size_t>& counts, How how) {
  const auto rank = static_cast<std::size_t>(world.rank());
  const auto ranges = consecutive(counts);
  const std::vector<E> whole = samples<E>(ranges.back().end, 0, 6);
  const std::vector<E> own = part(whole, ranges[rank]);
  const std::size_t before = counts[(rank + counts.size() - 1) % counts.size()];
  const std::size_t longest = *std::max_element(counts.begin(), counts.end());
  const bool bounces = TestTransport::has_windows && world.size() > 2;
  const std::size_t sent = auto_way(longest * sizeof(E), world.size(), false, true) == Way::pairwise
                               ? own.size() * (counts.size() - 1)
                               : whole.size() - before;
  exchange_law(world, describe(world, "all_gather_v", "Auto", whole.size(), sizeof(E), how), how, own, whole,
               ranges[rank].begin,
               moved_bytes(world, how, longest * sizeof(E), bounces || fetches(world, longest * sizeof(E), Kind::moves),
                           (whole.size() - own.size()) * sizeof(E), sent * sizeof(E)),
               [&](std::span<const E> in, std::span<E> out) { all_gather_v(world, in, out, counts); });
}

template <class E>
void all_to_all_law(World& world, std::size_t each, How how) {
  const auto me = static_cast<std::size_t>(world.rank());
  const int ranks = world.size();
  std::vector<E> result;
  for (int from = 0; from < ranks; ++from) {
    const auto theirs = samples<E>(each * static_cast<std::size_t>(ranks), from, 7);
    const auto mine = part(theirs, {each * me, each * (me + 1)});
    result.insert(result.end(), mine.begin(), mine.end());
  }
  const std::vector<E> input = samples<E>(result.size(), world.rank(), 7);
  exchange_law(world, describe(world, "all_to_all", "Auto", input.size(), sizeof(E), how), how, input, result, 0,
               ranks == 1 ? 0 : each * sizeof(E) * static_cast<std::uint64_t>(ranks - 1),
               [&](std::span<const E> in, std::span<E> out) { all_to_all(world, in, out); });
}

/// Elements that go from one rank to another; as many come back where that is needed (in place).
inline std::size_t pair_count(std::size_t each, std::size_t from, std::size_t to, bool symmetric) {
  if (symmetric) return (from + to) % 3 == 1 ? 0 : each + 3 * from + 3 * to;
  return (from + 2 * to + each) % 4 == 1 ? 0 : each + 3 * from + to;
}

template <class E>
void all_to_all_v_law(World& world, std::size_t each, How how) {
  const auto me = static_cast<std::size_t>(world.rank());
  const auto ranks = static_cast<std::size_t>(world.size());
  const auto sent_by = [&](std::size_t from) {
    std::vector<std::size_t> counts;
    for (std::size_t to = 0; to < ranks; ++to) counts.push_back(pair_count(each, from, to, how.in_place));
    return counts;
  };
  std::vector<std::size_t> received;
  std::vector<E> result;
  std::size_t longest = 0;
  for (std::size_t from = 0; from < ranks; ++from) {
    const auto ranges = consecutive(sent_by(from));
    longest = std::max(longest, ranges.back().end);
    const auto mine = part(samples<E>(ranges.back().end, static_cast<int>(from), 8), ranges[me]);
    received.push_back(mine.size());
    result.insert(result.end(), mine.begin(), mine.end());
  }
  const auto sent = sent_by(me);
  const std::vector<E> input = samples<E>(consecutive(sent).back().end, world.rank(), 8);
  const std::uint64_t told = 16 * ranks * (ranks - 1);
  const std::size_t staged = 16 * ranks + longest * sizeof(E);
  const std::uint64_t loaded = (result.size() - received[me]) * sizeof(E);
  const std::uint64_t given = (input.size() - sent[me]) * sizeof(E);
  std::optional<std::uint64_t> bytes =
      how.in_place ? staged <= 8192 ? loaded : given
                   : moved_bytes(world, how, staged, fetches(world, staged / ranks, Kind::moves), loaded, given);
  if (bytes && ranks > 1) *bytes += told;
  exchange_law(world, describe(world, "all_to_all_v", "Auto", input.size(), sizeof(E), how), how, input, result, 0,
               bytes, [&](std::span<const E> in, std::span<E> out) { all_to_all_v(world, in, sent, out, received); });
}

template <class E, class Op>
void reduce_law(World& world, const Case<E, Op>& c, int root, How how) {
  const bool is_root = world.rank() == root;
  const auto others = static_cast<std::uint64_t>(world.size() - 1);
  const std::uint64_t bytes = c.count() * sizeof(E);
  const std::uint64_t owned = sizeof(E) * owned_range(c.count(), sizeof(E), world.size(), world.rank()).size();
  const std::uint64_t direct = owned * (others + (is_root ? 0 : 1));
  const bool staged =
      bytes < 4096 || (bytes <= 8192 && (seen(how) != Registered::everywhere || world.size() > allowed_processors()));
  exchange_law(world, describe(world, "reduce", "Auto", c.count(), sizeof(E), how) + "root " + std::to_string(root),
               how, c.inputs[static_cast<std::size_t>(world.rank())], is_root ? c.result : std::vector<E>{}, 0,
               moved_bytes(world, how, bytes, false,
                           !staged   ? direct
                           : is_root ? others * bytes
                                     : 0,
                           bytes - (is_root ? owned : 0)),
               [&](std::span<const E> in, std::span<E> out) { reduce(world, in, out, c.op, root); });
}

template <class E, class Op>
void reduce_scatter_v_law(World& world, const std::vector<std::size_t>& counts, const Case<E, Op>& c, How how) {
  const auto rank = static_cast<std::size_t>(world.rank());
  const Range run = consecutive(counts)[rank];
  const std::uint64_t whole = c.count() * sizeof(E);
  const std::uint64_t own = run.size() * sizeof(E);
  exchange_law(world, describe(world, "reduce_scatter_v", "Auto", c.count(), sizeof(E), how), how, c.inputs[rank],
               part(c.result, run), run.size() < c.count() ? run.begin : 0,
               moved_bytes(world, how, whole, fetches(world, whole / counts.size(), Kind::folds),
                           own * static_cast<std::uint64_t>(world.size() - 1), whole - own),
               [&](std::span<const E> in, std::span<E> out) { reduce_scatter_v(world, in, out, counts, c.op); });
}

/// Round the circle in steps of any length, messages of different lengths.
template <class E>
void send_recv_law(World& world, std::size_t count, int step, How how) {
  const int ranks = world.size();
  const int to = (world.rank() + step) % ranks;
  const int from = (world.rank() + ranks - step) % ranks;
  const auto message = [&](int rank) {
    return samples<E>(count == 0 ? 0 : count + static_cast<std::size_t>(rank), rank, 9);
  };
  const auto input = message(world.rank());
  exchange_law(world, describe(world, "send_recv", "Auto", count, sizeof(E), how), how, input, message(from), 0,
               step == 0 ? 0 : 128 + input.size() * sizeof(E),
               [&](std::span<const E> in, std::span<E> out) { send_recv(world, in, to, out, from); });
}

/// One, prime, one more than a page and one more than what rides beside the flags; more than a channel holds.
template <class E>
std::vector<std::size_t> exchange_counts() {
  return {0, 1, 1003, 4096 / sizeof(E) + 1, 8192 / sizeof(E) + 1, 90001};
}

/// Every rank is root of the small ones.
template <class F>
void for_each_root(const World& world, std::size_t count, F&& f) {
  for (int root = 0; root < world.size(); ++root) {
    if (count < 1000 || root == static_cast<int>(count) % world.size()) f(root);
  }
}

/// All that moves elements as they are.
template <class E>
void moving_laws(World& world, std::size_t count) {
  for (const How how : all_ways) {
    for (const bool equal : {true, false}) {
      const auto counts = equal ? equal_counts(world.size(), count) : uneven_counts(world.size(), count);
      for_each_root(world, count, [&](int root) { rooted_laws<E>(world, counts, equal, root, how); });
      all_gather_v_law<E>(world, counts, how);
    }
    all_to_all_law<E>(world, count, how);
    all_to_all_v_law<E>(world, count, how);
    for (int step = 0; step < world.size(); ++step) send_recv_law<E>(world, count, step, how);
  }
}

/// All that reduces, held against `c`, the case of as many elements as `counts` has.
template <class E, class Op>
void reducing_laws(World& world, const std::vector<std::size_t>& counts, const Case<E, Op>& c) {
  for (const How how : all_ways) {
    for_each_root(world, c.count(), [&](int root) { reduce_law(world, c, root, how); });
    reduce_scatter_v_law(world, counts, c, how);
  }
}

/// Ranks that disagree: what the last one calls differs from what the others do. All must be told of it in words.
inline constexpr int disagreements = 6;
inline void disagreement_law(World& world, int which) {
  const bool odd = world.rank() == world.size() - 1;
  const auto ranks = static_cast<std::size_t>(world.size());
  std::vector<std::size_t> counts(ranks, 3000);
  if (odd) {  // the same sum
    --counts.front();
    ++counts.back();
  }
  const std::vector<float> run(counts[static_cast<std::size_t>(world.rank())], 1.0F);
  std::vector<float> whole(3000 * ranks);
  std::vector<float> own(run.size());
  const std::string last = std::to_string(world.size() - 1);
  std::string said = "the hash of the counts by rank is";
  try {
    switch (which) {
      case 0:
        gather_v(world, run, std::span(whole), counts, 0);
        break;
      case 1:
        reduce_scatter_v(world, whole, std::span(own), counts, Sum{});
        break;
      case 2:
        all_gather_v(world, run, std::span(whole), counts);
        break;
      case 3:
        said = "root is";
        scatter(world, std::span(whole).first(2999 * ranks), std::span(own).first(2999), odd ? 1 : 0);
        break;
      case 4:
        said = "the number of elements is";
        gather(world, run, std::span(whole).first(odd ? whole.size() : run.size() * ranks), 0);
        break;
      default: {
        said = "rank 0 sends 3000 elements to rank " + last + ", which expects 2999";
        const std::vector<std::size_t> all(ranks, 3000);
        std::vector<std::size_t> expected = all;
        if (odd) --expected.front();
        std::vector<float> other(whole.size() - (odd ? 1 : 0));
        all_to_all_v(world, whole, all, std::span(other), expected);
        break;
      }
    }
    FAIL_CHECK("disagreement " << which << ": rank " << world.rank() << " noticed nothing");
  } catch (const Error& error) {
    // In what, and from where: the other's call site must not be lost behind data that it has sent already.
    const std::string what = error.what();
    if (error.kind() != ErrorKind::mismatch || what.find(said) == std::string::npos ||
        what.find("an unknown place") != std::string::npos)
      FAIL_CHECK("disagreement " << which << " on rank " << world.rank() << ": " << std::string(error.what()));
  }
}

/// Wrong arguments are refused before anything is announced.
inline void refusal_law(World& world) {
  std::vector<int> data(100);
  const std::span<int> all(data);
  const auto ranks = static_cast<std::size_t>(world.size());
  const std::vector<std::size_t> too_many(ranks + 1, 1);
  const std::vector<std::size_t> huge(ranks, SIZE_MAX / ranks + 1);
  const std::vector<std::size_t> tens(ranks, 10);
  const auto refused = [&](auto call) { check_refused(world, "an argument: ", call); };
  const std::uint64_t before = world.ledger().operations;
  refused([&] { reduce(world, all, all, Sum{}, world.size()); });
  refused([&] { reduce(world, all.first(50), all.subspan(1, 50), Sum{}, world.rank()); });
  refused([&] { gather(world, all.first(10), all.first(10 * ranks + 1), world.rank()); });
  refused([&] { gather_v(world, all.first(1), all, too_many, 0); });
  refused([&] { scatter_v(world, all, all.first(9), tens, 0); });
  refused([&] { scatter(world, all.first(10 * ranks), all.subspan(3, 10), -1); });
  refused([&] { all_to_all_v(world, all.first(10 * ranks), tens, all.first(10 * ranks - 1), tens); });
  refused([&] { all_gather_v(world, all.first(10), all.first(10 * ranks - 1), tens); });
  refused([&] { reduce_scatter_v(world, all.first(10 * ranks), all.first(9), tens, Sum{}); });
  refused([&] { send_recv(world, all.first(10), world.rank(), all.subspan(50, 11), world.rank()); });
  refused([&] { send_recv(world, all.first(10), world.rank(), all.subspan(5, 10), world.rank()); });
  if (ranks > 1) {
    refused([&] { all_to_all(world, all.first(2 * ranks + 1), all.first(2 * ranks + 1)); });
    refused([&] { gather_v(world, all.first(1), all, huge, 0); });
    refused(
        [&] { send_recv(world, all.first(1), world.rank(), all.subspan(1, 1), (world.rank() + 1) % world.size()); });
  }
  if (world.ledger().operations != before) FAIL_CHECK("a refused call was counted");
  barrier(world);
}

}  // namespace tandem::test
