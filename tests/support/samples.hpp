// SPDX-License-Identifier: Apache-2.0
// What a collective is held against: inputs that differ by element and rank, a fold in gloo's order written a second
// time (numerics of the library's contract, none of its code but the 16-bit conversions), and buffers with guards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tandem/comm/arena.hpp"
#include "tandem/core/dtype.hpp"
#include "tandem/reduce/functor.hpp"
#include "tandem/reduce/half.hpp"

namespace tandem::test {

inline std::uint64_t mix(std::uint64_t value) noexcept {  // splitmix64's finalizer
  value += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

/// A user's element: maps of the integers modulo 2^32, whose composition is associative but not commutative, so any
/// order but the contract's gives other bits. 12 bytes: divides neither a cache line nor a page.
struct Affine {
  std::uint32_t factor = 1;
  std::uint32_t offset = 0;
  std::uint32_t inputs = 1;
  friend bool operator==(const Affine&, const Affine&) = default;
};
struct Compose {
  Affine operator()(const Affine& input, const Affine& sofar) const {
    return {input.factor * sofar.factor, input.factor * sofar.offset + input.offset, input.inputs + sofar.inputs};
  }
};

/// Element `index` of rank `rank`'s input. Floats are of mixed sign over a few binary orders, so that most additions
/// round; integers use all their bits, so that sums wrap.
template <class E>
E sample(std::uint64_t index, int rank, std::uint64_t seed = 0) {
  const std::uint64_t bits = mix(index * 64 + static_cast<std::uint64_t>(rank) + (seed << 40));
  const float fraction = static_cast<float>(static_cast<std::int32_t>(bits & 0xffffff) - 0x800000) / 8388608.0F;
  const float wide = static_cast<float>(1U << (bits >> 24 & 7U)) * fraction;
  if constexpr (std::is_same_v<E, float>)
    return wide;
  else if constexpr (std::is_same_v<E, double>)
    return static_cast<double>(wide) * (1.0 + static_cast<double>(bits >> 32) * 0x1p-60);
  else if constexpr (std::is_same_v<E, Float16>)
    return to_float16(wide);
  else if constexpr (std::is_same_v<E, BFloat16>)
    return to_bfloat16(wide);
  else if constexpr (std::is_same_v<E, bool>)
    return (bits >> 13 & 1U) != 0;
  else if constexpr (std::is_same_v<E, Affine>) {
    return {static_cast<std::uint32_t>(bits) | 1U, static_cast<std::uint32_t>(bits >> 32), 1};
  } else {
    return static_cast<E>(bits >> 13);
  }
}

/// The first `count` of them. Kept from call to call: laws ask for the same again and again, and where nothing is
/// optimized they cost more than what is tested.
template <class E>
std::vector<E> samples(std::size_t count, int rank, std::uint64_t seed = 0) {
  static std::mutex mutex;
  static std::map<std::pair<int, std::uint64_t>, std::vector<E>> kept;
  const std::lock_guard lock(mutex);
  auto& all = kept[{rank, seed}];
  if (all.size() < count) {
    all.reserve(count);
    for (std::size_t i = all.size(); i < count; ++i) all.push_back(sample<E>(i, rank, seed));
  }
  return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count)};
}

template <class E>
using ComputedIn = std::conditional_t<std::is_same_v<E, Float16> || std::is_same_v<E, BFloat16>, float, E>;

template <class E>
ComputedIn<E> widen(E value) {
  if constexpr (std::is_same_v<ComputedIn<E>, E>)
    return value;
  else
    return to_float32(value);
}
template <class E>
E narrow(ComputedIn<E> value) {
  if constexpr (std::is_same_v<E, Float16>)
    return to_float16(value);
  else if constexpr (std::is_same_v<E, BFloat16>)
    return to_bfloat16(value);
  else
    return value;
}

/// One step of the fold. No NaN and no zero of the other sign among the samples, so < is all that Min and Max need.
template <class E, class Op>
E apply_once(const Op& op, E input, E sofar) {
  if constexpr (std::is_same_v<Op, Min>) {
    return widen(input) < widen(sofar) ? input : sofar;
  } else if constexpr (std::is_same_v<Op, Max>) {
    return widen(input) > widen(sofar) ? input : sofar;
  } else if constexpr (!tandem::detail::is_named_reduction<Op>) {
    return op(input, sofar);
  } else if constexpr (tandem::detail::is_logical<Op>) {
    const bool a = widen(input) != 0;
    const bool b = widen(sofar) != 0;
    const bool result = std::is_same_v<Op, LogicalAnd> ? a && b : std::is_same_v<Op, LogicalOr> ? a || b : a != b;
    return narrow<E>(result ? 1 : 0);
  } else if constexpr (tandem::detail::is_bitwise<Op>) {
    return static_cast<E>(std::is_same_v<Op, BitAnd>  ? input & sofar
                          : std::is_same_v<Op, BitOr> ? input | sofar
                                                      : input ^ sofar);
  } else if constexpr (std::is_integral_v<E>) {
    const auto a = static_cast<std::uint64_t>(input);
    const auto b = static_cast<std::uint64_t>(sofar);
    return static_cast<E>(std::is_same_v<Op, Prod> ? a * b : a + b);
  } else if constexpr (std::is_same_v<Op, Prod>) {
    return narrow<E>(widen(input) * widen(sofar));
  } else {
    return narrow<E>(widen(input) + widen(sofar));
  }
}
template <class E, class Op>
E scaled(const Op& op, E input) {
  if constexpr (requires { op.factor; }) {
    if constexpr (std::is_integral_v<E>)
      return static_cast<E>(static_cast<std::uint64_t>(input) * static_cast<std::uint64_t>(op.factor));
    else
      return narrow<E>(widen(input) * static_cast<ComputedIn<E>>(op.factor));
  } else {
    return input;
  }
}

/// What every rank must get from an all-reduce of `count` elements: gloo's ring, element by element.
class GlooRingOracle {
 public:
  GlooRingOracle(std::size_t count, std::size_t element_bytes, std::size_t ranks) : ranks_(ranks) {
    const std::size_t megabytes = (count * element_bytes + 1048575) / 1048576;
    std::size_t segments = megabytes > 2 * ranks ? megabytes : 2 * ranks;
    segments += (ranks - segments % ranks) % ranks;
    std::size_t segment_bytes = (count * element_bytes + segments - 1) / segments;
    segment_bytes += (element_bytes - segment_bytes % element_bytes) % element_bytes;
    chunk_ = segments / ranks * segment_bytes / element_bytes;
  }
  /// Element i, of which rank r's input is input(r).
  template <class E, class Op, class Input>
  E element(std::size_t i, const Op& op, Input input) const {
    std::size_t rank = (i / chunk_ + ranks_ - 1) % ranks_;
    E sofar = scaled<E>(op, input(rank));
    for (std::size_t k = 1; k < ranks_; ++k) {
      rank = (rank + ranks_ - 1) % ranks_;
      sofar = apply_once<E>(op, scaled<E>(op, input(rank)), sofar);
    }
    if constexpr (std::is_same_v<Op, Avg>) sofar = narrow<E>(widen(sofar) / static_cast<ComputedIn<E>>(ranks_));
    return sofar;
  }

 private:
  std::size_t ranks_;
  std::size_t chunk_;
};
template <class E, class Op>
std::vector<E> gloo_fold(const std::vector<std::vector<E>>& inputs, const Op& op) {
  const GlooRingOracle oracle(inputs[0].size(), sizeof(E), inputs.size());
  std::vector<E> result(inputs[0].size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = oracle.element<E>(i, op, [&](std::size_t rank) { return inputs[rank][i]; });
  }
  return result;
}

/// Where the chunks of that ring lie, for the bytes that a rank must send.
inline std::size_t gloo_chunk_bytes(std::size_t count, std::size_t element_bytes, std::size_t ranks, std::size_t c) {
  const std::size_t bytes = count * element_bytes;
  std::size_t segments = std::max((bytes + 1048575) / 1048576, 2 * ranks);
  segments = (segments + ranks - 1) / ranks * ranks;
  const std::size_t segment = ((bytes + segments - 1) / segments + element_bytes - 1) / element_bytes * element_bytes;
  const std::size_t begin = std::min(bytes, c * segments / ranks * segment);
  return std::min(bytes, begin + segments / ranks * segment) - begin;
}

/// `count` elements in private memory or in an arena, with guard bytes before and behind that must not change.
/// `shift` moves the first element off the alignment of a cache line by as many elements.
template <class E>
class GuardedBuffer {
 public:
  GuardedBuffer(std::shared_ptr<Arena> arena, std::size_t count, std::size_t shift = 0)
      : count_(count), bytes_((count + shift) * sizeof(E) + 2 * guard_bytes), begin_(guard_bytes + shift * sizeof(E)) {
    if (arena) {
      registered_.emplace(std::move(arena), bytes_);
      memory_ = registered_->data();
    } else {
      owned_.resize(bytes_ + 128);
      memory_ = owned_.data() + (128 - reinterpret_cast<std::uintptr_t>(owned_.data()) % 128);
    }
    std::memset(memory_, 0x5a, bytes_);
  }

  std::span<E> span() noexcept { return {reinterpret_cast<E*>(memory_ + begin_), count_}; }
  void fill(const std::vector<E>& values) {
    if (!values.empty()) std::memcpy(memory_ + begin_, values.data(), values.size() * sizeof(E));
  }
  /// Do the elements hold these bits?
  bool holds(const std::vector<E>& values) const noexcept {
    return values.size() == count_ &&
           (count_ == 0 || std::memcmp(memory_ + begin_, values.data(), count_ * sizeof(E)) == 0);
  }
  bool guards_intact() const noexcept {
    for (std::size_t i = 0; i < bytes_; ++i) {
      if (i == begin_) i += count_ * sizeof(E);
      if (i < bytes_ && memory_[i] != std::byte{0x5a}) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t guard_bytes = 128;
  std::size_t count_;
  std::size_t bytes_;
  std::size_t begin_;
  std::optional<ArenaArray<std::byte>> registered_;
  std::vector<std::byte> owned_;
  std::byte* memory_ = nullptr;
};

}  // namespace tandem::test
