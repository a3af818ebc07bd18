// SPDX-License-Identifier: Apache-2.0
// Every rank gives a buffer, one rank gets the reduction of all of them.
#pragma once

#include <span>
#include <type_traits>

#include "tandem/collective/all_reduce.hpp"
#include "tandem/collective/detail/all_reduce_paths.hpp"
#include "tandem/collective/detail/carry_out.hpp"
#include "tandem/collective/detail/checks.hpp"
#include "tandem/collective/detail/pairwise_flow.hpp"
#include "tandem/collective/detail/scratch.hpp"
#include "tandem/collective/detail/staged.hpp"
#include "tandem/collective/path.hpp"
#include "tandem/collective/prediction.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/reduce/order.hpp"

namespace tandem {

namespace detail {

/// Direct, the part of this rank: folds what it owns from all inputs into root's output.
template <class E, class T, class Op>
std::uint64_t fold_owned_to_root(Protocol<T>& protocol, const Operation& operation, const Op& op,
                                 const ChunkTable& table, Range owned) {
  const int ranks = protocol.size();
  const int root = operation.call.root;
  PerRank<const E*> inputs(ranks);
  for (int member = 0; member < ranks; ++member) {
    inputs[member] = reinterpret_cast<const E*>(protocol.buffers().input_of(operation, member));
  }
  E* const output = reinterpret_cast<E*>(protocol.buffers().output_of(operation, root));
  const std::size_t folded = fold_range(op, table, owned, inputs.data(), &output, 1);
  // Loaded from each other rank, and stored to root where that is another.
  return folded * sizeof(E) * static_cast<std::uint64_t>(protocol.rank() == root ? ranks - 1 : ranks);
}

/// Everybody folds the part that it owns, then gives it to root: so root receives 2 D (N-1) / N, not (N-1) D.
template <class T, class E, class Op>
std::uint64_t reduce_pairwise(Protocol<T>& protocol, Operation& operation, const Op& op, const ChunkTable& table,
                              const E* input, E* output) {
  const int root = operation.call.root;
  const bool is_root = protocol.rank() == root;
  const auto owned_by = [&](int member) { return owned_range(table.count(), sizeof(E), protocol.size(), member); };
  const Range owned = owned_by(protocol.rank());
  Scratch<E> part(is_root ? 0 : owned.size());
  E* const whole = is_root ? output : part.as_if_from(owned.begin);
  // In place is safe: a final element reaches root only after its owner had root's input of it.
  std::uint64_t sent = exchange_and_fold(protocol, operation, op, table, input,
                                         is_root ? output + owned.begin : part.data(), owned, owned_by, false);
  sent += exchange_and_copy(
      protocol, operation, static_cast<const E*>(whole), whole,
      [&](int member) { return member == root ? owned : Range{}; },
      [&](int member) { return is_root ? owned_by(member) : Range{}; });
  return sent;
}

}  // namespace detail

/// Root's output = what all_reduce(input) would give, bit for bit. `input` has the same count on all ranks; `output` is
/// looked at on root only, where it has that count too, and is the same buffer as `input` (in place) or disjoint.
/// Inputs are not changed otherwise. Bytes this rank moves, for D bytes and an own part O of about D / N: up to 8 KiB
/// (N-1) D at root, in one synchronisation; Direct, when all inputs and root's output are registered, (N-1) O loaded
/// and, but at root, O stored; else D sent, at root D - O. Throws Error: argument (nothing was announced), mismatch (on
/// all ranks, no data touched), dead_peer, timeout, poisoned.
template <Order Order = GlooRing, ControlTransport T, Element E, class Op>
void reduce(Communicator<T>& comm, std::type_identity_t<std::span<const E>> input, std::span<E> output, const Op& op,
            int root, const CallOptions& options = {}, CallSite site = CallSite::here()) {
  auto& protocol = comm.protocol();
  protocol.require_usable(Verb::reduce, site);
  const int ranks = comm.size();
  const bool is_root = comm.rank() == root;
  detail::require_rank(Verb::reduce, comm.rank(), "root", root, ranks, site);
  if (is_root) {
    detail::require_count(Verb::reduce, comm.rank(), "output", output.size(), input.size(), site);
    detail::require_in_place_or_disjoint<E>(Verb::reduce, comm.rank(), output, input, 0, site);
  }
  const Call call = detail::describe_reduction<E, Order>(Verb::reduce, input.size(), 0, op, root, site);
  if (ranks == 1) return detail::reduce_alone(protocol, call, options, op, input.data(), output.data());
  const ChunkTable table = Order::table(input.size(), sizeof(E), ranks);

  const Range owned = owned_range(input.size(), sizeof(E), ranks, comm.rank());
  const std::uint64_t owned_bytes = owned.size() * sizeof(E);
  const auto predicted = [&](Path taken) {
    return predict::reduce(taken, input.size_bytes(), owned_bytes, ranks, is_root);
  };

  const std::uint64_t output_place =
      is_root ? protocol.buffers().place_of(output.data(), output.size_bytes()) : detail::Place::nothing;
  auto [operation, staged] = detail::announce<Auto>(
      protocol, call, options, input.size_bytes(), is_root ? std::span<const std::byte>() : std::as_bytes(input),
      protocol.buffers().place_of(input.data(), input.size_bytes()), output_place);
  if (staged) {
    if (!is_root) return protocol.finish(operation, predicted(Path::staged), 0);
    const auto own = std::as_bytes(input).data();
    const auto moved = detail::fold_everything(protocol, op, table, output.data(), [&](int member) {
      return member == root ? own : protocol.staging().of(member);
    });
    for (int member = 0; member < ranks; ++member) protocol.staging().release(member, input.size_bytes());
    return protocol.finish(operation, predicted(Path::staged), moved);
  }

  if (detail::path_for<Auto>(protocol, operation, input.size_bytes()) == Path::direct) {
    const auto moved = detail::fold_owned_to_root<E>(protocol, operation, op, table, owned);
    protocol.post_done(operation);
    protocol.await_done(operation);
    return protocol.finish(operation, predicted(Path::direct), moved);
  }
  const auto moved = detail::reduce_pairwise(protocol, operation, op, table, input.data(), output.data());
  protocol.finish(operation, predicted(Path::pairwise), moved);
}

}  // namespace tandem
