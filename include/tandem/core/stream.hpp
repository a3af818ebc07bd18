// SPDX-License-Identifier: Apache-2.0
// Bytes through any pair of stream ends, piece by piece, with a copy or lent. Knows reserve / commit / lend and peek /
// consume, and no transport.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "tandem/core/copy.hpp"

namespace tandem::detail {

/// Can take memory by reference, for a while, instead of a copy of it.
template <class Out>
concept Lending = requires(Out& out, std::span<const std::byte> memory) {
  out.lend(memory);
  out.keep_loans();
  out.drained();
};

/// Sends `bytes`, at most a slot of them, when reserve() gave `slot`.
template <class Out>
void copy_over(Out& out, std::span<std::byte> slot, std::span<const std::byte> bytes) noexcept {
  copy_for_others(slot.data(), bytes.data(), bytes.size());
  out.commit(bytes.size());
}
/// The same without the copy where the stream can borrow: then they must not change before end_loans().
template <class Out>
void hand_over(Out& out, std::span<std::byte> slot, std::span<const std::byte> bytes) noexcept {
  if constexpr (Lending<Out>)
    out.lend(bytes);
  else
    copy_over(out, slot, bytes);
}
/// Has all that was sent left this process? Where it can stay behind, nobody would send it on while the program does
/// other things, so an operation does not end before.
template <class Out>
bool drained(Out& out) noexcept {
  if constexpr (Lending<Out>)
    return out.drained();
  else
    return true;
}
/// From here on the memory that was handed over may change.
template <class Out>
void end_loans(Out& out) noexcept {
  if constexpr (Lending<Out>) out.keep_loans();
}
/// Ends the loans of its scope, also when it is left by an exception. `out` may be null.
template <class Out>
class LoanScope {
 public:
  explicit LoanScope(Out* out) noexcept : out_(out) {}
  LoanScope(const LoanScope&) = delete;
  LoanScope& operator=(const LoanScope&) = delete;
  ~LoanScope() {
    if (out_ != nullptr) end_loans(*out_);
  }

 private:
  Out* out_;
};

/// Calls send(slot, part) as long as there is room; returns the number of bytes sent.
template <class Out, class Send>
std::size_t for_each_slot(Out& out, std::span<const std::byte> bytes, Send send) noexcept {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const auto slot = out.reserve();
    if (slot.empty()) break;
    const std::size_t part = std::min(slot.size(), bytes.size() - done);
    send(slot, bytes.subspan(done, part));
    done += part;
  }
  return done;
}
/// Copies as much as fits now, slot by slot; returns the number of bytes taken.
template <class Out>
std::size_t write_some(Out& out, std::span<const std::byte> bytes) noexcept {
  return for_each_slot(out, bytes, [&](auto slot, auto part) { copy_over(out, slot, part); });
}
/// The same, handed over.
template <class Out>
std::size_t hand_over_some(Out& out, std::span<const std::byte> bytes) noexcept {
  return for_each_slot(out, bytes, [&](auto slot, auto part) { hand_over(out, slot, part); });
}

/// Copies out what has arrived, at most bytes.size(); returns the number of bytes copied.
template <class In>
std::size_t read_some(In& in, std::span<std::byte> bytes) noexcept {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const auto seen = in.peek();
    if (seen.empty()) break;
    const std::size_t part = std::min(seen.size(), bytes.size() - done);
    copy_bytes(bytes.data() + done, seen.data(), part);
    in.consume(part);
    done += part;
  }
  return done;
}

}  // namespace tandem::detail
