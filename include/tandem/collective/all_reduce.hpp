// SPDX-License-Identifier: Apache-2.0
// Every rank gives a buffer, every rank gets the reduction of all of them.
#pragma once

#include <concepts>
#include <cstring>
#include <span>
#include <type_traits>

#include "tandem/collective/algorithm.hpp"
#include "tandem/collective/detail/all_reduce_paths.hpp"
#include "tandem/collective/detail/checks.hpp"
#include "tandem/collective/prediction.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/copy.hpp"
#include "tandem/reduce/order.hpp"

namespace tandem {

namespace detail {

/// What remains of an announced all-reduce once its buffers are known not to be (all) registered, or another way is
/// forced. Also used by pending operations.
template <class Algorithm, class T, class E, class Op>
void all_reduce_by_channels(Protocol<T>& protocol, Operation& operation, const Op& op, const ChunkTable& table,
                            const E* input, E* output) {
  const std::uint64_t bytes = table.count() * sizeof(E);
  if constexpr (std::same_as<Algorithm, Pairwise>) {
    const std::uint64_t owned =
        sizeof(E) * owned_range(table.count(), sizeof(E), protocol.size(), protocol.rank()).size();
    const std::uint64_t moved = all_reduce_pairwise(protocol, operation, op, table, input, output);
    protocol.finish(
        operation,
        predict::pairwise_reduce_scatter(bytes, owned) + predict::pairwise_all_gather(owned, protocol.size()), moved);
  } else if constexpr (std::same_as<Algorithm, Naive>) {
    const std::uint64_t moved = all_reduce_naively(protocol, operation, op, table, input, output);
    protocol.finish(operation, predict::naive_all_reduce(bytes, protocol.size()), moved);
  } else {
    const std::uint64_t moved = all_reduce_by_ring(protocol, operation, op, table, input, output);
    protocol.finish(operation, predict::ring_all_reduce(table, sizeof(E), protocol.rank()), moved);
  }
}

/// Direct was forced, and some rank's buffers are not registered: the same answer on all ranks, nothing was moved.
template <class T>
[[noreturn]] void refuse_unregistered(Protocol<T>& protocol, Operation& operation) {
  for (int member = 0; member < protocol.size(); ++member) {
    const Line& line = protocol.line_of(operation, member);
    if (line.input == Arena::private_memory || line.output == Arena::private_memory) {
      protocol.finish(operation, 0, 0);
      refuse(operation.call.verb, protocol.rank(),
             "Direct needs registered buffers on all ranks, and rank " + std::to_string(member) +
                 "'s do not lie in its arena; allocate them from communicator.arena(), or do not force Direct",
             operation.call.site);
    }
  }
  std::abort();  // unreachable: called only when all_registered() said no
}

/// The whole of it at one rank: scaled or divided as the functor says, moved nowhere.
template <class T, class E, class Op>
void reduce_alone(Protocol<T>& protocol, const Call& call, const CallOptions& options, const Op& op, const E* input,
                  E* output) {
  auto operation = protocol.post(call, options, 0, 0);
  fold(op, 1, &input, 1, &output, 1, call.count);
  protocol.finish(operation, 0, 0);
}

}  // namespace detail

/// output[i] = op over all ranks' input[i], folded in Order's sequence; the same bits on every rank, whatever the
/// algorithm. `input` and `output` have the same count on all ranks, any count (0 too), and are the same buffer or
/// disjoint.
/// Bytes this rank moves, for D bytes: up to 8 bytes, and up to 8 KiB from private buffers, (N-1) D in one
/// synchronisation; Direct 2 (N-1) / N D in two; Ring 2 D (N-1) / N; Pairwise the same in fewer hops; Naive (N-1) D.
/// Throws Error: argument (nothing was announced), mismatch (on all ranks, no data touched), dead_peer, timeout,
/// poisoned.
template <OneOf<Auto, Direct, Ring, Pairwise, Naive> Algorithm = Auto, Order Order = GlooRing, ControlTransport T,
          Element E, class Op>
void all_reduce(Communicator<T>& comm, std::type_identity_t<std::span<const E>> input, std::span<E> output,
                const Op& op, const CallOptions& options = {}, CallSite site = CallSite::here()) {
  detail::check_algorithm<Algorithm, T>();
  auto& protocol = comm.protocol();
  protocol.require_usable();
  detail::require_count(Verb::all_reduce, comm.rank(), "output", output.size(), input.size(), site);
  detail::require_in_place_or_disjoint<E>(Verb::all_reduce, comm.rank(), output, input, 0, site);
  const Call call =
      detail::describe_reduction<E, Order>(Verb::all_reduce, input.size(), Algorithm::number, op, -1, site);
  if (comm.size() == 1) return detail::reduce_alone(protocol, call, options, op, input.data(), output.data());
  const ChunkTable table = Order::table(input.size(), sizeof(E), comm.size());

  if constexpr (std::same_as<Algorithm, Auto>) {
    if (input.size_bytes() <= sizeof(detail::Line::payload)) {
      auto operation = protocol.post(call, options, 0, 0, std::as_bytes(input));
      protocol.await_posts(operation);
      const auto moved = detail::fold_everything(
          protocol, op, table, output.data(), [&](int member) { return protocol.line_of(operation, member).payload; });
      return protocol.finish(operation, predict::eager(input.size_bytes(), comm.size()), moved);
    }
  }

  std::uint64_t input_place = protocol.place_of(input.data(), input.size_bytes());
  std::uint64_t output_place = protocol.place_of(output.data(), output.size_bytes());
  const bool small = std::same_as<Algorithm, Auto> && input.size_bytes() <= detail::Block::eager_bytes;
  if (small) {
    std::byte* const stage = protocol.stage(Verb::all_reduce);
    // Registered buffers go Direct all the same, unless a second synchronisation costs more than the copy.
    if (protocol.crowded()) input_place = Arena::private_memory;
    if (input_place == Arena::private_memory || output_place == Arena::private_memory) {
      input_place = Arena::private_memory;
      copy_bytes(stage, input.data(), input.size_bytes());
      protocol.staging().show(input.size_bytes());
    }
  }
  auto operation = protocol.post(call, options, input_place, output_place);
  small ? protocol.await_posts(operation) : protocol.begin(operation);
  if constexpr (OneOf<Algorithm, Auto, Direct>) {
    const auto registration = protocol.registration(operation);
    if (registration == detail::Registration::all) {
      const auto moved = detail::fold_owned<T, E>(protocol, operation, op, table);
      protocol.post_done(operation);
      protocol.await_done(operation);
      const Range owned = owned_range(table.count(), sizeof(E), comm.size(), comm.rank());
      return protocol.finish(operation, predict::direct_all_reduce(owned.size() * sizeof(E), comm.size()), moved);
    }
    if (small && registration == detail::Registration::none) {
      const auto own = std::as_bytes(input).data();
      const auto moved = detail::fold_everything(protocol, op, table, output.data(), [&](int member) {
        return member == comm.rank() ? own : protocol.staging().of(member);
      });
      for (int member = 0; member < comm.size(); ++member) protocol.staging().release(member, input.size_bytes());
      return protocol.finish(operation, predict::eager(input.size_bytes(), comm.size()), moved);
    }
  }
  if constexpr (std::same_as<Algorithm, Direct>) {
    detail::refuse_unregistered(protocol, operation);
  } else {
    detail::all_reduce_by_channels<Algorithm>(protocol, operation, op, table, input.data(), output.data());
  }
}

/// In place: `data` is input and output.
template <OneOf<Auto, Direct, Ring, Pairwise, Naive> Algorithm = Auto, Order Order = GlooRing, ControlTransport T,
          Element E, class Op>
void all_reduce(Communicator<T>& comm, std::span<E> data, const Op& op, const CallOptions& options = {},
                CallSite site = CallSite::here()) {
  all_reduce<Algorithm, Order>(comm, std::span<const E>(data), data, op, options, site);
}

}  // namespace tandem
