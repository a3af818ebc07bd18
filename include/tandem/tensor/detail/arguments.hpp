// SPDX-License-Identifier: Apache-2.0
// What the collectives on at::Tensor ask of their arguments beside each tensor's own state (see view.hpp). Knows no
// collective.
#pragma once

#include <string>
#include <string_view>

#include "tandem/comm/communicator.hpp"
#include "tandem/core/dtype.hpp"
#include "tandem/reduce/functor.hpp"
#include "tandem/tensor/view.hpp"

namespace tandem::detail {

/// Calls f(E{}) with the element type of `dtype`, or says that Op is not defined on it.
template <class Op, class F>
void visit_reducible(Dtype dtype, const char* verb, F&& f) {
  visit_dtype(dtype, [&](auto element) {
    using E = decltype(element);
    if constexpr (Reduction<Op, E>)
      f(element);
    else
      refuse_dtype(verb, "the tensor", scalar_type_of(dtype_of<E>()), reduction_name<Op>());
  });
}

inline void check_same_dtype(const TensorView& in, const TensorView& out, const char* verb) {
  if (in.dtype != out.dtype) {
    refuse_tensor(verb, std::string("the input is ") + name_of(in.dtype) + " and the output " + name_of(out.dtype) +
                            "; they must have one dtype");
  }
}

/// What a verb reads, and what it writes of the same dtype.
struct InOut {
  TensorView from, to;
};
inline InOut in_and_out(const at::Tensor& in, const at::Tensor& out, const char* verb,
                        std::string_view reduction = {}) {
  const InOut views{view_of(in, verb, "the input", reduction), writable_view_of(out, verb, "the output", reduction)};
  check_same_dtype(views.from, views.to, verb);
  return views;
}

/// Where a verb looks at a tensor on root only: elsewhere it may be undefined, and counts for nothing.
inline TensorView nothing_of(Dtype dtype) { return {nullptr, 0, dtype}; }

}  // namespace tandem::detail
