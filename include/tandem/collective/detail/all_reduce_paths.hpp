// SPDX-License-Identifier: Apache-2.0
// The ways an announced all-reduce is carried out. Each returns the bytes this rank moved; all fold in the order's
// table, so all give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tandem/collective/detail/fetch.hpp"
#include "tandem/collective/detail/pairwise_flow.hpp"
#include "tandem/collective/detail/per_rank.hpp"
#include "tandem/collective/detail/ring_flow.hpp"
#include "tandem/collective/prediction.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/reduce/apply.hpp"

namespace tandem::detail {

/// All inputs lie beside the flags already: fold all of it here. `input_of(member)` gives a member's copy.
template <class T, class E, class Op, class InputOf>
std::uint64_t fold_everything(Protocol<T>& protocol, const Op& op, const ChunkTable& table, E* output,
                              InputOf input_of) {
  PerRank<const E*> inputs(protocol.size());
  for (int member = 0; member < protocol.size(); ++member)
    inputs[member] = reinterpret_cast<const E*>(input_of(member));
  const std::size_t folded = fold_range(op, table, {0, table.count()}, inputs.data(), &output, 1);
  return folded * sizeof(E) * static_cast<std::uint64_t>(protocol.size() - 1);  // loaded from each other rank
}

/// Direct, the part of this rank: folds what it owns from all inputs into all outputs. All ranks have announced
/// registered buffers; nobody reads its output before all have posted done.
template <class T, class E, class Op>
std::uint64_t fold_owned(Protocol<T>& protocol, const Operation& operation, const Op& op, const ChunkTable& table) {
  const int ranks = protocol.size();
  PerRank<const E*> inputs(ranks);
  PerRank<E*> outputs(ranks);
  for (int member = 0; member < ranks; ++member) {
    inputs[member] = reinterpret_cast<const E*>(protocol.buffers().input_of(operation, member));
    outputs[member] = reinterpret_cast<E*>(protocol.buffers().output_of(operation, member));
  }
  const Range owned = owned_range(table.count(), sizeof(E), ranks, protocol.rank());
  const std::size_t folded = fold_range(op, table, owned, inputs.data(), outputs.data(), ranks);
  return 2 * folded * sizeof(E) * static_cast<std::uint64_t>(ranks - 1);  // loaded from, and stored to, each other rank
}

/// Folds the own part of all inputs, wherever they are, into the own output; once the owners of the other parts have
/// done so too, fetches these from theirs. In place is safe: of this rank's input, others read their own parts before
/// they have done half, and only the results of these come in their place.
template <class T, class E, class Op>
std::uint64_t all_reduce_by_fetching(Protocol<T>& protocol, Operation& operation, const Op& op, const ChunkTable& table,
                                     const E* input, E* output) {
  const int ranks = protocol.size();
  const auto owned_by = [&](int member) { return owned_range(table.count(), sizeof(E), ranks, member); };
  const Range owned = owned_by(protocol.rank());
  std::uint64_t loaded = fetch_and_fold(protocol, operation, op, table, input, output + owned.begin, owned);
  protocol.require_attached(operation);  // else the others would not see what was folded
  protocol.post_half(operation);
  for (int step = 1; step < ranks; ++step) {
    const int member = (protocol.rank() + step) % ranks;
    const Range part = owned_by(member);
    if (part.empty()) continue;
    protocol.await_half(operation, member);
    protocol.load(operation, member, protocol.line_of(operation, member).output, part.begin * sizeof(E),
                  output + part.begin, part.size() * sizeof(E));
    loaded += part.size() * sizeof(E);
  }
  return loaded;
}

template <class T, class E, class Op>
std::uint64_t all_reduce_by_ring(Protocol<T>& protocol, Operation& operation, const Op& op, const ChunkTable& table,
                                 const E* input, E* output) {
  const int ranks = protocol.size();
  std::vector<RingStep> steps;
  // Chunk c starts at rank c - 1 and ends, complete, at rank c; then it goes round once more for all to have it.
  for (int k = 0; k < ranks - 1; ++k) {
    const bool last = k == ranks - 2;
    steps.push_back({table.chunk((protocol.rank() + 2 + k) % ranks), true, last, last, true});
  }
  for (int k = 0; k < ranks - 1; ++k) {
    steps.push_back({table.chunk((protocol.rank() + 1 + k) % ranks), false, false, true, k != ranks - 2});
  }
  const Range start = table.chunk((protocol.rank() + 1) % ranks);
  return RingFlow<T, E, Op>(protocol, operation, op, input, output, start, steps).run();
}

template <class T, class E, class Op>
std::uint64_t all_reduce_pairwise(Protocol<T>& protocol, Operation& operation, const Op& op, const ChunkTable& table,
                                  const E* input, E* output) {
  const int ranks = protocol.size();
  const auto owned_by = [&](int member) { return owned_range(table.count(), sizeof(E), ranks, member); };
  const Range owned = owned_by(protocol.rank());
  // In place is safe: a final element reaches a rank only after its owner has had that rank's input of it.
  std::uint64_t sent =
      exchange_and_fold(protocol, operation, op, table, input, output + owned.begin, owned, owned_by, false);
  sent += exchange_and_copy(
      protocol, operation, output, output, [&](int) { return owned; }, owned_by);
  return sent;
}

template <class T, class E, class Op>
std::uint64_t all_reduce_naively(Protocol<T>& protocol, Operation& operation, const Op& op, const ChunkTable& table,
                                 const E* input, E* output) {
  const Range all{0, table.count()};
  return exchange_and_fold(
      protocol, operation, op, table, input, output, all, [&](int) { return all; }, input == output);
}

}  // namespace tandem::detail
