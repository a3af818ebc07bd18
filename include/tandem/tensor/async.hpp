// SPDX-License-Identifier: Apache-2.0
// The asynchronous and the coalesced verbs on at::Tensor, after a look at the tensors. Decides nothing about algorithms
// or orders.
#pragma once

#include <any>
#include <span>
#include <string>
#include <vector>

#include "tandem/collective/all_reduce_coalesced.hpp"
#include "tandem/collective/async.hpp"
#include "tandem/comm/communicator.hpp"
#include "tandem/core/call_site.hpp"
#include "tandem/tensor/collectives.hpp"
#include "tandem/tensor/torch.hpp"
#include "tandem/tensor/view.hpp"

namespace tandem {

/// all_reduce(comm, tensor, op), begun: see all_reduce_async on std::span. The work keeps the tensor's storage alive.
template <class Order = GlooRing, class T, class Op>
Work all_reduce_async(Communicator<T>& comm, const at::Tensor& tensor, Op op, CallOptions options = {},
                      CallSite site = CallSite::here()) {
  const TensorView view = writable_view_of(tensor, "all_reduce", "the tensor", reduction_name<Op>());
  Work work;
  detail::visit_reducible<Op>(view.dtype, "all_reduce", [&](auto element) {
    using E = decltype(element);
    const std::span<E> data = view.as<E>();
    work = detail::begin_all_reduce<Order, T, E>(comm, data, data, op, options, site, tensor);
  });
  return work;
}

/// all_reduce(comm, in, out, op), begun. `in` and `out` are the same elements or disjoint; the work keeps both tensors'
/// storage alive.
template <class Order = GlooRing, class T, class Op>
Work all_reduce_async(Communicator<T>& comm, const at::Tensor& in, const at::Tensor& out, Op op,
                      CallOptions options = {}, CallSite site = CallSite::here()) {
  const detail::InOut views = detail::in_and_out(in, out, "all_reduce", reduction_name<Op>());
  Work work;
  detail::visit_reducible<Op>(views.from.dtype, "all_reduce", [&](auto element) {
    using E = decltype(element);
    work = detail::begin_all_reduce<Order, T, E>(comm, views.from.as<E>(), views.to.as<E>(), op, options, site,
                                                 std::vector<at::Tensor>{in, out});
  });
  return work;
}

/// reduce_scatter(comm, in, out, op), begun. The work keeps both tensors' storage alive.
template <class Order = GlooRing, class T, class Op>
Work reduce_scatter_async(Communicator<T>& comm, const at::Tensor& in, const at::Tensor& out, Op op,
                          CallOptions options = {}, CallSite site = CallSite::here()) {
  const detail::InOut views = detail::in_and_out(in, out, "reduce_scatter", reduction_name<Op>());
  Work work;
  detail::visit_reducible<Op>(views.from.dtype, "reduce_scatter", [&](auto element) {
    using E = decltype(element);
    work = detail::begin_reduce_scatter<Order, T, E>(comm, views.from.as<E>(), views.to.as<E>(), op, options, site,
                                                     std::vector<at::Tensor>{in, out});
  });
  return work;
}

/// all_gather(comm, in, out), begun. The work keeps both tensors' storage alive.
template <class T>
Work all_gather_async(Communicator<T>& comm, const at::Tensor& in, const at::Tensor& out, CallOptions options = {},
                      CallSite site = CallSite::here()) {
  const detail::InOut views = detail::in_and_out(in, out, "all_gather");
  Work work;
  visit_dtype(views.from.dtype, [&](auto element) {
    using E = decltype(element);
    work = detail::begin_all_gather<T, E>(comm, views.from.as<E>(), views.to.as<E>(), options, site,
                                          std::vector<at::Tensor>{in, out});
  });
  return work;
}

/// broadcast(comm, tensor, root), begun. The work keeps the tensor's storage alive.
template <class T>
Work broadcast_async(Communicator<T>& comm, const at::Tensor& tensor, int root, CallOptions options = {},
                     CallSite site = CallSite::here()) {
  const TensorView view = comm.rank() == root ? view_of(tensor, "broadcast", "the tensor")
                                              : writable_view_of(tensor, "broadcast", "the tensor");
  Work work;
  visit_dtype(view.dtype, [&](auto element) {
    using E = decltype(element);
    work = detail::begin_broadcast<T, E>(comm, view.as<E>(), root, options, site, tensor);
  });
  return work;
}

/// Every tensor of the list becomes the reduction over all ranks' tensors at that place, in place: see
/// all_reduce_coalesced on std::span, which has the order of addition and the bytes. All tensors have one dtype; an
/// empty list is a call like any other, of float32.
template <class Order = GlooRing, class T, class Op>
void all_reduce_coalesced(Communicator<T>& comm, at::TensorList tensors, Op op, CallOptions options = {},
                          CallSite site = CallSite::here()) {
  constexpr const char* verb = "all_reduce_coalesced";
  std::vector<TensorView> views;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string name = "tensor " + std::to_string(i);
    views.push_back(writable_view_of(tensors[i], verb, name.c_str(), reduction_name<Op>()));
    if (views[i].dtype != views[0].dtype) {
      detail::refuse_tensor(verb, "tensor 0 is " + std::string(name_of(views[0].dtype)) + " and " + name + " " +
                                      name_of(views[i].dtype) + "; they must have one dtype");
    }
  }
  detail::visit_reducible<Op>(views.empty() ? Dtype::float32 : views[0].dtype, verb, [&](auto element) {
    using E = decltype(element);
    std::vector<std::span<E>> buffers;
    for (const TensorView& view : views) buffers.push_back(view.as<E>());
    tandem::all_reduce_coalesced<Order>(comm, std::span<const std::span<E>>(buffers), op, options, site);
  });
}

}  // namespace tandem
