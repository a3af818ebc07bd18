// SPDX-License-Identifier: Apache-2.0
// The algorithms by which a collective can be carried out, as types: a program may force one
// (all_reduce<Ring>(world, x, Sum{})). All of them give the same bits; they differ in bytes and synchronisations.
#pragma once

#include <concepts>
#include <cstdint>

namespace tandem {

/// Chosen by size and by whether all ranks' buffers are registered: registered ones go Direct, messages of up to 8 KiB
/// from private buffers ride beside the flags, others go by channels.
struct Auto {
  static constexpr std::uint8_t number = 0;
  static constexpr const char* name = "Auto";
};
/// Loads from and stores to the peers' registered buffers: every input is read once, every output written once.
struct Direct {
  static constexpr std::uint8_t number = 1;
  static constexpr const char* name = "Direct";
};
/// Partial results travel from rank r to rank r - 1, in gloo's direction.
struct Ring {
  static constexpr std::uint8_t number = 2;
  static constexpr const char* name = "Ring";
};
/// Every rank sends every other what that one owns: one hop, any partition.
struct Pairwise {
  static constexpr std::uint8_t number = 3;
  static constexpr const char* name = "Pairwise";
};
/// Everything to everyone: the baseline that shows what the others save.
struct Naive {
  static constexpr std::uint8_t number = 4;
  static constexpr const char* name = "Naive";
};

/// Is `A` one of `Allowed`?
template <class A, class... Allowed>
concept OneOf = (std::same_as<A, Allowed> || ...);

}  // namespace tandem
