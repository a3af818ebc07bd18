// SPDX-License-Identifier: Apache-2.0
// The verbs that move elements as they are, on at::Tensor: the same names, options and guarantees as on std::span,
// after a look at the tensors. Decides nothing about algorithms.
//
// What tensors may be, and how others are refused: see reductions.hpp.
#pragma once

#include <cstddef>
#include <span>

#include "tandem/collective/all_gather.hpp"
#include "tandem/collective/all_to_all.hpp"
#include "tandem/collective/broadcast.hpp"
#include "tandem/collective/gather.hpp"
#include "tandem/collective/scatter.hpp"
#include "tandem/collective/send_recv.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/call_site.hpp"
#include "tandem/tensor/detail/arguments.hpp"
#include "tandem/tensor/view.hpp"

namespace tandem {

/// Every rank's `tensor` becomes that of rank `root`.
template <class Algorithm = Auto, class T>
void broadcast(Communicator<T>& comm, const at::Tensor& tensor, int root, CallOptions options = {},
               CallSite site = CallSite::here()) {
  const TensorView view = comm.rank() == root ? view_of(tensor, "broadcast") : writable_view_of(tensor, "broadcast");
  visit_dtype(view.dtype, [&](auto element) {
    tandem::broadcast<Algorithm>(comm, view.as<decltype(element)>(), root, options, site);
  });
}

/// `out` becomes all ranks' `in`, by rank; `in` is this rank's slice (slice_of over the elements of `out`).
template <class Algorithm = Auto, class T>
void all_gather(Communicator<T>& comm, const at::Tensor& in, const at::Tensor& out, CallOptions options = {},
                CallSite site = CallSite::here()) {
  const detail::InOut views = detail::in_and_out(in, out, "all_gather");
  visit_dtype(views.from.dtype, [&](auto element) {
    using E = decltype(element);
    tandem::all_gather<Algorithm>(comm, views.from.as<E>(), views.to.as<E>(), options, site);
  });
}

/// The same with counts[r] elements from rank r, the same counts on all ranks.
template <class T>
void all_gather_v(Communicator<T>& comm, const at::Tensor& in, const at::Tensor& out,
                  std::span<const std::size_t> counts, CallOptions options = {}, CallSite site = CallSite::here()) {
  const detail::InOut views = detail::in_and_out(in, out, "all_gather_v");
  visit_dtype(views.from.dtype, [&](auto element) {
    using E = decltype(element);
    tandem::all_gather_v(comm, views.from.as<E>(), views.to.as<E>(), counts, options, site);
  });
}

/// Root's `out` becomes all ranks' `in`, by rank, with as many elements from each. Elsewhere `out` is not looked at and
/// may be undefined.
template <class T>
void gather(Communicator<T>& comm, const at::Tensor& in, const at::Tensor& out, int root, CallOptions options = {},
            CallSite site = CallSite::here()) {
  const TensorView from = view_of(in, "gather", "the input");
  const TensorView to =
      comm.rank() == root ? writable_view_of(out, "gather", "the output") : detail::nothing_of(from.dtype);
  detail::check_same_dtype(from, to, "gather");
  visit_dtype(from.dtype, [&](auto element) {
    using E = decltype(element);
    tandem::gather(comm, from.as<E>(), to.as<E>(), root, options, site);
  });
}

/// The same with counts[r] elements from rank r, the same counts on all ranks.
template <class T>
void gather_v(Communicator<T>& comm, const at::Tensor& in, const at::Tensor& out, std::span<const std::size_t> counts,
              int root, CallOptions options = {}, CallSite site = CallSite::here()) {
  const TensorView from = view_of(in, "gather_v", "the input");
  const TensorView to =
      comm.rank() == root ? writable_view_of(out, "gather_v", "the output") : detail::nothing_of(from.dtype);
  detail::check_same_dtype(from, to, "gather_v");
  visit_dtype(from.dtype, [&](auto element) {
    using E = decltype(element);
    tandem::gather_v(comm, from.as<E>(), to.as<E>(), counts, root, options, site);
  });
}

/// `out` becomes this rank's part of root's `in`, equal parts by rank. Elsewhere `in` is not looked at and may be
/// undefined.
template <class T>
void scatter(Communicator<T>& comm, const at::Tensor& in, const at::Tensor& out, int root, CallOptions options = {},
             CallSite site = CallSite::here()) {
  const TensorView to = writable_view_of(out, "scatter", "the output");
  const TensorView from = comm.rank() == root ? view_of(in, "scatter", "the input") : detail::nothing_of(to.dtype);
  detail::check_same_dtype(from, to, "scatter");
  visit_dtype(from.dtype, [&](auto element) {
    using E = decltype(element);
    tandem::scatter(comm, from.as<E>(), to.as<E>(), root, options, site);
  });
}

/// The same with counts[r] elements for rank r, the same counts on all ranks.
template <class T>
void scatter_v(Communicator<T>& comm, const at::Tensor& in, const at::Tensor& out, std::span<const std::size_t> counts,
               int root, CallOptions options = {}, CallSite site = CallSite::here()) {
  const TensorView to = writable_view_of(out, "scatter_v", "the output");
  const TensorView from = comm.rank() == root ? view_of(in, "scatter_v", "the input") : detail::nothing_of(to.dtype);
  detail::check_same_dtype(from, to, "scatter_v");
  visit_dtype(from.dtype, [&](auto element) {
    using E = decltype(element);
    tandem::scatter_v(comm, from.as<E>(), to.as<E>(), counts, root, options, site);
  });
}

/// Part r of `out` becomes part rank() of rank r's `in`, equal parts by rank.
template <class T>
void all_to_all(Communicator<T>& comm, const at::Tensor& in, const at::Tensor& out, CallOptions options = {},
                CallSite site = CallSite::here()) {
  const detail::InOut views = detail::in_and_out(in, out, "all_to_all");
  visit_dtype(views.from.dtype, [&](auto element) {
    using E = decltype(element);
    tandem::all_to_all(comm, views.from.as<E>(), views.to.as<E>(), options, site);
  });
}

/// The same with send_counts[r] elements for rank r and receive_counts[r] from it, both one after the other by rank.
template <class T>
void all_to_all_v(Communicator<T>& comm, const at::Tensor& in, std::span<const std::size_t> send_counts,
                  const at::Tensor& out, std::span<const std::size_t> receive_counts, CallOptions options = {},
                  CallSite site = CallSite::here()) {
  const detail::InOut views = detail::in_and_out(in, out, "all_to_all_v");
  visit_dtype(views.from.dtype, [&](auto element) {
    using E = decltype(element);
    tandem::all_to_all_v(comm, views.from.as<E>(), send_counts, views.to.as<E>(), receive_counts, options, site);
  });
}

/// Sends the elements of `tensor` to rank `to`, which must call recv with as many.
template <class T>
void send(Communicator<T>& comm, const at::Tensor& tensor, int to, CallOptions options = {},
          CallSite site = CallSite::here()) {
  const TensorView view = view_of(tensor, "send");
  visit_dtype(view.dtype, [&](auto element) {
    using E = decltype(element);
    tandem::send(comm, std::span<const E>(view.as<E>()), to, options, site);
  });
}

/// `tensor` becomes what rank `from` sends.
template <class T>
void recv(Communicator<T>& comm, const at::Tensor& tensor, int from, CallOptions options = {},
          CallSite site = CallSite::here()) {
  const TensorView view = writable_view_of(tensor, "recv");
  visit_dtype(view.dtype, [&](auto element) { tandem::recv(comm, view.as<decltype(element)>(), from, options, site); });
}

/// Sends `out` to rank `to` while `in` becomes what rank `from` sends.
template <class T>
void send_recv(Communicator<T>& comm, const at::Tensor& out, int to, const at::Tensor& in, int from,
               CallOptions options = {}, CallSite site = CallSite::here()) {
  const TensorView sent = view_of(out, "send_recv", "what is sent");
  const TensorView received = writable_view_of(in, "send_recv", "what is received");
  detail::check_same_dtype(sent, received, "send_recv");
  visit_dtype(sent.dtype, [&](auto element) {
    using E = decltype(element);
    tandem::send_recv(comm, sent.as<E>(), to, received.as<E>(), from, options, site);
  });
}

}  // namespace tandem
