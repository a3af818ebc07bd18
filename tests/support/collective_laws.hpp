// SPDX-License-Identifier: Apache-2.0
// What must hold of every collective, as seen by one rank: the oracle's bits whatever the algorithm and wherever the
// buffers lie, untouched inputs and neighbours, a balanced ledger with the documented number of bytes. The same
// functions serve ranks that are threads and ranks that are processes.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/samples.hpp"
#include "support/worlds.hpp"
#include "tandem/collective/all_gather.hpp"
#include "tandem/collective/all_reduce.hpp"
#include "tandem/collective/barrier.hpp"
#include "tandem/collective/broadcast.hpp"
#include "tandem/collective/reduce_scatter.hpp"
#include "tandem/core/processors.hpp"

namespace tandem::test {

/// Which ranks' buffers lie in their arenas.
enum class Registered { nowhere, everywhere, on_last_rank };

struct How {
  Registered registered = Registered::nowhere;
  bool in_place = false;
  std::size_t shift = 0;  // elements by which the buffer misses the alignment of a cache line
};
inline constexpr std::array<How, 6> all_ways{{{Registered::nowhere, false, 0},
                                              {Registered::nowhere, true, 1},
                                              {Registered::everywhere, false, 3},
                                              {Registered::everywhere, true, 0},
                                              {Registered::on_last_rank, true, 0},
                                              {Registered::on_last_rank, false, 1}}};

/// Where the transport has no windows, memory in the arena is memory like any other, and Direct is not offered.
inline Registered seen(How how) { return TestTransport::has_windows ? how.registered : Registered::nowhere; }

inline std::string describe(const World& world, const char* verb, const char* algorithm, std::size_t count,
                            std::size_t element_bytes, How how) {
  constexpr std::array<const char*, 3> where{"nowhere", "everywhere", "on the last rank"};
  return std::string(verb) + "<" + algorithm + "> of " + std::to_string(count) + " elements of " +
         std::to_string(element_bytes) + " bytes, registered " + where[static_cast<std::size_t>(how.registered)] +
         (how.in_place ? ", in place" : "") + ", shift " + std::to_string(how.shift) + ", on rank " +
         std::to_string(world.rank()) + " of " + std::to_string(world.size()) + ": ";
}

inline std::shared_ptr<Arena> arena_for(const World& world, Registered registered) {
  const bool yes = registered == Registered::everywhere ||
                   (registered == Registered::on_last_rank && world.rank() == world.size() - 1);
  return yes ? world.arena() : nullptr;
}

/// Part `rank` of `count` elements cut into equal slices of ceil(count / ranks).
inline Range cut(std::size_t count, int ranks, int rank) {
  const std::size_t each = (count + static_cast<std::size_t>(ranks) - 1) / static_cast<std::size_t>(ranks);
  return {std::min(count, each * static_cast<std::size_t>(rank)),
          std::min(count, each * static_cast<std::size_t>(rank + 1))};
}
template <class E>
std::vector<E> part(const std::vector<E>& whole, Range range) {
  return {whole.begin() + static_cast<std::ptrdiff_t>(range.begin),
          whole.begin() + static_cast<std::ptrdiff_t>(range.end)};
}

/// Checks the ledger of one operation: it balances, and moved `bytes` where that is known.
inline void check_ledger(const World& world, const Ledger& before, std::optional<std::uint64_t> bytes,
                         const std::string& what) {
  const Ledger used = world.ledger() - before;
  if (used.operations != 1) FAIL_CHECK(what << used.operations << " operations in the ledger");
  if (!used.balanced()) FAIL_CHECK(what << "predicted " << used.predicted << " bytes, measured " << used.measured);
  if (bytes && used.measured != *bytes)
    FAIL_CHECK(what << "moved " << used.measured << " bytes where " << *bytes << " are documented");
}

/// A forced Direct with buffers outside the arena is an argument error on all ranks and costs nothing else.
template <class Algorithm>
bool is_refused(const World& world, How how) {
  return std::same_as<Algorithm, Direct> && seen(how) != Registered::everywhere && world.size() > 1;
}
template <class Call>
void check_refused(const World& world, const std::string& what, Call call) {
  try {
    call();
    FAIL_CHECK(what << "Direct was not refused");
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::argument) FAIL_CHECK(what << "wrong kind of error: " << error.what());
  }
  if (world.poisoned()) FAIL_CHECK(what << "a refusal poisoned the communicator");
}

/// How Auto goes by channels, as documented, when a rank gives `bytes`: an all-reduce may be either, a broadcast (only
/// where there are no windows) Naive and an all-gather Pairwise.
enum class Way { ring, pairwise, naive };
inline Way auto_way(std::uint64_t bytes, int ranks, bool may_be_naive, bool may_be_pairwise) {
  if (TestTransport::has_windows && may_be_naive) return ranks == 2 ? Way::naive : Way::pairwise;
  if (may_be_naive && bytes * static_cast<std::uint64_t>(ranks - 1) <= 65536) return Way::naive;
  return may_be_pairwise && ranks > 2 && bytes <= 524288 ? Way::pairwise : Way::ring;
}

/// Does Auto fetch what is not registered, of which a rank gives `bytes` to one other? Where the system lets it, above
/// the documented size, which is another where ranks outnumber processors.
enum class Kind { folds, moves };
inline bool fetches(const World& world, std::uint64_t bytes, Kind kind) {
  if constexpr (!TestTransport::has_windows) return false;
  const bool crowded = world.size() > allowed_processors();
  const std::uint64_t most = kind == Kind::folds ? (crowded ? 262144 : 65536) : (crowded ? 65536 : 16384);
  return world.protocol().buffers().reads_others() && bytes > most;
}

/// Every rank's input, and what all of them must get.
template <class E, class Op>
struct Case {
  Op op;
  std::vector<std::vector<E>> inputs;
  std::vector<E> result;

  Case(int ranks, std::size_t count, const Op& op_, std::uint64_t seed = 0) : op(op_) {
    for (int rank = 0; rank < ranks; ++rank) inputs.push_back(samples<E>(count, rank, seed));
    result = gloo_fold(inputs, op);
  }
  std::size_t count() const noexcept { return result.size(); }
};

/// Bytes that one rank moves in an all-reduce, as documented; nothing where that depends on the processors.
template <class Algorithm>
std::optional<std::uint64_t> all_reduce_bytes(const World& world, std::size_t count, std::size_t element_bytes,
                                              How how) {
  const auto ranks = static_cast<std::size_t>(world.size());
  const auto rank = static_cast<std::size_t>(world.rank());
  const std::uint64_t bytes = count * element_bytes;
  if (ranks == 1) return 0;
  const std::uint64_t owned = element_bytes * owned_range(count, element_bytes, world.size(), world.rank()).size();
  const std::uint64_t ring = 2 * bytes - gloo_chunk_bytes(count, element_bytes, ranks, rank) -
                             gloo_chunk_bytes(count, element_bytes, ranks, (rank + ranks - 1) % ranks);
  if constexpr (std::same_as<Algorithm, Naive>) return (ranks - 1) * bytes;
  if constexpr (std::same_as<Algorithm, Ring>) return ring;
  const std::uint64_t pairwise = bytes - owned + (ranks - 1) * owned;
  if constexpr (std::same_as<Algorithm, Pairwise>) return pairwise;
  if constexpr (std::same_as<Algorithm, Direct>) return 2 * (ranks - 1) * owned;
  if (bytes <= 8) return (ranks - 1) * bytes;
  if (bytes <= 8192 && seen(how) != Registered::on_last_rank && seen(how) != Registered::everywhere)
    return (ranks - 1) * bytes;
  if (bytes <= 8192) return std::nullopt;
  if (seen(how) == Registered::everywhere) return 2 * (ranks - 1) * owned;
  if (fetches(world, bytes / ranks, Kind::folds)) return (ranks - 1) * owned + bytes - owned;
  const Way way = auto_way(bytes, world.size(), true, true);
  return way == Way::naive ? (ranks - 1) * bytes : way == Way::pairwise ? pairwise : ring;
}

template <class Algorithm, class E, class Op>
void all_reduce_law(World& world, const Case<E, Op>& c, How how) {
  const std::string what = describe(world, "all_reduce", Algorithm::name, c.count(), sizeof(E), how);
  const auto& mine = c.inputs[static_cast<std::size_t>(world.rank())];
  GuardedBuffer<E> in(arena_for(world, how.registered), c.count(), how.shift);
  GuardedBuffer<E> out(arena_for(world, how.registered), how.in_place ? 0 : c.count(), how.shift + 1);
  in.fill(mine);
  const Ledger before = world.ledger();
  const auto call = [&] {
    if (how.in_place)
      all_reduce<Algorithm>(world, in.span(), c.op);
    else
      all_reduce<Algorithm>(world, std::span<const E>(in.span()), out.span(), c.op);
  };
  if (is_refused<Algorithm>(world, how)) {
    check_refused(world, what, call);
    if (!in.holds(mine)) FAIL_CHECK(what << "the refused call changed its input");
    return;
  }
  call();
  if (how.in_place ? !in.holds(c.result) : !out.holds(c.result)) FAIL_CHECK(what << "wrong bits");
  if (!how.in_place && !in.holds(mine)) FAIL_CHECK(what << "the input changed");
  if (!in.guards_intact() || !out.guards_intact()) FAIL_CHECK(what << "wrote outside its buffer");
  check_ledger(world, before, all_reduce_bytes<Algorithm>(world, c.count(), sizeof(E), how), what);
}

template <class Algorithm, class E, class Op>
void reduce_scatter_law(World& world, const Case<E, Op>& c, How how) {
  const std::string what = describe(world, "reduce_scatter", Algorithm::name, c.count(), sizeof(E), how);
  const auto& mine = c.inputs[static_cast<std::size_t>(world.rank())];
  const Range slice = cut(c.count(), world.size(), world.rank());
  GuardedBuffer<E> in(arena_for(world, how.registered), c.count(), how.shift);
  GuardedBuffer<E> out(nullptr, how.in_place ? 0 : slice.size(), how.shift);
  in.fill(mine);
  const Ledger before = world.ledger();
  const std::span<E> result = how.in_place ? in.span().subspan(slice.begin, slice.size()) : out.span();
  const auto call = [&] { reduce_scatter<Algorithm>(world, std::span<const E>(in.span()), result, c.op); };
  if (is_refused<Algorithm>(world, how)) return check_refused(world, what, call);
  call();
  std::vector<E> expected = mine;  // in place, only the own slice changes
  std::copy(c.result.begin() + static_cast<std::ptrdiff_t>(slice.begin),
            c.result.begin() + static_cast<std::ptrdiff_t>(slice.end),
            expected.begin() + static_cast<std::ptrdiff_t>(slice.begin));
  if (how.in_place ? !in.holds(expected) : !out.holds(part(c.result, slice))) FAIL_CHECK(what << "wrong bits");
  if (!how.in_place && !in.holds(mine)) FAIL_CHECK(what << "the input changed");
  if (!in.guards_intact() || !out.guards_intact()) FAIL_CHECK(what << "wrote outside its buffer");
  const std::uint64_t whole = c.count() * sizeof(E);
  const std::uint64_t own = slice.size() * sizeof(E);
  std::optional<std::uint64_t> bytes;
  const bool staged = whole <= 8192 && (whole < 4096 || seen(how) != Registered::on_last_rank);
  if (std::same_as<Algorithm, Direct> || staged) bytes = own * static_cast<std::uint64_t>(world.size() - 1);
  if (std::same_as<Algorithm, Pairwise> && world.size() > 1) bytes = whole - own;
  if (std::same_as<Algorithm, Ring>) bytes.reset();  // depends on how chunks and slices overlap
  check_ledger(world, before, bytes, what);
}

template <class Algorithm, class E>
void all_gather_law(World& world, const std::vector<E>& whole, How how) {
  const std::string what = describe(world, "all_gather", Algorithm::name, whole.size(), sizeof(E), how);
  const Range slice = cut(whole.size(), world.size(), world.rank());
  const auto arena = arena_for(world, how.registered);
  GuardedBuffer<E> in(arena, how.in_place ? 0 : slice.size(), how.shift);
  GuardedBuffer<E> out(arena, whole.size(), how.shift);
  out.fill(std::vector<E>(whole.size()));
  const std::span<E> source = how.in_place ? out.span().subspan(slice.begin, slice.size()) : in.span();
  std::copy(whole.begin() + static_cast<std::ptrdiff_t>(slice.begin),
            whole.begin() + static_cast<std::ptrdiff_t>(slice.end), source.begin());
  const Ledger before = world.ledger();
  const auto call = [&] { all_gather<Algorithm>(world, std::span<const E>(source), out.span()); };
  if (is_refused<Algorithm>(world, how)) return check_refused(world, what, call);
  call();
  if (!out.holds(whole)) FAIL_CHECK(what << "wrong bits");
  if (!how.in_place && !in.holds(part(whole, slice))) FAIL_CHECK(what << "the input changed");
  if (!in.guards_intact() || !out.guards_intact()) FAIL_CHECK(what << "wrote outside its buffer");
  const int ranks = world.size();
  std::uint64_t elements = whole.size() - slice.size();
  if (std::same_as<Algorithm, Pairwise>) elements = slice.size() * static_cast<std::size_t>(ranks - 1);
  if (std::same_as<Algorithm, Ring>)
    elements = whole.size() - cut(whole.size(), ranks, (world.rank() + ranks - 1) % ranks).size();
  std::optional<std::uint64_t> bytes = elements * sizeof(E);
  if (ranks == 1)
    bytes = 0;
  else if (std::same_as<Algorithm, Auto> && seen(how) != Registered::everywhere)
    bytes.reset();
  check_ledger(world, before, bytes, what);
}

template <class Algorithm, class E>
void broadcast_law(World& world, const std::vector<E>& data, int root, How how) {
  const std::string what = describe(world, "broadcast", Algorithm::name, data.size(), sizeof(E), how) + "from rank " +
                           std::to_string(root) + ": ";
  GuardedBuffer<E> buffer(arena_for(world, how.registered), data.size(), how.shift);
  buffer.fill(world.rank() == root ? data : samples<E>(data.size(), world.rank(), 99));
  const Ledger before = world.ledger();
  const auto call = [&] { broadcast<Algorithm>(world, buffer.span(), root); };
  const bool root_registered =
      seen(how) == Registered::everywhere || (seen(how) == Registered::on_last_rank && root == world.size() - 1);
  if (std::same_as<Algorithm, Direct> && !root_registered && world.size() > 1) return check_refused(world, what, call);
  call();
  if (!buffer.holds(data)) FAIL_CHECK(what << "wrong bits");
  if (!buffer.guards_intact()) FAIL_CHECK(what << "wrote outside its buffer");
  std::uint64_t bytes = data.size() * sizeof(E);
  const bool is_root = world.rank() == root;
  const bool loads =
      std::same_as<Algorithm, Direct> ||
      (std::same_as<Algorithm, Auto> && (bytes <= 8192 || root_registered || TestTransport::has_windows));
  std::uint64_t stored = 0;  // by root: the first N-th, in pairs of cache lines
  if (bytes >= 4096 && seen(how) == Registered::everywhere && world.size() <= allowed_processors()) {
    const std::size_t grain = 128 / sizeof(E);
    const std::size_t first = cut((data.size() + grain - 1) / grain, world.size(), 0).size() * grain;
    stored = std::min(first, data.size()) * sizeof(E);
  }
  if (world.size() == 1)
    bytes = 0;
  else if (std::same_as<Algorithm, Naive> ||
           (std::same_as<Algorithm, Auto> && !loads && auto_way(bytes, world.size(), true, false) == Way::naive))
    bytes *= is_root ? static_cast<std::uint64_t>(world.size() - 1) : 0;
  else if (loads)
    bytes = is_root ? stored * static_cast<std::uint64_t>(world.size() - 1) : bytes - stored;
  else
    bytes = world.rank() == (root + 1) % world.size() ? 0 : bytes;
  check_ledger(world, before, bytes, what);
}

/// Empty, one, fewer than ranks, odd, prime, not divisible, a page and one, one more than what rides beside the flags.
template <class E>
std::vector<std::size_t> usual_counts() {
  return {0, 1, 2, 3, 7, 127, 1003, 4096 / sizeof(E) + 1, 8192 / sizeof(E) + 1, 4099};
}

template <class E, class Op>
std::vector<Case<E, Op>> usual_cases(int ranks, const Op& op,
                                     const std::vector<std::size_t>& counts = usual_counts<E>()) {
  std::vector<Case<E, Op>> cases;
  for (const std::size_t count : counts) cases.emplace_back(ranks, count, op, count);
  return cases;
}

template <class E, class Op>
void all_reduce_laws(World& world, const std::vector<Case<E, Op>>& cases) {
  for (const auto& c : cases) {
    for (const How how : all_ways) {
      all_reduce_law<Auto>(world, c, how);
      all_reduce_law<DirectIfAny>(world, c, how);
      all_reduce_law<Ring>(world, c, how);
      all_reduce_law<Pairwise>(world, c, how);
      all_reduce_law<Naive>(world, c, how);
    }
  }
}
template <class E, class Op>
void reduce_scatter_laws(World& world, const std::vector<Case<E, Op>>& cases) {
  for (const auto& c : cases) {
    for (const How how : all_ways) {
      reduce_scatter_law<Auto>(world, c, how);
      reduce_scatter_law<DirectIfAny>(world, c, how);
      reduce_scatter_law<Ring>(world, c, how);
      reduce_scatter_law<Pairwise>(world, c, how);
    }
  }
}
template <class E>
void all_gather_laws(World& world, const std::vector<std::vector<E>>& wholes) {
  for (const auto& whole : wholes) {
    for (const How how : all_ways) {
      all_gather_law<Auto>(world, whole, how);
      all_gather_law<DirectIfAny>(world, whole, how);
      all_gather_law<Ring>(world, whole, how);
      all_gather_law<Pairwise>(world, whole, how);
    }
  }
}
template <class E>
void broadcast_laws(World& world, const std::vector<std::vector<E>>& wholes) {
  for (const auto& whole : wholes) {
    for (const How how : all_ways) {
      if (how.in_place) continue;  // always is
      for (int root = 0; root < world.size(); ++root) {
        broadcast_law<Auto>(world, whole, root, how);
        broadcast_law<DirectIfAny>(world, whole, root, how);
        broadcast_law<Ring>(world, whole, root, how);
        broadcast_law<Naive>(world, whole, root, how);
      }
    }
  }
}
template <class E>
std::vector<std::vector<E>> usual_wholes(const std::vector<std::size_t>& counts = usual_counts<E>()) {
  std::vector<std::vector<E>> wholes;
  for (const std::size_t count : counts) wholes.push_back(samples<E>(count, 0, count));
  return wholes;
}

}  // namespace tandem::test
