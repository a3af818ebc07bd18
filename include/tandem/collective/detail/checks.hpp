// SPDX-License-Identifier: Apache-2.0
// What is wrong with the arguments of a collective, found before anything is announced: such an error costs no sequence
// number and leaves the communicator as it was.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "tandem/collective/algorithm.hpp"
#include "tandem/comm/fingerprint.hpp"
#include "tandem/core/bytes.hpp"
#include "tandem/core/error.hpp"
#include "tandem/reduce/fold.hpp"
#include "tandem/reduce/functor.hpp"
#include "tandem/reduce/order.hpp"

namespace tandem::detail {

// The numbers to which fingerprint.hpp gives names.
static_assert(reduction_id<Sum>() == 1 && reduction_id<Prod>() == 2 && reduction_id<Min>() == 3 &&
              reduction_id<Max>() == 4 && reduction_id<Avg>() == 5 && reduction_id<BitAnd>() == 6 &&
              reduction_id<BitOr>() == 7 && reduction_id<BitXor>() == 8 && reduction_id<LogicalAnd>() == 9 &&
              reduction_id<LogicalOr>() == 10 && reduction_id<LogicalXor>() == 11 &&
              reduction_id<PreMulSum<float>>() == 16 && reduction_id<PreMulSum<std::int64_t>>() < 255);
static_assert(Direct::number == 1 && Ring::number == 2 && Pairwise::number == 3 && Naive::number == 4);

template <class Algorithm, class T>
consteval void check_algorithm() {
  static_assert(
      !std::same_as<Algorithm, Direct> || T::has_windows,
      "tandem: Direct reaches into the peers' memory, which this transport does not share; force Ring, Pairwise "
      "or Naive, or leave the choice to Auto");
}

[[noreturn]] inline void refuse(Verb verb, int rank, const std::string& what, CallSite site) {
  throw Error(
      ErrorKind::argument,
      std::string("tandem: ") + name_of(verb) + " (" + site.text() + ") on rank " + std::to_string(rank) + ": " + what,
      rank, -1, name_of(verb));
}

inline void require_count(Verb verb, int rank, const char* what, std::size_t given, std::size_t expected,
                          CallSite site) {
  if (given == expected) return;
  refuse(verb, rank,
         std::string(what) + " has " + std::to_string(given) + " elements where " + std::to_string(expected) +
             " are needed",
         site);
}

/// `part` must lie exactly at `place` of `whole`, or not touch it at all.
template <class E>
void require_in_place_or_disjoint(Verb verb, int rank, std::span<const E> part, std::span<const E> whole,
                                  std::size_t place, CallSite site) {
  if (part.empty() || whole.empty() || part.data() == whole.data() + place) return;
  const auto a = reinterpret_cast<std::uintptr_t>(part.data());
  const auto b = reinterpret_cast<std::uintptr_t>(whole.data());
  if (a + part.size_bytes() <= b || b + whole.size_bytes() <= a) return;
  refuse(verb, rank,
         "input and output overlap; they must be disjoint, or the smaller the exact place in the larger (offset " +
             std::to_string(place) + ")",
         site);
}

inline void require_rank(Verb verb, int rank, const char* what, int given, int size, CallSite site) {
  if (given >= 0 && given < size) return;
  refuse(verb, rank,
         std::string(what) + " " + std::to_string(given) + " is not a rank of 0 .. " + std::to_string(size - 1), site);
}

template <class E>
Call describe(Verb verb, std::size_t count, std::uint8_t algorithm, std::uint32_t reduction, int root,
              CallSite site) noexcept {
  static_assert(sizeof(E) <= std::numeric_limits<std::uint16_t>::max(), "tandem: an element has at most 65535 bytes");
  return {verb,      dtype_of<E>(), algorithm, static_cast<std::uint16_t>(sizeof(E)), static_cast<std::int16_t>(root),
          reduction, count,         site};
}

/// The same for a verb that reduces with `op` in the sequence of Order.
template <class E, class Order, class Op>
Call describe_reduction(Verb verb, std::size_t count, std::uint8_t algorithm, const Op& op, int root,
                        CallSite site) noexcept {
  Call call = describe<E>(verb, count, algorithm, reduction_fingerprint(op), root, site);
  call.order = order_id<Order>();
  if constexpr (PreMulScalar<Op>::yes) call.factor = convert_factor<double>(op.factor);
  return call;
}

}  // namespace tandem::detail
