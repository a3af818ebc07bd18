// SPDX-License-Identifier: Apache-2.0
// Says beforehand which way a collective will take, why, what it moves, and what is the least that must move. Asks the
// functions that the collectives themselves ask; moves nothing, and talks to no other rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tandem/collective/algorithm.hpp"
#include "tandem/collective/detail/checks.hpp"
#include "tandem/collective/path.hpp"
#include "tandem/collective/prediction.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/comm/envelope.hpp"
#include "tandem/core/bytes.hpp"
#include "tandem/reduce/order.hpp"

namespace tandem {

/// What explain() is to suppose of a call, beside its verb and its size.
struct Supposing {
  /// How many ranks' buffers lie in their arenas, of those that others read (and for reductions write: see
  /// docs/reference/collectives.md). all_reduce_coalesced brings its own: `all` where there are windows.
  Registration registration = Registration::none;
  std::size_t element_bytes = 4;
  int root = 0;
  /// The _v forms: counts by rank, as the verb takes them. all_to_all_v: size() rows of size() counts, [from][to].
  std::span<const std::size_t> counts{};
  bool in_place = false;      ///< all_to_all and all_to_all_v: any rank
  bool asynchronous = false;  ///< the _async form
  bool root_alone = false;    ///< broadcast: of the registered buffers there is root's only
  // That others may read this rank's memory is supposed where this rank may read theirs.
};

struct Explanation {
  Verb verb{};
  Path path = Path::alone;
  int rank = 0;
  int ranks = 1;
  std::uint64_t payload = 0;  ///< bytes of the whole (larger) buffer
  /// What this rank will move to, from or through its peers: what world.ledger() counts.
  std::uint64_t bytes = 0;
  /// The same of all ranks together.
  std::uint64_t total = 0;
  /// The least that all ranks together can do with: every byte that a rank does not have is brought to it once. (For an
  /// all-reduce 2 (N-1) D of the 2 N D that memory carries at least; the other 2 D stay within their rank.)
  std::uint64_t least = 0;
  int synchronisations = 0;  ///< how often all ranks wait for one another
  std::string why;

  /// "all_reduce of 1.00 MiB on rank 0 of 2: Direct, since ...; it moves ...".
  std::string text() const {
    return std::string(name_of(verb)) + " of " + format_bytes(payload) + " on rank " + std::to_string(rank) + " of " +
           std::to_string(ranks) + ": " + name_of(path) + ", since " + why + "; this rank moves " +
           std::to_string(bytes) + " bytes, all ranks " + std::to_string(total) + " where at least " +
           std::to_string(least) + " must move, in " + std::to_string(synchronisations) +
           (synchronisations == 1 ? " synchronisation" : " synchronisations");
  }
};

namespace detail {

/// Who gives whom how much, of one operation, as arithmetic.
class Traffic {
 public:
  Traffic(Verb verb, std::uint64_t bytes, int ranks, bool crowded, const Supposing& supposing, const ChunkTable& table)
      : verb_(verb), ranks_(ranks), crowded_(crowded), supposing_(supposing), bytes_(bytes), table_(table) {}

  /// The most that any rank would stage.
  std::uint64_t staged_bytes() const {
    std::uint64_t most = 0;
    switch (verb_) {
      case Verb::all_gather:
      case Verb::all_gather_v:
      case Verb::gather:
      case Verb::gather_v:
        for (int member = 0; member < ranks_; ++member) most = std::max(most, own(member));
        return most;
      case Verb::all_to_all_v:
        for (int member = 0; member < ranks_; ++member) most = std::max(most, given(member));
        return most + predict::pair_counts(ranks_) / static_cast<std::uint64_t>(ranks_ - 1);
      default:
        return bytes_;
    }
  }
  std::uint64_t of(Path path, int rank) const {
    const bool root = rank == supposing_.root;
    switch (verb_) {
      case Verb::all_reduce:
      case Verb::all_reduce_coalesced:
        return predict::all_reduce(path, table_, element(), rank);
      case Verb::reduce_scatter:
      case Verb::reduce_scatter_v:
        return predict::reduce_scatter(path, table_, run(rank), element(), rank);
      case Verb::all_gather:
      case Verb::all_gather_v:
        return predict::all_gather(path, bytes_, own(rank), own((rank + ranks_ - 1) % ranks_), ranks_);
      case Verb::broadcast:
        return predict::broadcast(path, bytes_, reads_in_place(path) ? stored_by_root() : 0, supposing_.root, rank,
                                  ranks_);
      case Verb::reduce:
        return predict::reduce(path, bytes_, element() * owned_range(count(), element(), ranks_, rank).size(), ranks_,
                               root);
      case Verb::gather:
      case Verb::gather_v:
        return predict::gather(own(rank), bytes_, root).of(path);
      case Verb::scatter:
      case Verb::scatter_v:
        return predict::scatter(own(rank), bytes_, root).of(path);
      case Verb::all_to_all:
        return predict::all_to_all(bytes_, bytes_, own(rank)).of(path);
      case Verb::all_to_all_v:
        if (path == Path::alone) return 0;
        return predict::pair_counts(ranks_) + predict::all_to_all(given(rank), taken(rank), pair(rank, rank)).of(path);
      case Verb::send:
      case Verb::send_recv:
        return path == Path::message ? bytes_ + sizeof(Envelope) : 0;
      default:
        return 0;
    }
  }
  bool fetches_twice() const noexcept { return verb_ == Verb::all_reduce || verb_ == Verb::all_reduce_coalesced; }
  std::uint64_t total(Path path) const {
    if (path == Path::message) return of(path, 0);
    std::uint64_t sum = 0;
    for (int rank = 0; rank < ranks_; ++rank) sum += of(path, rank);
    return sum;
  }
  std::uint64_t least() const {
    const auto others = static_cast<std::uint64_t>(ranks_ - 1);
    switch (verb_) {
      case Verb::all_reduce:
      case Verb::all_reduce_coalesced:
        return 2 * others * bytes_;
      case Verb::reduce_scatter:
      case Verb::reduce_scatter_v:
      case Verb::all_gather:
      case Verb::all_gather_v:
      case Verb::broadcast:
      case Verb::reduce:
      case Verb::all_to_all:
        return others * bytes_;
      case Verb::gather:
      case Verb::gather_v:
      case Verb::scatter:
      case Verb::scatter_v:
        return bytes_ - own(supposing_.root);
      case Verb::all_to_all_v: {
        std::uint64_t sum = 0;
        for (int rank = 0; rank < ranks_; ++rank) sum += given(rank) - pair(rank, rank);
        return sum;
      }
      case Verb::send:
      case Verb::send_recv:
        return ranks_ == 1 ? 0 : bytes_;
      default:
        return 0;
    }
  }

 private:
  std::size_t element() const noexcept { return supposing_.element_bytes; }
  std::size_t count() const noexcept { return bytes_ / element(); }
  Range run(int rank) const {
    if (supposing_.counts.empty()) return slice_of(count(), ranks_, rank);
    std::size_t begin = 0;
    for (int member = 0; member < rank; ++member) begin += supposing_.counts[static_cast<std::size_t>(member)];
    return {begin, begin + supposing_.counts[static_cast<std::size_t>(rank)]};
  }
  std::uint64_t stored_by_root() const {
    const bool all = supposing_.registration == Registration::all && !supposing_.root_alone;
    if (crowded_ || supposing_.asynchronous || !all || bytes_ < direct_bytes) return 0;
    return element() * owned_range(count(), element(), ranks_, 0).size();
  }
  std::uint64_t own(int rank) const { return run(rank).size() * element(); }
  std::uint64_t pair(int from, int to) const {
    return element() * supposing_.counts[static_cast<std::size_t>(from * ranks_ + to)];
  }
  std::uint64_t given(int rank) const {
    std::uint64_t sum = 0;
    for (int member = 0; member < ranks_; ++member) sum += pair(rank, member);
    return sum;
  }
  std::uint64_t taken(int rank) const {
    std::uint64_t sum = 0;
    for (int member = 0; member < ranks_; ++member) sum += pair(member, rank);
    return sum;
  }

  Verb verb_;
  int ranks_;
  bool crowded_;
  const Supposing& supposing_;
  std::uint64_t bytes_;
  ChunkTable table_;
};

inline std::string reason_of(Verb verb, Path path, const Circumstances& it, const char* transport) {
  const std::string unregistered =
      std::string(it.registration == Registration::some ? "not all" : "none") + " of the ranks' buffers are registered";
  if (verb == Verb::barrier && path == Path::line) return "it carries no bytes: the flags are all there is";
  switch (path) {
    case Path::alone:
      return "there is one rank";
    case Path::message:
      return "a message goes through the channel of its two ranks";
    default:
      break;
  }
  if (it.forced != Auto::number) return "it is forced";
  switch (path) {
    case Path::line:
      return "it fits into the flag's own cache line";
    case Path::staged:
      return "a rank stages " + std::to_string(it.staged_bytes) + " bytes, which is at most " +
             std::to_string(Block::eager_bytes) +
             (it.crowded && it.registration == Registration::all ? ", and ranks outnumber processors" : "");
    case Path::direct:
      return "all ranks' buffers are registered";
    case Path::bounce:
      return unregistered + ", and what a rank gives goes to all others";
    case Path::fetch:
      return unregistered + ", and the system lets ranks read each other's memory";
    default:
      if (!it.windows) return std::string("the ranks of ") + transport + " do not map each other's memory";
      return unregistered + (it.readable && streams(verb, it) ? ", and so little is streamed sooner than fetched" : "");
  }
}

inline bool offers(Verb verb, std::uint8_t algorithm) noexcept {
  switch (verb) {
    case Verb::all_reduce:
      return true;
    case Verb::reduce_scatter:
    case Verb::all_gather:
      return algorithm != Naive::number;
    case Verb::broadcast:
      return algorithm != Pairwise::number;
    default:
      return algorithm == Auto::number;
  }
}

}  // namespace detail

/// What `verb` on `bytes` bytes of the whole buffer would do on this rank, supposing what `supposing` says of the call.
/// (all_to_all_v: the bytes follow from the counts. A message: its bytes. A barrier: 0.) `Algorithm` and `Order` as the
/// verb is given. Throws Error(argument) when there is no such call.
template <OneOf<Auto, Direct, Ring, Pairwise, Naive> Algorithm = Auto, Order Order = GlooRing, ControlTransport T>
Explanation explain(const Communicator<T>& comm, Verb verb, std::uint64_t bytes, const Supposing& supposing = {},
                    CallSite site = CallSite::here()) {
  detail::check_algorithm<Algorithm, T>();
  const int ranks = comm.size();
  const int rank = comm.rank();
  const auto refuse = [&](const std::string& what) { detail::refuse(verb, rank, "explain: " + what, site); };
  if (verb == Verb::split || verb == Verb::exchange) refuse("it has no buffers");
  if (verb == Verb::barrier && bytes != 0) refuse("it carries no bytes, so no " + std::to_string(bytes));
  if (!detail::offers(verb, Algorithm::number)) refuse(std::string(Algorithm::name) + " is not offered");
  if (supposing.element_bytes == 0 || bytes % supposing.element_bytes != 0) {
    refuse(std::to_string(bytes) + " bytes are no whole elements of " + std::to_string(supposing.element_bytes));
  }
  const bool pairs = verb == Verb::all_to_all_v;
  const auto members = static_cast<std::size_t>(ranks);
  const std::size_t expected = pairs ? members * members : members;
  if ((pairs || !supposing.counts.empty()) && supposing.counts.size() != expected) {
    refuse("there are " + std::to_string(supposing.counts.size()) + " counts where " + std::to_string(expected) +
           " are needed");
  }
  detail::require_rank(verb, rank, "root", supposing.root, ranks, site);

  std::size_t sum = 0;
  for (const std::size_t count : supposing.counts) sum += count;
  if (!pairs && !supposing.counts.empty() && sum * supposing.element_bytes != bytes) {
    refuse("the counts add up to " + std::to_string(sum * supposing.element_bytes) + " bytes, not " +
           std::to_string(bytes));
  }

  const ChunkTable table = Order::table(bytes / supposing.element_bytes, supposing.element_bytes, ranks);
  const detail::Traffic traffic(verb, pairs ? sum * supposing.element_bytes : bytes, ranks, comm.protocol().crowded(),
                                supposing, table);
  Circumstances it;
  it.ranks = ranks;
  it.forced = Algorithm::number;
  it.crowded = comm.protocol().crowded();
  it.pending = supposing.asynchronous;
  it.windows = T::has_windows;
  if (ranks > 1) it.staged_bytes = traffic.staged_bytes();
  // A reader could come too late.
  const bool too_late = supposing.in_place && (pairs || verb == Verb::all_to_all);
  if (T::has_windows && !comm.arena()->detached() && !too_late) {
    it.registration = verb == Verb::all_reduce_coalesced ? Registration::all : supposing.registration;
  }
  it.readable = comm.protocol().buffers().reads_others() && !too_late;

  Explanation result;
  result.verb = verb;
  result.path = path_of(verb, it);
  result.rank = rank;
  result.ranks = ranks;
  result.payload = pairs ? sum * supposing.element_bytes : bytes;
  result.bytes = traffic.of(result.path, rank);
  result.total = traffic.total(result.path);
  result.least = traffic.least();
  result.synchronisations = result.path == Path::alone || result.path == Path::message ? 0
                            : result.path == Path::direct                              ? 2
                            : result.path == Path::fetch ? (traffic.fetches_twice() ? 3 : 2)
                                                         : 1;
  result.why = detail::reason_of(verb, result.path, it, T::name);
  return result;
}

}  // namespace tandem
