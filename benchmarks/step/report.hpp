// SPDX-License-Identifier: Apache-2.0
// What the step benchmark says: a line for people and a row of JSON, always with the same keys. Computes what follows
// from the figures, and measures nothing.
#pragma once

#include <cstdint>
#include <iomanip>
#include <ostream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "step/memory.hpp"
#include "step/models.hpp"
#include "step/prediction.hpp"
#include "step/time.hpp"

namespace tandem::bench {

/// `json` may be null.
inline void report_times(std::ostream& out, std::ostream* json, const Job& job, std::int64_t parameters, int ranks,
                         const std::vector<StepTime>& times) {
  double alone_ms = 0;
  double c10d_ms = 0;
  for (const StepTime& it : times) {
    if (it.mode->link == Link::nothing) alone_ms = it.median_ms;
    if (it.mode->link == Link::gloo) c10d_ms = it.median_ms;
  }
  out << std::fixed << std::setprecision(2) << job.name << " (" << parameters << " parameters, batch " << job.batch
      << ", " << ranks << " ranks):\n";
  for (const StepTime& it : times) {
    const double exposed = it.median_ms - alone_ms;
    const double rate = it.median_ms > 0 ? c10d_ms / it.median_ms : 0.0;
    out << "  " << std::left << std::setw(14) << it.mode->name << std::right << std::setw(10) << it.median_ms
        << " ms, exposed " << std::setw(9) << exposed << " ms, x c10d's rate " << std::setw(6) << rate
        << ", weights differing " << (it.differing ? std::to_string(*it.differing) : "-") << '\n';
    nlohmann::ordered_json line;
    line["mode"] = it.mode->name;
    line["model"] = job.name;
    line["parameters"] = parameters;
    line["batch"] = job.batch;
    line["ranks"] = ranks;
    line["median_ms"] = it.median_ms;
    line["p99_ms"] = it.p99_ms;
    line["exposed_ms"] = exposed;
    line["exposed_share"] = nullptr;  // of nothing there is no share
    if (c10d_ms > alone_ms) line["exposed_share"] = exposed / (c10d_ms - alone_ms);
    line["rate"] = rate;
    line["weights_differing"] = nullptr;  // not compared
    if (it.differing) line["weights_differing"] = *it.differing;
    if (json != nullptr) *json << line.dump() << '\n' << std::flush;
  }
  out << std::flush;
}

inline void report_memory(std::ostream& out, std::ostream* json, const ModeInfo& mode, int ranks,
                          const MemoryUse& use) {
  const auto count = static_cast<double>(use.parameters);
  const Prediction predicted = predict(mode, count, ranks, use.piece_bytes);
  const double measured = use.trimmed.sum();
  out << std::fixed << std::setprecision(2) << std::left << std::setw(14) << mode.name << std::right << ranks
      << " ranks, bytes per parameter and rank: predicted " << std::setw(5) << predicted.sum() / count << ", measured "
      << std::setw(5) << measured / count << " (" << std::showpos << 100.0 * (measured / predicted.sum() - 1.0)
      << std::noshowpos << " %), most in a backward " << std::setw(5) << use.peak.sum() / count << std::endl;
  nlohmann::ordered_json line;
  line["mode"] = mode.name;
  line["parameters"] = use.parameters;
  line["ranks"] = ranks;
  line["parameter_bytes"] = predicted.parameters;
  line["gradient_bytes"] = predicted.gradients;
  line["optimizer_bytes"] = predicted.optimizer;
  line["room_bytes"] = predicted.room;
  line["under_way_bytes"] = use.under_way;
  line["predicted_bytes"] = predicted.sum();
  line["measured_bytes"] = measured;
  line["anonymous_bytes"] = use.trimmed.anonymous;
  line["shared_bytes"] = use.trimmed.shared;
  line["malloc_bytes"] = use.held.sum() - measured;
  line["peak_bytes"] = use.peak.sum();
  line["first_peak_bytes"] = use.first.sum();
  if (json != nullptr) *json << line.dump() << '\n' << std::flush;
}

}  // namespace tandem::bench
