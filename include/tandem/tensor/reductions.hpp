// SPDX-License-Identifier: Apache-2.0
// The verbs that reduce, on at::Tensor: the same names, options and guarantees as on std::span, after a look at the
// tensors. Decides nothing about algorithms or orders.
//
// In all of them the tensors are dense, contiguous and on the CPU, of float32, float64, float16, bfloat16, int8, uint8,
// int32, int64 or bool, and of any shape: what counts are their elements, one after the other. Anything else, and a
// dtype that Op is not defined on, throws Error(argument) that names it, before anything is announced. No gradient
// flows through; a leaf that requires grad stays a leaf.
#pragma once

#include <cstddef>
#include <span>

#include "tandem/collective/all_reduce.hpp"
#include "tandem/collective/reduce.hpp"
#include "tandem/collective/reduce_scatter.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/call_site.hpp"
#include "tandem/tensor/detail/arguments.hpp"
#include "tandem/tensor/view.hpp"

namespace tandem {

/// Every rank's `tensor` becomes the reduction over all ranks' tensors, in place. Bits, steps, bytes and failures: see
/// all_reduce on std::span.
template <class Algorithm = Auto, class Order = GlooRing, class T, class Op>
void all_reduce(Communicator<T>& comm, const at::Tensor& tensor, Op op, CallOptions options = {},
                CallSite site = CallSite::here()) {
  const TensorView view = writable_view_of(tensor, "all_reduce", "the tensor", reduction_name<Op>());
  detail::visit_reducible<Op>(view.dtype, "all_reduce", [&](auto element) {
    tandem::all_reduce<Algorithm, Order>(comm, view.as<decltype(element)>(), op, options, site);
  });
}

/// `out` becomes the reduction over all ranks' `in`.
template <class Algorithm = Auto, class Order = GlooRing, class T, class Op>
void all_reduce(Communicator<T>& comm, const at::Tensor& in, const at::Tensor& out, Op op, CallOptions options = {},
                CallSite site = CallSite::here()) {
  const detail::InOut views = detail::in_and_out(in, out, "all_reduce", reduction_name<Op>());
  detail::visit_reducible<Op>(views.from.dtype, "all_reduce", [&](auto element) {
    using E = decltype(element);
    tandem::all_reduce<Algorithm, Order>(comm, views.from.as<E>(), views.to.as<E>(), op, options, site);
  });
}

/// Root's `out` becomes the reduction over all ranks' `in`. Elsewhere `out` is not looked at and may be undefined.
template <class Order = GlooRing, class T, class Op>
void reduce(Communicator<T>& comm, const at::Tensor& in, const at::Tensor& out, Op op, int root,
            CallOptions options = {}, CallSite site = CallSite::here()) {
  const TensorView from = view_of(in, "reduce", "the input", reduction_name<Op>());
  const TensorView to = comm.rank() == root ? writable_view_of(out, "reduce", "the output", reduction_name<Op>())
                                            : detail::nothing_of(from.dtype);
  detail::check_same_dtype(from, to, "reduce");
  detail::visit_reducible<Op>(from.dtype, "reduce", [&](auto element) {
    using E = decltype(element);
    tandem::reduce<Order>(comm, from.as<E>(), to.as<E>(), op, root, options, site);
  });
}

/// Root's `tensor` becomes the reduction over all ranks' tensors, in place; the others' are only read.
template <class Order = GlooRing, class T, class Op>
void reduce(Communicator<T>& comm, const at::Tensor& tensor, Op op, int root, CallOptions options = {},
            CallSite site = CallSite::here()) {
  reduce<Order>(comm, tensor, tensor, op, root, options, site);
}

/// `out` becomes this rank's slice (slice_of over the elements) of the reduction over all ranks' `in`.
template <class Algorithm = Auto, class Order = GlooRing, class T, class Op>
void reduce_scatter(Communicator<T>& comm, const at::Tensor& in, const at::Tensor& out, Op op, CallOptions options = {},
                    CallSite site = CallSite::here()) {
  const detail::InOut views = detail::in_and_out(in, out, "reduce_scatter", reduction_name<Op>());
  detail::visit_reducible<Op>(views.from.dtype, "reduce_scatter", [&](auto element) {
    using E = decltype(element);
    tandem::reduce_scatter<Algorithm, Order>(comm, views.from.as<E>(), views.to.as<E>(), op, options, site);
  });
}

/// The same with counts[r] elements for rank r, the same counts on all ranks.
template <class Order = GlooRing, class T, class Op>
void reduce_scatter_v(Communicator<T>& comm, const at::Tensor& in, const at::Tensor& out,
                      std::span<const std::size_t> counts, Op op, CallOptions options = {},
                      CallSite site = CallSite::here()) {
  const detail::InOut views = detail::in_and_out(in, out, "reduce_scatter_v", reduction_name<Op>());
  detail::visit_reducible<Op>(views.from.dtype, "reduce_scatter_v", [&](auto element) {
    using E = decltype(element);
    tandem::reduce_scatter_v<Order>(comm, views.from.as<E>(), views.to.as<E>(), counts, op, options, site);
  });
}

}  // namespace tandem
