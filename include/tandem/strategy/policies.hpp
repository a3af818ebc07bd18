// SPDX-License-Identifier: Apache-2.0
// Policies that a strategy's type may name in any order, each kind at most once: whose bits, how many ranks, in which
// form gradients travel.
#pragma once

#include <type_traits>

#include "tandem/strategy/compression.hpp"

namespace tandem {

/// The program whose bits a strategy gives.
namespace reference {
struct ddp {};    ///< torch.nn.parallel.DistributedDataParallel
struct fsdp2 {};  ///< torch.distributed.fsdp.fully_shard, each unit of the model by itself
}  // namespace reference

/// Over how many ranks; 0: what the world size leaves over.
template <int Ranks>
struct degree {
  static constexpr int value = Ranks;
};

namespace detail {

enum class PolicyKind { none, reference, compression, degree };

template <class Policy>
inline constexpr PolicyKind kind_of_policy = PolicyKind::none;
template <>
inline constexpr PolicyKind kind_of_policy<reference::ddp> = PolicyKind::reference;
template <>
inline constexpr PolicyKind kind_of_policy<reference::fsdp2> = PolicyKind::reference;
template <>
inline constexpr PolicyKind kind_of_policy<compress::none> = PolicyKind::compression;
template <>
inline constexpr PolicyKind kind_of_policy<compress::bf16> = PolicyKind::compression;
template <>
inline constexpr PolicyKind kind_of_policy<compress::fp16> = PolicyKind::compression;
template <int Ranks>
inline constexpr PolicyKind kind_of_policy<degree<Ranks>> = PolicyKind::degree;

/// The policy of a kind, or the default.
template <PolicyKind kind, class Default, class... Policies>
struct PolicyOf {
  using type = Default;
};
template <PolicyKind kind, class Default, class First, class... Rest>
struct PolicyOf<kind, Default, First, Rest...>
    : std::conditional_t<kind_of_policy<First> == kind, std::type_identity<First>, PolicyOf<kind, Default, Rest...>> {};
template <PolicyKind kind, class Default, class... Policies>
using policy_of = typename PolicyOf<kind, Default, Policies...>::type;

/// Is each of them a policy, and none of the same kind as another?
template <class... Policies>
consteval bool policies_are_sound() {
  const auto once = [](PolicyKind kind) {
    return ((kind_of_policy<Policies> == kind ? 1 : 0) + ... + 0) <= (kind == PolicyKind::none ? 0 : 1);
  };
  return once(PolicyKind::none) && once(PolicyKind::reference) && once(PolicyKind::compression) &&
         once(PolicyKind::degree);
}

}  // namespace detail

}  // namespace tandem
