// SPDX-License-Identifier: Apache-2.0
// What the library asks of a model's type, and how it looks through holders and smart pointers. Duck-typed:
// torch::nn::Module fits without being named.
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "tandem/tensor/torch.hpp"

namespace tandem {

namespace detail {

/// For asking about the entries of a list that is returned by value.
template <class L>
L& as_lvalue(L&& list);
template <class L>
L& as_lvalue(L& list);

struct NamesForward {
  int forward;
};
template <class M>
struct WithAnotherForward : M, NamesForward {};

/// Finds forward() also where it is overloaded or a template: then its address cannot be taken, but a second base that
/// has the name makes it ambiguous.
template <class M>
consteval bool has_forward() {
  if constexpr (!std::is_class_v<M>)
    return false;
  else if constexpr (std::is_final_v<M>)
    return requires { &M::forward; };
  else
    return !requires { &WithAnotherForward<M>::forward; };
}

template <class M>
struct Pointee {
  using type = M;
};
template <class M>
requires(!has_forward<M>() && requires(M & holder) {
  {*holder};
  requires has_forward<std::remove_cvref_t<decltype(*holder)>>();
}) struct Pointee<M> {
  using type = std::remove_cvref_t<decltype(*std::declval<M&>())>;
};

template <class Member>
struct ResultOf {
  using type = at::Tensor;
};
template <class R, class C, class... A>
struct ResultOf<R (C::*)(A...)> {
  using type = std::remove_cvref_t<R>;
};
template <class R, class C, class... A>
struct ResultOf<R (C::*)(A...) const> {
  using type = std::remove_cvref_t<R>;
};
template <class M>
struct ForwardResult {
  using type = at::Tensor;  // overloaded or a template: every overload must return a tensor
};
template <class M>
requires requires { &M::forward; }
struct ForwardResult<M> : ResultOf<decltype(&M::forward)> {};

}  // namespace detail

/// The class that has forward(): M itself, or what M (a std::shared_ptr, a torch::nn::ModuleHolder) points to.
template <class M>
using Module = typename detail::Pointee<M>::type;

/// What the module's forward() returns.
template <class M>
using Output = typename detail::ForwardResult<Module<M>>::type;

/// One entry of named_parameters(): key()/value() as torch::OrderedDict gives, or a std::pair.
template <class Entry>
concept NamedTensor = requires(Entry& entry) {
  { entry.key() } -> std::convertible_to<std::string>;
  { entry.value() } -> std::convertible_to<at::Tensor>;
}
|| requires(Entry& entry) {
  { entry.first } -> std::convertible_to<std::string>;
  { entry.second } -> std::convertible_to<at::Tensor>;
};

/// Anything with forward() and named_parameters().
template <class M>
concept ModelType = detail::has_forward<Module<M>>() && requires(Module<M>& module) {
  requires NamedTensor<std::remove_reference_t<decltype(*std::begin(detail::as_lvalue(module.named_parameters())))>>;
};

}  // namespace tandem
