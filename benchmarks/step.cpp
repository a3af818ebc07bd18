// SPDX-License-Identifier: Apache-2.0
// A data-parallel training step in tandem's modes against the same step by PyTorch's own c10d::Reducer over gloo and
// against the step without any communication: one run, by turns, and all weights must end equal in every bit. Or the
// memory of each mode, in processes of its own, against what the documentation says it takes.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <fstream>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <CLI/CLI.hpp>

#include "harness/team.hpp"
#include "step/memory.hpp"
#include "step/mode.hpp"
#include "step/options.hpp"
#include "step/report.hpp"
#include "step/time.hpp"
#include "step/worlds.hpp"
#include "tandem/comm/identity.hpp"
#include "tandem/comm/spawn.hpp"
#include "tests/support/c10d_oracle.hpp"

namespace tandem::bench {
namespace {

using JsonFile = std::optional<std::ofstream>;

/// Empty when none is wanted. Throws when it cannot be written.
JsonFile json_file(const Options& options) {
  if (options.json.empty()) return std::nullopt;
  JsonFile file(options.json);
  if (!*file) throw std::runtime_error("cannot write " + options.json);
  return file;
}

void use_one_thread() {
  at::set_num_threads(1);
  at::set_num_interop_threads(1);
}

/// One rank of the timed modes.
int time_rank(const Options& options, Team& team, const std::string& store_file) {
  use_one_thread();
  Worlds worlds;
  for (const ModeInfo& mode : all_modes) {
    // Before pinning: gloo's threads keep all processors.
    if (mode.link == Link::gloo) worlds.connect(mode.link, store_file, team.rank(), team.ranks());
  }
  if (options.pin) team.pin();
  for (const ModeInfo& mode : all_modes) {
    if (takes_part(mode, options)) worlds.connect(mode.link, store_file, team.rank(), team.ranks());
  }
  JsonFile json = team.rank() == 0 ? json_file(options) : std::nullopt;
  std::uint64_t differing = 0;
  for (const std::string& name : job_names()) {
    if (std::find(options.models.begin(), options.models.end(), name) == options.models.end()) continue;
    const Job job = job_named(name);
    const std::vector<StepTime> times = time_steps(team, worlds, options, job);
    for (const StepTime& it : times) differing += it.differing.value_or(0);
    if (team.rank() != 0) continue;
    std::int64_t parameters = 0;
    for (const auto& parameter : job.make()->parameters()) parameters += parameter.numel();
    report_times(std::cout, json ? &*json : nullptr, job, parameters, team.ranks(), times);
  }
  if (team.rank() == 0 && differing > 0) std::cerr << "step: " << differing << " weights differ\n";
  return differing > 0 ? 1 : 0;
}

int time_main(const Options& options) {
  Team team(options.ranks);
  const tandem_oracle::StoreFile store;
  return tandem::spawn(options.ranks, [&] {
    team.enter(tandem::identity_from_environment().rank);
    return time_rank(options, team, store.path());
  });
}

/// Processes of its own for each mode: nothing of another one is left in them.
int memory_main(const Options& options) {
  JsonFile json = json_file(options);
  for (const ModeInfo& mode : all_modes) {
    if (!takes_part(mode, options)) continue;
    Team team(options.ranks);
    const tandem_oracle::StoreFile store;
    const int status = tandem::spawn(options.ranks, [&] {
      team.enter(tandem::identity_from_environment().rank);
      use_one_thread();
      Worlds worlds;
      worlds.connect(mode.link, store.path(), team.rank(), team.ranks());
      measure_memory(team, worlds, mode, options.layers);
      return 0;
    });
    if (status != 0) return status;
    report_memory(std::cout, json ? &*json : nullptr, mode, options.ranks, memory_use(team));
  }
  return 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  using namespace tandem::bench;
  Options options;
  CLI::App app{"A data-parallel training step: tandem against c10d::Reducer over gloo, and without communication."};
  declare(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& fault) {
    return app.exit(fault) == 0 ? 0 : 2;
  }
  try {
    return options.memory ? memory_main(options) : time_main(options);
  } catch (const std::exception& fault) {
    std::cerr << "step: " << fault.what() << '\n';
    return 2;
  }
}
