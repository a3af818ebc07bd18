// SPDX-License-Identifier: Apache-2.0
// What the user asked for, checked: command line in, plain values out. Knows nothing of tensors or ranks at work.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

namespace gpt {

/// How big the model is and how long it trains. Numbers of rows are per rank: more ranks see more text in a run.
struct Preset {
  const char* name;
  std::int64_t layers;
  std::int64_t width;
  std::int64_t heads;
  std::int64_t context;  ///< characters the model looks at
  int batch;             ///< windows of text per rank and step
  int steps;             ///< unless the user gives another number
  double learning_rate;
  int held_out_windows;
};

inline constexpr Preset presets[] = {
    {"tiny", 2, 32, 2, 32, 4, 30, 2e-3, 64},        // a few seconds, for trying things out
    {"small", 4, 128, 4, 64, 8, 1600, 2e-3, 1024},  // two to three minutes on two cores
    {"base", 6, 384, 6, 256, 16, 5000, 1e-3, 512},  // hours on two cores
};

enum class Strategy { single, ddp, zero1, zero2, zero3, fsdp2 };
inline constexpr const char* strategy_names[] = {"single", "ddp", "zero1", "zero2", "zero3", "fsdp2"};
constexpr const char* name_of(Strategy strategy) { return strategy_names[static_cast<int>(strategy)]; }

struct Options {
  int ranks = 0;
  Strategy strategy = Strategy::ddp;
  std::string transport = "shm";
  int steps = 0;
  int accumulate = 1;  ///< micro-batches per step
  double clip = 1.0;   ///< largest norm of all gradients; 0: they stay as they are
  Preset preset = presets[1];
  std::string data;
  std::string json;     ///< empty: none
  std::string weights;  ///< likewise
  std::uint64_t seed = 1;
  bool verify = false;
};

/// Who started this process, where that decides what the user may ask for.
struct Setting {
  int cores = 1;
  std::optional<int> launched_ranks;  ///< given by a launcher
};

/// The options with all defaults filled in; or the text of --help, when that is what was asked for.
/// Throws InputError with one sentence for anything that cannot be.
std::variant<Options, std::string> parse(int argument_count, const char* const* arguments, const Setting& setting);

}  // namespace gpt
