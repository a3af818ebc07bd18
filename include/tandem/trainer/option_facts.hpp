// SPDX-License-Identifier: Apache-2.0
// What of a Trainer's strategy and options must be alike on all ranks, in words. Knows no ranks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "tandem/core/dtype.hpp"
#include "tandem/trainer/agreement.hpp"
#include "tandem/trainer/options.hpp"

namespace tandem::detail {

template <class Enumeration>
std::string number(Enumeration value) {
  return std::to_string(static_cast<int>(value));
}
/// With all digits that tell one double from another.
inline std::string number(const std::optional<double>& value) {
  if (!value) return "unset";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.17g", *value);
  return text.data();
}
/// In which form a strategy's gradients travel; one that does not say sends them as they are.
template <class Strategy>
std::string compression_of() {
  if constexpr (requires { Strategy::wire; })
    return Strategy::wire == Dtype::opaque ? "none" : name_of(Strategy::wire);
  else
    return "none";
}
template <class Strategy>
std::vector<Fact> option_facts(const TrainerOptions& options) {
  std::string caps = options.buckets.from_first_step ? "from step 1:" : "";
  for (const std::size_t cap : options.buckets.bytes) {
    if (!caps.empty()) caps += ' ';  // not " " + ..., of which g++ 12 warns falsely at -O3 (-Wrestrict)
    caps += std::to_string(cap);
  }
  return {{"the strategy", Strategy::name},
          {"the strategy's compression", compression_of<Strategy>()},
          {"TrainerOptions::buckets", caps},
          {"TrainerOptions::clip_norm", number(options.clip_norm)},
          {"TrainerOptions::clip_value", number(options.clip_value)},
          {"TrainerOptions::clip_method", number(options.clip_method)},
          {"TrainerOptions::unused", number(options.unused)},
          {"TrainerOptions::static_graph", options.static_graph ? "on" : "off"},
          {"TrainerOptions::accumulate", number(options.accumulate)},
          {"TrainerOptions::on_non_finite", number(options.on_non_finite)},
          {"TrainerOptions::uneven_inputs", options.uneven_inputs ? "on" : "off"},
          {"TrainerOptions::broadcast_buffers", options.broadcast_buffers ? "on" : "off"},
          {"TrainerOptions::reshard_after_forward", options.reshard_after_forward ? "on" : "off"},
          {"TrainerOptions::trim_after_update", options.trim_after_update ? "on" : "off"},
          {"TrainerOptions::gradient_hook", options.gradient_hook ? "set" : "unset"},
          {"TrainerOptions::piece_bytes", std::to_string(options.piece_bytes)},
          {"TrainerOptions::placement", number(options.placement)},
          {"TrainerOptions::after_update", number(options.after_update)}};
}

}  // namespace tandem::detail
