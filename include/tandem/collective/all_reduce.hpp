// SPDX-License-Identifier: Apache-2.0
// Every rank gives a buffer, every rank gets the reduction of all of them.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "tandem/collective/algorithm.hpp"
#include "tandem/collective/detail/all_reduce_paths.hpp"
#include "tandem/collective/detail/carry_out.hpp"
#include "tandem/collective/detail/checks.hpp"
#include "tandem/collective/detail/staged.hpp"
#include "tandem/collective/path.hpp"
#include "tandem/collective/prediction.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/reduce/order.hpp"

namespace tandem {

namespace detail {

/// Op may be a reference.
template <class E, class Op>
struct AllReduceSteps {
  const E* input;
  E* output;
  Op op;
  ChunkTable table;

  std::uint64_t staged_bytes() const noexcept { return table.count() * sizeof(E); }
  template <class T>
  std::uint64_t input_place(const Protocol<T>& protocol) const noexcept {
    return protocol.buffers().place_of(input, staged_bytes());
  }
  template <class T>
  std::uint64_t output_place(const Protocol<T>& protocol) const noexcept {
    return protocol.buffers().place_of(output, staged_bytes());
  }
  template <class T>
  bool waits(const Protocol<T>&, const Operation&) const noexcept {
    return true;
  }
  template <class T>
  std::uint64_t read_in_place(Protocol<T>& protocol, Operation& operation, Path path) const {
    if (path == Path::direct) return fold_owned<T, E>(protocol, operation, op, table);
    return all_reduce_by_fetching(protocol, operation, op, table, input, output);
  }
  template <class Algorithm, class T>
  std::uint64_t by_channels(Protocol<T>& protocol, Operation& operation) const {
    // With windows path_of chooses no ring, and none is compiled.
    constexpr bool pairwise = std::same_as<Algorithm, Pairwise> || (std::same_as<Algorithm, Auto> && T::has_windows);
    if constexpr (pairwise)
      return all_reduce_pairwise(protocol, operation, op, table, input, output);
    else if constexpr (std::same_as<Algorithm, Naive>)
      return all_reduce_naively(protocol, operation, op, table, input, output);
    else
      return all_reduce_by_ring(protocol, operation, op, table, input, output);
  }
  template <class T>
  std::uint64_t predicted(const Protocol<T>& protocol, const Operation&, Path path) const noexcept {
    return predict::all_reduce(path, table, sizeof(E), protocol.rank());
  }
};

/// The whole of it at one rank: scaled or divided as the functor says, moved nowhere.
template <class T, class E, class Op>
void reduce_alone(Protocol<T>& protocol, const Call& call, const CallOptions& options, const Op& op, const E* input,
                  E* output) {
  auto operation = protocol.post(call, options, 0, 0);
  fold(op, 1, &input, 1, &output, 1, call.count);
  protocol.finish(operation, 0, 0);
}

/// `call` says what this all-reduce is called; `input` and `output` are of one count, and one buffer or disjoint.
template <class Algorithm, class Order, class T, class E, class Op>
void all_reduce_as(Protocol<T>& protocol, const Call& call, const CallOptions& options, std::span<const E> input,
                   std::span<E> output, const Op& op) {
  if (protocol.size() == 1) return reduce_alone(protocol, call, options, op, input.data(), output.data());
  const ChunkTable table = Order::table(input.size(), sizeof(E), protocol.size());
  const AllReduceSteps<E, const Op&> steps{input.data(), output.data(), op, table};
  if constexpr (std::same_as<Algorithm, Auto>) {
    if (path_for<Algorithm>(protocol, call.verb, input.size_bytes(), Registration::none) == Path::line) {
      auto operation = protocol.post(call, options, 0, 0, std::as_bytes(input));
      protocol.await_posts(operation);
      const auto moved = fold_everything(protocol, op, table, output.data(),
                                         [&](int member) { return protocol.line_of(operation, member).payload; });
      return protocol.finish(operation, steps.predicted(protocol, operation, Path::line), moved);
    }
  }

  auto [operation, staged] = announce<Algorithm>(protocol, call, options, input.size_bytes(), std::as_bytes(input),
                                                 steps.input_place(protocol), steps.output_place(protocol));
  if (staged) {
    const auto own = std::as_bytes(input).data();
    const auto moved = fold_everything(protocol, op, table, output.data(), [&](int member) {
      return member == protocol.rank() ? own : protocol.staging().of(member);
    });
    for (int member = 0; member < protocol.size(); ++member) protocol.staging().release(member, input.size_bytes());
    return protocol.finish(operation, steps.predicted(protocol, operation, Path::staged), moved);
  }
  carry_out<Algorithm>(protocol, operation, steps);
}

}  // namespace detail

/// output[i] = op over all ranks' input[i], folded in Order's sequence; the same bits on every rank, whatever the
/// algorithm. `input` and `output` have the same count on all ranks, any count (0 too), and are the same buffer or
/// disjoint.
/// Bytes this rank moves, for D bytes: up to 8 bytes, and up to 8 KiB from private buffers, (N-1) D in one
/// synchronisation; Direct 2 (N-1) / N D in two; Fetch the same in three; Ring 2 D (N-1) / N; Pairwise the same in
/// fewer hops; Naive (N-1) D. Throws Error: argument (nothing was announced), mismatch (on all ranks, no data touched),
/// dead_peer, timeout, poisoned.
template <OneOf<Auto, Direct, Ring, Pairwise, Naive> Algorithm = Auto, Order Order = GlooRing, ControlTransport T,
          Element E, class Op>
void all_reduce(Communicator<T>& comm, std::type_identity_t<std::span<const E>> input, std::span<E> output,
                const Op& op, const CallOptions& options = {}, CallSite site = CallSite::here()) {
  detail::check_algorithm<Algorithm, T>();
  auto& protocol = comm.protocol();
  protocol.require_usable(Verb::all_reduce, site);
  detail::require_count(Verb::all_reduce, comm.rank(), "output", output.size(), input.size(), site);
  detail::require_in_place_or_disjoint<E>(Verb::all_reduce, comm.rank(), output, input, 0, site);
  const Call call =
      detail::describe_reduction<E, Order>(Verb::all_reduce, input.size(), Algorithm::number, op, -1, site);
  detail::all_reduce_as<Algorithm, Order>(protocol, call, options, input, output, op);
}

/// In place: `data` is input and output.
template <OneOf<Auto, Direct, Ring, Pairwise, Naive> Algorithm = Auto, Order Order = GlooRing, ControlTransport T,
          Element E, class Op>
void all_reduce(Communicator<T>& comm, std::span<E> data, const Op& op, const CallOptions& options = {},
                CallSite site = CallSite::here()) {
  all_reduce<Algorithm, Order>(comm, std::span<const E>(data), data, op, options, site);
}

}  // namespace tandem
