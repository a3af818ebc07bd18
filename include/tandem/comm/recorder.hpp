// SPDX-License-Identifier: Apache-2.0
// The flight recorder: the last operations of one rank of one communicator, for errors and for a look from outside.
// Costs a few stores an operation; allocates once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tandem/comm/fingerprint.hpp"
#include "tandem/core/clock.hpp"

namespace tandem {

enum class Progress : std::uint8_t { begun, finished };

struct Record {
  std::uint64_t sequence = 0;  // collectives count from 1 within the communicator; messages within the pair of ranks
  std::uint64_t begun_at = 0;  // ticks()
  Call call{};
  Progress progress = Progress::begun;
};

class Recorder {
 public:
  static constexpr std::size_t capacity = 1024;

  /// A ticket for finish().
  std::uint64_t begin(std::uint64_t sequence, const Call& call) noexcept {
    (*records_)[count_ % capacity] = {sequence, ticks(), call, Progress::begun};
    return count_++;
  }
  void finish(std::uint64_t ticket) noexcept {
    if (count_ - ticket <= capacity) (*records_)[ticket % capacity].progress = Progress::finished;
  }
  /// The last operations, oldest first, at most `capacity`.
  std::vector<Record> last() const {
    std::vector<Record> all;
    for (std::uint64_t i = count_ > capacity ? count_ - capacity : 0; i < count_; ++i)
      all.push_back((*records_)[i % capacity]);
    return all;
  }

 private:
  std::unique_ptr<std::array<Record, capacity>> records_ = std::make_unique<std::array<Record, capacity>>();
  std::uint64_t count_ = 0;
};

}  // namespace tandem
