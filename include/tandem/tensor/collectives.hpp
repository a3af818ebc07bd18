// SPDX-License-Identifier: Apache-2.0
// The collectives on at::Tensor: the same names, options and guarantees as on std::span, after a look at the tensor.
// Decides nothing about algorithms or orders.
#pragma once

#include <string>

#include "tandem/collective/all_gather.hpp"
#include "tandem/collective/all_reduce.hpp"
#include "tandem/collective/broadcast.hpp"
#include "tandem/collective/reduce_scatter.hpp"
#include "tandem/collective/send_recv.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/call_site.hpp"
#include "tandem/reduce/functor.hpp"
#include "tandem/tensor/view.hpp"

namespace tandem {

namespace detail {

/// Calls f(E{}) with the element type of `dtype`, or says that Op is not defined on it.
template <class Op, class F>
void visit_reducible(Dtype dtype, const char* verb, F&& f) {
  visit_dtype(dtype, [&](auto element) {
    using E = decltype(element);
    if constexpr (Reduction<Op, E>) {
      f(element);
    } else {
      refuse_tensor(verb, std::string(name_of(dtype_of<E>())) + " is not supported for " + reduction_name<Op>() +
                              "; convert the tensor or choose another reduction");
    }
  });
}

inline void check_same_dtype(const TensorView& in, const TensorView& out, const char* verb) {
  if (in.dtype != out.dtype) {
    refuse_tensor(verb, std::string("the input is ") + name_of(in.dtype) + " and the output " + name_of(out.dtype) +
                            "; they must have one dtype");
  }
}

}  // namespace detail

/// Every rank's `tensor` becomes the reduction over all ranks' tensors, in place. A leaf that requires grad stays a
/// leaf; no gradient flows through. Bits, steps, bytes and failures: see all_reduce on std::span.
template <class Algorithm = Auto, class Order = GlooRing, class T, class Op>
void all_reduce(Communicator<T>& comm, const at::Tensor& tensor, Op op, CallOptions options = {},
                CallSite site = CallSite::here()) {
  const TensorView view = writable_view_of(tensor, "all_reduce");
  detail::visit_reducible<Op>(view.dtype, "all_reduce", [&](auto element) {
    tandem::all_reduce<Algorithm, Order>(comm, view.as<decltype(element)>(), op, options, site);
  });
}

/// `out` becomes the reduction over all ranks' `in`.
template <class Algorithm = Auto, class Order = GlooRing, class T, class Op>
void all_reduce(Communicator<T>& comm, const at::Tensor& in, const at::Tensor& out, Op op, CallOptions options = {},
                CallSite site = CallSite::here()) {
  const TensorView from = view_of(in, "all_reduce", "the input");
  const TensorView to = writable_view_of(out, "all_reduce", "the output");
  detail::check_same_dtype(from, to, "all_reduce");
  detail::visit_reducible<Op>(from.dtype, "all_reduce", [&](auto element) {
    using E = decltype(element);
    tandem::all_reduce<Algorithm, Order>(comm, std::span<const E>(from.as<E>()), to.as<E>(), op, options, site);
  });
}

/// `out` becomes this rank's slice (slice_of over the elements) of the reduction over all ranks' `in`.
template <class Algorithm = Auto, class Order = GlooRing, class T, class Op>
void reduce_scatter(Communicator<T>& comm, const at::Tensor& in, const at::Tensor& out, Op op, CallOptions options = {},
                    CallSite site = CallSite::here()) {
  const TensorView from = view_of(in, "reduce_scatter", "the input");
  const TensorView to = writable_view_of(out, "reduce_scatter", "the output");
  detail::check_same_dtype(from, to, "reduce_scatter");
  detail::visit_reducible<Op>(from.dtype, "reduce_scatter", [&](auto element) {
    using E = decltype(element);
    tandem::reduce_scatter<Algorithm, Order>(comm, std::span<const E>(from.as<E>()), to.as<E>(), op, options, site);
  });
}

/// `out` becomes all ranks' `in`, by rank; `in` is this rank's slice (slice_of over the elements of `out`).
template <class Algorithm = Auto, class T>
void all_gather(Communicator<T>& comm, const at::Tensor& in, const at::Tensor& out, CallOptions options = {},
                CallSite site = CallSite::here()) {
  const TensorView from = view_of(in, "all_gather", "the input", ElementUse::moved);
  const TensorView to = writable_view_of(out, "all_gather", "the output", ElementUse::moved);
  detail::check_same_dtype(from, to, "all_gather");
  visit_dtype(from.dtype, [&](auto element) {
    using E = decltype(element);
    tandem::all_gather<Algorithm>(comm, std::span<const E>(from.as<E>()), to.as<E>(), options, site);
  });
}

/// Every rank's `tensor` becomes that of rank `root`.
template <class Algorithm = Auto, class T>
void broadcast(Communicator<T>& comm, const at::Tensor& tensor, int root, CallOptions options = {},
               CallSite site = CallSite::here()) {
  const TensorView view = comm.rank() == root ? view_of(tensor, "broadcast", "the tensor", ElementUse::moved)
                                              : writable_view_of(tensor, "broadcast", "the tensor", ElementUse::moved);
  visit_dtype(view.dtype, [&](auto element) {
    tandem::broadcast<Algorithm>(comm, view.as<decltype(element)>(), root, options, site);
  });
}

/// Sends the elements of `tensor` to rank `to`, which must call recv with as many.
template <class T>
void send(Communicator<T>& comm, const at::Tensor& tensor, int to, CallOptions options = {},
          CallSite site = CallSite::here()) {
  const TensorView view = view_of(tensor, "send", "the tensor", ElementUse::moved);
  visit_dtype(view.dtype, [&](auto element) {
    using E = decltype(element);
    tandem::send(comm, std::span<const E>(view.as<E>()), to, options, site);
  });
}

/// `tensor` becomes what rank `from` sends.
template <class T>
void recv(Communicator<T>& comm, const at::Tensor& tensor, int from, CallOptions options = {},
          CallSite site = CallSite::here()) {
  const TensorView view = writable_view_of(tensor, "recv", "the tensor", ElementUse::moved);
  visit_dtype(view.dtype, [&](auto element) { tandem::recv(comm, view.as<decltype(element)>(), from, options, site); });
}

}  // namespace tandem
