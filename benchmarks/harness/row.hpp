// SPDX-License-Identifier: Apache-2.0
// One line of a benchmark's result, and how it is written: one JSON object per line, always with the same keys.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>

#include <nlohmann/json.hpp>

#include "harness/case.hpp"

namespace tandem::bench {

struct Row {
  std::string peer;
  Case which;
  double median_us = 0;
  double p99_us = 0;
  double copy_us = 0;  ///< all ranks copying a buffer of the same size at once; 0 where that means nothing
  std::uint64_t wrong = 0;
  double ratio = 0;  ///< this peer's median divided by tandem's
};

/// The share of the algorithm bandwidth that crosses the busiest link of the best algorithm (nccl-tests' convention).
constexpr double bus_factor(Verb verb, int ranks) noexcept {
  const double n = ranks;
  switch (verb) {
    case Verb::all_reduce:
      return 2.0 * (n - 1.0) / n;
    case Verb::reduce_scatter:
    case Verb::all_gather:
    case Verb::all_to_all:
      return (n - 1.0) / n;
    case Verb::broadcast:
    case Verb::send:
      return 1.0;
    case Verb::barrier:
      return 0.0;
  }
  return 0.0;
}

/// Bytes that must at least be loaded and stored by all ranks together, as a share of what N copies move (2ND).
constexpr double least_traffic(Verb verb, int ranks) noexcept {
  const double n = ranks;
  switch (verb) {
    case Verb::all_reduce:
      return 1.0;  // ND read, ND written
    case Verb::reduce_scatter:
      return (n + 1.0) / (2.0 * n);  // ND read, D written
    case Verb::all_gather:
      return (n + 1.0) / (2.0 * n);  // D read, ND written
    case Verb::broadcast:
      return 0.5;  // D read, (N-1)D written
    case Verb::all_to_all:
      return 1.0;  // ND read, ND written
    case Verb::send:
      return 0.5;  // N/2 pairs: each D read, D written
    case Verb::barrier:
      return 0.0;
  }
  return 0.0;
}

inline void write_row(std::ostream& out, const Row& row) {
  const double seconds = row.median_us * 1e-6;
  const auto bytes = static_cast<double>(row.which.bytes());
  const double algbw = seconds > 0 ? bytes / seconds * 1e-9 : 0.0;
  const double bound = least_traffic(row.which.verb, row.which.ranks) * row.copy_us;
  nlohmann::ordered_json line;
  line["peer"] = row.peer;
  line["transport"] = name_of(row.which.transport);
  line["verb"] = name_of(row.which.verb);
  line["dtype"] = tandem::name_of(row.which.dtype);
  line["ranks"] = row.which.ranks;
  line["bytes"] = row.which.bytes();
  line["registered"] = row.which.registered;
  line["median_us"] = row.median_us;
  line["p99_us"] = row.p99_us;
  line["algbw_gbs"] = algbw;
  line["busbw_gbs"] = algbw * bus_factor(row.which.verb, row.which.ranks);
  line["bound_percent"] = row.median_us > 0 ? 100.0 * bound / row.median_us : 0.0;
  line["wrong"] = row.wrong;
  line["ratio"] = row.ratio;
  out << line.dump() << '\n' << std::flush;
}

}  // namespace tandem::bench
