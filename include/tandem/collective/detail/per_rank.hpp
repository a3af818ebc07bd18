// SPDX-License-Identifier: Apache-2.0
// One value per rank, on the stack for the usual numbers of ranks: a collective of a few bytes must not allocate.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

namespace tandem::detail {

template <class Value>
class PerRank {
 public:
  explicit PerRank(int ranks) {
    if (static_cast<std::size_t>(ranks) > on_stack) {
      many_ = std::make_unique<Value[]>(static_cast<std::size_t>(ranks));
      values_ = many_.get();
    }
  }
  PerRank(const PerRank&) = delete;
  PerRank& operator=(const PerRank&) = delete;

  Value& operator[](int rank) noexcept { return values_[rank]; }
  const Value& operator[](int rank) const noexcept { return values_[rank]; }
  Value* data() noexcept { return values_; }

 private:
  static constexpr std::size_t on_stack = 16;
  std::array<Value, on_stack> few_;
  std::unique_ptr<Value[]> many_;
  Value* values_ = few_.data();
};

}  // namespace tandem::detail
