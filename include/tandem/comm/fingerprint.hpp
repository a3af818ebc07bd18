// SPDX-License-Identifier: Apache-2.0
// What every rank says about the operation it has begun, and how two such statements are compared and put into words.
// Knows no transport.
#pragma once

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

#include "tandem/core/bytes.hpp"
#include "tandem/core/call_site.hpp"
#include "tandem/core/dtype.hpp"

namespace tandem {

enum class Verb : std::uint8_t {
  barrier,
  broadcast,
  all_reduce,
  reduce_scatter,
  all_gather,
  reduce,
  gather,
  gather_v,
  scatter,
  scatter_v,
  all_to_all,
  all_to_all_v,
  reduce_scatter_v,
  all_gather_v,
  send,
  recv,
  send_recv,
  split,
  exchange,
  all_reduce_coalesced
};

constexpr const char* name_of(Verb verb) noexcept {
  switch (verb) {
    case Verb::barrier:
      return "barrier";
    case Verb::broadcast:
      return "broadcast";
    case Verb::all_reduce:
      return "all_reduce";
    case Verb::reduce_scatter:
      return "reduce_scatter";
    case Verb::all_gather:
      return "all_gather";
    case Verb::reduce:
      return "reduce";
    case Verb::gather:
      return "gather";
    case Verb::gather_v:
      return "gather_v";
    case Verb::scatter:
      return "scatter";
    case Verb::scatter_v:
      return "scatter_v";
    case Verb::all_to_all:
      return "all_to_all";
    case Verb::all_to_all_v:
      return "all_to_all_v";
    case Verb::reduce_scatter_v:
      return "reduce_scatter_v";
    case Verb::all_gather_v:
      return "all_gather_v";
    case Verb::send:
      return "send";
    case Verb::recv:
      return "recv";
    case Verb::send_recv:
      return "send_recv";
    case Verb::split:
      return "split";
    case Verb::exchange:
      return "exchange";
    case Verb::all_reduce_coalesced:
      return "all_reduce_coalesced";
  }
  return "?";
}

/// Which numbers of reductions are PreMulSum's: those with one of its ids in the lowest byte, and a hash of the factor
/// above it. The ids, and their names, belong to layers below this one; checks.hpp asserts that they are these.
constexpr bool is_pre_mul_sum(std::uint32_t reduction) noexcept {
  return (reduction & 0x80000000U) == 0 && (reduction & 0xffU) >= 16;
}

/// The shortest digits that give this value back.
inline std::string number_text(double value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

/// One operation as its caller states it. `count` is in elements of the whole (larger) buffer.
struct Call {
  Verb verb{};
  Dtype dtype = Dtype::opaque;
  std::uint8_t algorithm = 0;  // number of a forced algorithm, 0 = chosen by the library
  std::uint16_t element_bytes = 0;
  std::int16_t root = -1;
  std::uint32_t reduction = 0;
  std::uint64_t count = 0;
  CallSite site{};
  std::uint32_t layout = 0;  // hash of the counts, by rank or by buffer, where a caller gives them
  std::uint8_t order = 0;    // number of the order of addition, 0 = GlooRing
  double factor = 0;         // PreMulSum's, for messages: `reduction` holds a hash of it

  std::size_t bytes() const noexcept { return count * element_bytes; }
  /// "from train.cpp:5 (main)", with what of the call a fingerprint does not spell out.
  std::string origin() const {
    return (is_pre_mul_sum(reduction) ? "with the factor " + number_text(factor) + " from " : "from ") + site.text();
  }
};

/// The part of a Call that must be equal on all ranks, as it lies in a shared line.
struct Fingerprint {
  std::uint64_t count = 0;
  std::uint32_t reduction = 0;
  std::uint32_t communicator = 0;
  std::uint32_t site = 0;  // hash; a difference is only reported, since if/else branches may hold the same call
  std::int16_t root = 0;
  std::uint16_t element_bytes = 0;
  std::uint8_t verb = 0;
  std::uint8_t dtype = 0;
  std::uint8_t algorithm = 0;
  std::uint8_t order = 0;
  std::uint32_t layout = 0;

  static Fingerprint of(const Call& call, std::uint32_t communicator) noexcept {
    return {call.count,
            call.reduction,
            communicator,
            call.site.hash(),
            call.root,
            call.element_bytes,
            static_cast<std::uint8_t>(call.verb),
            static_cast<std::uint8_t>(call.dtype),
            call.algorithm,
            call.order,
            call.layout};
  }
  bool agrees(const Fingerprint& other) const noexcept {
    return count == other.count && reduction == other.reduction && communicator == other.communicator &&
           root == other.root && element_bytes == other.element_bytes && verb == other.verb && dtype == other.dtype &&
           algorithm == other.algorithm && order == other.order && layout == other.layout;
  }
};
static_assert(sizeof(Fingerprint) == 32);

/// The names behind the numbers of reductions, algorithms and orders.
inline constexpr std::array<const char*, 6> algorithm_names{"none",     "Direct", "Ring",
                                                            "Pairwise", "Naive",  "that of the _async form"};
/// The _async forms take ways of their own.
inline constexpr std::uint8_t pending_algorithm = 5;
inline std::string algorithm_text(std::uint8_t number) {
  return number < algorithm_names.size() ? algorithm_names[number] : "number " + std::to_string(number);
}
/// Gives a reduction's name to `put` part by part, as std::string_view: asks for no memory.
template <class Put>
void spell_reduction(std::uint32_t id, Put put) {
  constexpr const char* names[] = {"none",   "Sum",   "Prod",   "Min",        "Max",       "Avg",
                                   "BitAnd", "BitOr", "BitXor", "LogicalAnd", "LogicalOr", "LogicalXor"};
  const auto put_number = [&](const char* before, std::uint32_t number, const char* after) {
    std::array<char, 10> digits{};
    const char* const end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
    put(std::string_view(before));
    put(std::string_view(digits.data(), static_cast<std::size_t>(end - digits.data())));
    put(std::string_view(after));
  };
  if (is_pre_mul_sum(id)) {
    put(std::string_view("PreMulSum of "));
    put(std::string_view(name_of(Dtype{static_cast<std::uint8_t>((id & 0xffU) - 16)})));
  } else if ((id & 0x80000000U) != 0) {
    put_number("a user's functor (number ", id & 0x7fffffffU, ")");
  } else if (id < std::size(names)) {
    put(std::string_view(names[id]));
  } else {
    put_number("number ", id, "");
  }
}
inline std::string reduction_text(std::uint32_t id) {
  std::string text;
  spell_reduction(id, [&](std::string_view part) { text += part; });
  return text;
}

inline std::string order_text(std::uint8_t number) {
  return number == 0 ? "GlooRing" : "a user's own (number " + std::to_string(number) + ")";
}

/// "dtype is float32 on rank 0 and int32 on rank 1": the first field in which two fingerprints differ. `factor_a` is
/// the factor of rank_a's call, if it has one; the other's is in the words of that call (see Call::origin).
inline std::string difference(const Fingerprint& a, int rank_a, const Fingerprint& b, int rank_b, double factor_a = 0) {
  const auto say = [&](const char* what, const std::string& left, const std::string& right) {
    return std::string(what) + " is " + left + " on rank " + std::to_string(rank_a) + " and " + right + " on rank " +
           std::to_string(rank_b);
  };
  if (a.communicator != b.communicator)
    return say("the communicator", std::to_string(a.communicator), std::to_string(b.communicator));
  if (a.verb != b.verb) return say("the operation", name_of(Verb{a.verb}), name_of(Verb{b.verb}));
  if (a.dtype != b.dtype) return say("dtype", name_of(Dtype{a.dtype}), name_of(Dtype{b.dtype}));
  if (a.element_bytes != b.element_bytes)
    return say("the element's size in bytes", std::to_string(a.element_bytes), std::to_string(b.element_bytes));
  if (a.count != b.count) return say("the number of elements", std::to_string(a.count), std::to_string(b.count));
  if (a.reduction != b.reduction && reduction_text(a.reduction) == reduction_text(b.reduction))
    return say("the factor of PreMulSum", number_text(factor_a), "another");
  if (a.reduction != b.reduction) return say("the reduction", reduction_text(a.reduction), reduction_text(b.reduction));
  if (a.root != b.root) return say("root", std::to_string(a.root), std::to_string(b.root));
  if (a.algorithm != b.algorithm)
    return say("the forced algorithm", algorithm_text(a.algorithm), algorithm_text(b.algorithm));
  if (a.order != b.order) return say("the order of addition", order_text(a.order), order_text(b.order));
  if (Verb{a.verb} == Verb::all_reduce_coalesced)
    return say("the hash of the buffers' counts", std::to_string(a.layout), std::to_string(b.layout));
  return say("the hash of the counts by rank", std::to_string(a.layout), std::to_string(b.layout));
}

}  // namespace tandem
