// SPDX-License-Identifier: Apache-2.0
// Counts the bytes that operations move between ranks beside the bytes that formulas said they would. Knows no formula.
#pragma once

#include <cstdint>

namespace tandem {

/// Of one rank of one communicator, since it was made. A byte is counted by the rank that moves it:
/// sent to a peer through a channel, or loaded from or stored to a peer's memory. Copies within a rank do not count.
struct Ledger {
  std::uint64_t operations = 0;
  std::uint64_t predicted = 0;  ///< bytes, by the formula of the algorithm that was taken
  std::uint64_t measured = 0;   ///< bytes, added up where they move

  /// predicted == measured must hold after every operation that succeeded.
  bool balanced() const noexcept { return predicted == measured; }

  friend Ledger operator-(const Ledger& late, const Ledger& early) noexcept {
    return {late.operations - early.operations, late.predicted - early.predicted, late.measured - early.measured};
  }
};

}  // namespace tandem
