// SPDX-License-Identifier: Apache-2.0
// What of a Trainer's options must be alike on all ranks, in words. Knows no ranks.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tandem/trainer/agreement.hpp"
#include "tandem/trainer/options.hpp"

namespace tandem::detail {

template <class Enumeration>
std::string number(Enumeration value) {
  return std::to_string(static_cast<int>(value));
}
inline std::vector<Fact> option_facts(const char* strategy, const TrainerOptions& options) {
  std::string caps = options.buckets.from_first_step ? "from step 1:" : "";
  for (const std::size_t cap : options.buckets.bytes) {
    if (!caps.empty()) caps += ' ';  // not " " + ..., of which g++ 12 warns falsely at -O3 (-Wrestrict)
    caps += std::to_string(cap);
  }
  return {{"the strategy", strategy},
          {"TrainerOptions::buckets", caps},
          {"TrainerOptions::clip_norm", options.clip_norm ? std::to_string(*options.clip_norm) : "unset"},
          {"TrainerOptions::clip_value", options.clip_value ? std::to_string(*options.clip_value) : "unset"},
          {"TrainerOptions::clip_method", number(options.clip_method)},
          {"TrainerOptions::unused", number(options.unused)},
          {"TrainerOptions::static_graph", options.static_graph ? "on" : "off"},
          {"TrainerOptions::accumulate", number(options.accumulate)},
          {"TrainerOptions::on_non_finite", number(options.on_non_finite)},
          {"TrainerOptions::uneven_inputs", options.uneven_inputs ? "on" : "off"},
          {"TrainerOptions::broadcast_buffers", options.broadcast_buffers ? "on" : "off"},
          {"TrainerOptions::reshard_after_forward", options.reshard_after_forward ? "on" : "off"},
          {"TrainerOptions::piece_bytes", std::to_string(options.piece_bytes)},
          {"TrainerOptions::placement", number(options.placement)},
          {"TrainerOptions::after_update", number(options.after_update)}};
}

}  // namespace tandem::detail
