// SPDX-License-Identifier: Apache-2.0
// Every rank gives a whole buffer and gets its slice of the reduction of all of them.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "tandem/collective/algorithm.hpp"
#include "tandem/collective/all_reduce.hpp"
#include "tandem/collective/detail/carry_out.hpp"
#include "tandem/collective/detail/checks.hpp"
#include "tandem/collective/detail/fetch.hpp"
#include "tandem/collective/detail/pairwise_flow.hpp"
#include "tandem/collective/detail/per_rank.hpp"
#include "tandem/collective/detail/ring_flow.hpp"
#include "tandem/collective/detail/runs.hpp"
#include "tandem/collective/detail/scratch.hpp"
#include "tandem/collective/detail/staged.hpp"
#include "tandem/collective/path.hpp"
#include "tandem/collective/prediction.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/copy.hpp"
#include "tandem/reduce/order.hpp"

namespace tandem {

namespace detail {

/// The ring leaves chunk r, which is not always rank r's slice, with rank r; one more hop puts right what differs.
template <class T, class E, class Op, class SliceOf>
std::uint64_t reduce_scatter_by_ring(Protocol<T>& protocol, Operation& operation, const Op& op, const ChunkTable& table,
                                     const E* input, E* output, SliceOf slice_of_member) {
  const int ranks = protocol.size();
  const Range chunk = table.chunk(protocol.rank());
  const Range slice = slice_of_member(protocol.rank());
  Scratch<E> complete(chunk.size());
  std::vector<RingStep> steps;
  for (int k = 0; k < ranks - 1; ++k) {
    const bool last = k == ranks - 2;
    steps.push_back({table.chunk((protocol.rank() + 2 + k) % ranks), true, last, last, !last});
  }
  // Only the last step stores, and only this chunk.
  E* const base = complete.as_if_from(chunk.begin);
  std::uint64_t sent =
      RingFlow<T, E, Op>(protocol, operation, op, input, base, table.chunk((protocol.rank() + 1) % ranks), steps).run();

  const Range kept = intersect(chunk, slice);
  if (!kept.empty()) {
    copy_bytes(output + (kept.begin - slice.begin), complete.data() + (kept.begin - chunk.begin),
               kept.size() * sizeof(E));
  }
  sent += exchange_and_copy<T, E>(
      protocol, operation, base, Scratch<E>::element_zero(output, slice.begin),
      [&](int member) { return intersect(chunk, slice_of_member(member)); },
      [&](int member) { return intersect(table.chunk(member), slice); });
  return sent;
}

/// Any partition into consecutive slices, one per rank, the same on all, in any order of addition. Op may be a
/// reference.
template <class E, class Op, class SliceOf, class Table = ChunkTable>
struct ReduceScatterSteps {
  std::span<const E> input;
  std::span<E> output;
  Op op;
  Table table;
  SliceOf slice_of_member;

  void check(const Call& call, int rank) const {
    const Range slice = slice_of_member(rank);
    require_count(call.verb, rank, "output", output.size(), slice.size(), call.site);
    require_in_place_or_disjoint<E>(call.verb, rank, output, input, slice.begin, call.site);
  }
  std::uint64_t staged_bytes() const noexcept { return input.size_bytes(); }
  // Only inputs are read across ranks, so only they have to be registered.
  template <class T>
  std::uint64_t input_place(const Protocol<T>& protocol) const noexcept {
    return protocol.buffers().place_of(input.data(), input.size_bytes());
  }
  template <class T>
  std::uint64_t output_place(const Protocol<T>&) const noexcept {
    return 0;
  }
  template <class T>
  bool waits(const Protocol<T>&, const Operation&) const noexcept {
    return true;
  }
  /// The own slice of all inputs; `input_of(member)` is where a member's lies.
  template <class T, class InputOf>
  std::uint64_t fold_slice(const Protocol<T>& protocol, InputOf input_of) const {
    PerRank<const E*> inputs(protocol.size());
    for (int member = 0; member < protocol.size(); ++member) {
      inputs[member] = member == protocol.rank() ? input.data() : reinterpret_cast<const E*>(input_of(member));
    }
    const Range slice = slice_of_member(protocol.rank());
    E* const destination = output.data();
    const std::size_t folded = fold_range(op, table, slice, inputs.data(), &destination, 1, 0, slice.begin);
    return folded * sizeof(E) * static_cast<std::uint64_t>(protocol.size() - 1);
  }
  template <class T>
  std::uint64_t read_in_place(Protocol<T>& protocol, Operation& operation, Path path) const {
    if (path == Path::direct)
      return fold_slice(protocol, [&](int member) { return protocol.buffers().input_of(operation, member); });
    return fetch_and_fold(protocol, operation, op, table, input.data(), output.data(),
                          slice_of_member(protocol.rank()));
  }
  template <class Algorithm, class T>
  std::uint64_t by_channels(Protocol<T>& protocol, Operation& operation) const {
    if constexpr (std::same_as<Algorithm, Ring>) {
      return reduce_scatter_by_ring(protocol, operation, op, table, input.data(), output.data(), slice_of_member);
    } else {
      return exchange_and_fold(protocol, operation, op, table, input.data(), output.data(),
                               slice_of_member(protocol.rank()), slice_of_member, false);
    }
  }
  template <class T>
  std::uint64_t predicted(const Protocol<T>& protocol, const Operation&, Path path) const noexcept {
    return predict::reduce_scatter(path, table, slice_of_member(protocol.rank()), sizeof(E), protocol.rank());
  }
};

/// A call by counts, which must add up to `count`.
template <class E, class Order, class Op>
Call call_by_counts(int rank, std::size_t count, const Runs& runs, std::uint8_t algorithm, const Op& op,
                    CallSite site) {
  require_count(Verb::reduce_scatter_v, rank, "input", count, runs.total(), site);
  Call call = describe_reduction<E, Order>(Verb::reduce_scatter_v, count, algorithm, op, -1, site);
  call.layout = runs.layout();
  return call;
}

template <class Algorithm, class Order, class T, class E, class Op, class SliceOf>
void reduce_scatter_slices(Communicator<T>& comm, const Call& call, const CallOptions& options,
                           std::span<const E> input, std::span<E> output, const Op& op, SliceOf slice_of_member) {
  auto& protocol = comm.protocol();
  const ReduceScatterSteps<E, const Op&, SliceOf> steps{
      input, output, op, Order::table(input.size(), sizeof(E), comm.size()), slice_of_member};
  steps.check(call, comm.rank());
  if (comm.size() == 1) return reduce_alone(protocol, call, options, op, input.data(), output.data());

  auto [operation, staged] = announce<Algorithm>(protocol, call, options, steps.staged_bytes(), std::as_bytes(input),
                                                 steps.input_place(protocol), steps.output_place(protocol));
  if (staged) {
    const auto moved = steps.fold_slice(protocol, [&](int member) { return protocol.staging().of(member); });
    for (int member = 0; member < protocol.size(); ++member) protocol.staging().release(member, input.size_bytes());
    return protocol.finish(operation, steps.predicted(protocol, operation, Path::staged), moved);
  }
  carry_out<Algorithm>(protocol, operation, steps);
}

}  // namespace detail

/// output = slice_of(count, size, rank) of what all_reduce(input) would give, bit for bit: equal slices where the
/// number of ranks divides the count, else of ceil(count / size) with the last ones short or empty. `input` is the
/// whole buffer, of the same count on all ranks, and is not changed unless `output` is its own slice (in place). Bytes
/// this rank moves, for D bytes in all and a slice of S: up to 8 KiB (N-1) D; Direct and Fetch (N-1) S loaded; Pairwise
/// D - S sent; Ring D less what of its chunk lies in its slice. Throws Error: argument (nothing was announced),
/// mismatch (on all ranks, no data touched), dead_peer, timeout, poisoned.
template <OneOf<Auto, Direct, Ring, Pairwise> Algorithm = Auto, Order Order = GlooRing, ControlTransport T, Element E,
          class Op>
void reduce_scatter(Communicator<T>& comm, std::type_identity_t<std::span<const E>> input, std::span<E> output,
                    const Op& op, const CallOptions& options = {}, CallSite site = CallSite::here()) {
  detail::check_algorithm<Algorithm, T>();
  comm.protocol().require_usable(Verb::reduce_scatter, site);
  const Call call =
      detail::describe_reduction<E, Order>(Verb::reduce_scatter, input.size(), Algorithm::number, op, -1, site);
  detail::reduce_scatter_slices<Algorithm, Order, T, E>(
      comm, call, options, input, output, op, [&](int member) { return slice_of(input.size(), comm.size(), member); });
}

/// The same with counts[r] elements for rank r, in any partition into consecutive runs: they add up to the input's
/// count, and are the same on all ranks (a difference is a mismatch, found by a hash of 32 bits). Takes the paths that
/// reduce_scatter takes by itself, with their bytes.
template <Order Order = GlooRing, ControlTransport T, Element E, class Op>
void reduce_scatter_v(Communicator<T>& comm, std::type_identity_t<std::span<const E>> input, std::span<E> output,
                      std::span<const std::size_t> counts, const Op& op, const CallOptions& options = {},
                      CallSite site = CallSite::here()) {
  comm.protocol().require_usable(Verb::reduce_scatter_v, site);
  const detail::Runs runs(Verb::reduce_scatter_v, comm.rank(), comm.size(), counts, site);
  const Call call = detail::call_by_counts<E, Order>(comm.rank(), input.size(), runs, 0, op, site);
  detail::reduce_scatter_slices<Auto, Order, T, E>(comm, call, options, input, output, op,
                                                   [&](int member) { return runs[member]; });
}

}  // namespace tandem
