// SPDX-License-Identifier: Apache-2.0
// The verbs that return at once: announced now, finished when their Work is waited for. Each is its blocking verb in
// result, in-place rules, bits and errors.
//
// All ranks begin theirs in the same order among all operations of the communicator and finish them in any; at most 31
// operations may follow the oldest unfinished one. Over buffers that are registered or can be read they make progress
// in Work::poll(); what goes by channels in Work::wait(); both also in any later collective of this communicator that
// waits. (Another communicator's collectives and messages do not help: finish before you wait there for a rank that may
// still be finishing here.) Buffers must not be touched between begin and end, the inputs neither.
#pragma once

#include <any>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "tandem/collective/all_gather.hpp"
#include "tandem/collective/all_reduce.hpp"
#include "tandem/collective/broadcast.hpp"
#include "tandem/collective/detail/runs.hpp"
#include "tandem/collective/reduce_scatter.hpp"
#include "tandem/collective/work.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/reduce/order.hpp"

namespace tandem {

namespace detail {

/// slice_of over `count` elements, as a value.
struct EvenSlices {
  std::size_t count;
  int ranks;
  Range operator()(int member) const noexcept { return slice_of(count, ranks, member); }
};

/// The runs of a list of counts, as a value.
class ListedSlices {
 public:
  explicit ListedSlices(const Runs& runs) {
    for (int member = 0; member < runs.size(); ++member) slices_.push_back(runs[member]);
  }
  Range operator()(int member) const noexcept { return slices_[static_cast<std::size_t>(member)]; }

 private:
  std::vector<Range> slices_;
};

template <class Order, class T, class E, class Op>
Work begin_all_reduce(Communicator<T>& comm, std::span<const E> input, std::span<E> output, const Op& op,
                      const CallOptions& options, CallSite site, std::any kept) {
  auto& protocol = comm.protocol();
  protocol.require_usable(Verb::all_reduce, site);
  require_count(Verb::all_reduce, comm.rank(), "output", output.size(), input.size(), site);
  require_in_place_or_disjoint<E>(Verb::all_reduce, comm.rank(), output, input, 0, site);
  const Call call = describe_reduction<E, Order>(Verb::all_reduce, input.size(), pending_algorithm, op, -1, site);
  if (comm.size() == 1) {
    reduce_alone(protocol, call, options, op, input.data(), output.data());
    return Work();
  }
  return begin_work(
      protocol, call, options,
      AllReduceSteps<E, Op>{input.data(), output.data(), op, Order::table(input.size(), sizeof(E), comm.size())},
      std::move(kept));
}

template <class Order, class T, class E, class Op>
Work begin_reduce_scatter(Communicator<T>& comm, std::span<const E> input, std::span<E> output, const Op& op,
                          const CallOptions& options, CallSite site, std::any kept) {
  auto& protocol = comm.protocol();
  protocol.require_usable(Verb::reduce_scatter, site);
  const Call call = describe_reduction<E, Order>(Verb::reduce_scatter, input.size(), pending_algorithm, op, -1, site);
  ReduceScatterSteps<E, Op, EvenSlices> steps{
      input, output, op, Order::table(input.size(), sizeof(E), comm.size()), {input.size(), comm.size()}};
  steps.check(call, comm.rank());
  if (comm.size() == 1) {
    reduce_alone(protocol, call, options, op, input.data(), output.data());
    return Work();
  }
  return begin_work(protocol, call, options, std::move(steps), std::move(kept));
}

/// `call` says what is begun, so that ranks with other runs or another table find out.
template <class T, class E, class Op, class Table>
Work begin_reduce_scatter_v(Communicator<T>& comm, const Call& call, std::span<const E> input, std::span<E> output,
                            const Runs& runs, const Op& op, Table table, const CallOptions& options, std::any kept) {
  auto& protocol = comm.protocol();
  ReduceScatterSteps<E, Op, ListedSlices, Table> steps{input, output, op, std::move(table), ListedSlices(runs)};
  steps.check(call, comm.rank());
  if (comm.size() == 1) {
    reduce_alone(protocol, call, options, op, input.data(), output.data());
    return Work();
  }
  return begin_work(protocol, call, options, std::move(steps), std::move(kept));
}

template <class T, class E, class SliceOf>
Work begin_all_gather_slices(Communicator<T>& comm, const Call& call, std::span<const E> input, std::span<E> output,
                             SliceOf slice, const CallOptions& options, std::any kept) {
  auto& protocol = comm.protocol();
  AllGatherSteps<E, SliceOf> steps{input, output, std::move(slice), comm.size(), false};
  steps.check(call, comm.rank());
  if (comm.size() == 1) {
    auto operation = protocol.post(call, options, 0, 0);
    steps.keep(0);
    protocol.finish(operation, 0, 0);
    return Work();
  }
  return begin_work(protocol, call, options, std::move(steps), std::move(kept));
}

template <class T, class E>
Work begin_all_gather(Communicator<T>& comm, std::span<const E> input, std::span<E> output, const CallOptions& options,
                      CallSite site, std::any kept) {
  comm.protocol().require_usable(Verb::all_gather, site);
  const Call call = describe<E>(Verb::all_gather, output.size(), pending_algorithm, 0, -1, site);
  return begin_all_gather_slices<T, E>(comm, call, input, output, EvenSlices{output.size(), comm.size()}, options,
                                       std::move(kept));
}

template <class T, class E>
Work begin_broadcast(Communicator<T>& comm, std::span<E> data, int root, const CallOptions& options, CallSite site,
                     std::any kept) {
  auto& protocol = comm.protocol();
  protocol.require_usable(Verb::broadcast, site);
  require_rank(Verb::broadcast, comm.rank(), "root", root, comm.size(), site);
  const Call call = describe<E>(Verb::broadcast, data.size(), pending_algorithm, 0, root, site);
  if (comm.size() == 1) {
    auto operation = protocol.post(call, options, 0, 0);
    protocol.finish(operation, 0, 0);
    return Work();
  }
  return begin_work(protocol, call, options, BroadcastSteps<E>{data, root}, std::move(kept));
}

}  // namespace detail

/// all_reduce(comm, input, output, op), begun. Bytes this rank moves, for D bytes: Direct 2 (N-1) / N D, when all
/// ranks' buffers are registered, else as all_reduce by channels.
template <Order Order = GlooRing, ControlTransport T, Element E, class Op>
Work all_reduce_async(Communicator<T>& comm, std::type_identity_t<std::span<const E>> input, std::span<E> output,
                      const Op& op, const CallOptions& options = {}, CallSite site = CallSite::here()) {
  return detail::begin_all_reduce<Order, T, E>(comm, input, output, op, options, site, {});
}
/// In place: `data` is input and output.
template <Order Order = GlooRing, ControlTransport T, Element E, class Op>
Work all_reduce_async(Communicator<T>& comm, std::span<E> data, const Op& op, const CallOptions& options = {},
                      CallSite site = CallSite::here()) {
  return detail::begin_all_reduce<Order, T, E>(comm, std::span<const E>(data), data, op, options, site, {});
}

/// reduce_scatter(comm, input, output, op), begun. Bytes this rank moves, for D bytes in all and a slice of S: Direct
/// or Fetch (N-1) S loaded, else Pairwise D - S sent.
template <Order Order = GlooRing, ControlTransport T, Element E, class Op>
Work reduce_scatter_async(Communicator<T>& comm, std::type_identity_t<std::span<const E>> input, std::span<E> output,
                          const Op& op, const CallOptions& options = {}, CallSite site = CallSite::here()) {
  return detail::begin_reduce_scatter<Order, T, E>(comm, input, output, op, options, site, {});
}

/// reduce_scatter_v(comm, input, output, counts, op), begun, with the bytes of reduce_scatter_async.
template <Order Order = GlooRing, ControlTransport T, Element E, class Op>
Work reduce_scatter_v_async(Communicator<T>& comm, std::type_identity_t<std::span<const E>> input, std::span<E> output,
                            std::span<const std::size_t> counts, const Op& op, const CallOptions& options = {},
                            CallSite site = CallSite::here()) {
  comm.protocol().require_usable(Verb::reduce_scatter_v, site);
  const detail::Runs runs(Verb::reduce_scatter_v, comm.rank(), comm.size(), counts, site);
  const Call call = detail::call_by_counts<E, Order>(comm.rank(), input.size(), runs, pending_algorithm, op, site);
  return detail::begin_reduce_scatter_v<T, E>(comm, call, input, output, runs, op,
                                              Order::table(input.size(), sizeof(E), comm.size()), options, {});
}

/// all_gather(comm, input, output), begun. Bytes this rank moves, for D bytes in all and a slice of S: Direct
/// or Fetch D - S loaded, else as all_gather by channels.
template <ControlTransport T, Element E>
Work all_gather_async(Communicator<T>& comm, std::type_identity_t<std::span<const E>> input, std::span<E> output,
                      const CallOptions& options = {}, CallSite site = CallSite::here()) {
  return detail::begin_all_gather<T, E>(comm, input, output, options, site, {});
}

/// all_gather_v(comm, input, output, counts), begun, with the bytes of all_gather_async.
template <ControlTransport T, Element E>
Work all_gather_v_async(Communicator<T>& comm, std::type_identity_t<std::span<const E>> input, std::span<E> output,
                        std::span<const std::size_t> counts, const CallOptions& options = {},
                        CallSite site = CallSite::here()) {
  comm.protocol().require_usable(Verb::all_gather_v, site);
  const detail::Runs runs(Verb::all_gather_v, comm.rank(), comm.size(), counts, site);
  detail::require_count(Verb::all_gather_v, comm.rank(), "output", output.size(), runs.total(), site);
  Call call = detail::describe<E>(Verb::all_gather_v, output.size(), pending_algorithm, 0, -1, site);
  call.layout = runs.layout();
  return detail::begin_all_gather_slices<T, E>(comm, call, input, output, detail::ListedSlices(runs), options, {});
}

/// broadcast(comm, data, root), begun. Bytes this rank moves, for D bytes: Direct or Fetch D loaded by each but
/// root, else as broadcast by channels.
template <ControlTransport T, Element E>
Work broadcast_async(Communicator<T>& comm, std::span<E> data, int root, const CallOptions& options = {},
                     CallSite site = CallSite::here()) {
  return detail::begin_broadcast<T, E>(comm, data, root, options, site, {});
}

}  // namespace tandem
