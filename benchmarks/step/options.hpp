// SPDX-License-Identifier: Apache-2.0
// What the step benchmark is asked to do. Names models and modes by their names alone.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "step/mode.hpp"
#include "step/models.hpp"

namespace tandem::bench {

struct Options {
  int ranks = 2;
  int steps = 15;
  int warm_up = 4;  // the second step lays the buckets out anew
  bool pin = false;
  bool memory = false;
  int layers = 32;  // of the model whose memory is measured
  std::vector<std::string> models = job_names();
  std::vector<std::string> modes = mode_names();
  std::string json;
};

/// c10d and alone always do.
inline bool takes_part(const ModeInfo& mode, const Options& options) {
  return !is_ours(mode) || std::find(options.modes.begin(), options.modes.end(), mode.name) != options.modes.end();
}

/// Declares the command line; `options` must outlive the parsing.
inline void declare(CLI::App& app, Options& options) {
  app.add_option("--ranks", options.ranks, "ranks, forked by this program")->check(CLI::Range(2, 8));
  app.add_option("--steps", options.steps, "timed steps")->check(CLI::Range(1, 5000));
  app.add_option("--warm-up", options.warm_up, "steps before")->check(CLI::Range(0, 1000));
  app.add_option("--models", options.models, "cases to run; all unless given")
      ->delimiter(',')
      ->check(CLI::IsMember(job_names()));
  app.add_option("--modes", options.modes, "tandem's modes to run beside c10d and alone; all unless given")
      ->delimiter(',')
      ->check(CLI::IsMember(mode_names()));
  app.add_flag("--memory", options.memory, "measure the memory of each mode instead of its time");
  app.add_option("--layers", options.layers, "with --memory: layers of the model, 1024 x 1024 each")
      ->check(CLI::Range(2, 1024));
  app.add_option("--json", options.json, "write one JSON object per line and mode");
  app.add_flag("--pin", options.pin, "bind every rank to a processor");
}

}  // namespace tandem::bench
