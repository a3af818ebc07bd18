// SPDX-License-Identifier: Apache-2.0
// tandem's collectives over ShmRing against the MPIs, gloo and a plain prototype, and over Tcp against gloo, in one run
// and by turns; every result is checked. Google Benchmark drives rank 0, the other ranks follow; its time is tandem's.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <CLI/CLI.hpp>

#include "collectives/options.hpp"
#include "collectives/rank.hpp"
#include "harness/contest.hpp"
#include "harness/job.hpp"
#include "harness/row.hpp"
#include "harness/statistics.hpp"
#include "harness/team.hpp"
#include "peers/mpi.hpp"
#include "peers/prototype.hpp"
#include "tandem/comm/identity.hpp"
#include "tandem/comm/spawn.hpp"

namespace tandem::bench {
namespace {

/// The seconds of a peer's calls, each the slowest rank's (or rank 0's, as the prototype's own loop measures).
std::vector<double> slowest(Team& team, std::size_t first, std::size_t count, bool rank_0_only) {
  std::vector<double> times(team.samples(0) + first, team.samples(0) + first + count);
  for (int rank = 1; rank < team.ranks() && !rank_0_only; ++rank) {
    for (std::size_t i = 0; i < count; ++i) times[i] = std::max(times[i], team.samples(rank)[first + i]);
  }
  return times;
}

/// Rank 0's side of a case, as a Google Benchmark: one iteration is one round, its time the median call of tandem.
void measure(benchmark::State& state, Rank& self, std::size_t index, std::ostream* json, std::uint64_t& all_wrong) {
  const Case& which = self.cases()[index];
  Team& team = self.team();
  const Plan plan = Plan::for_bytes(which.bytes(), self.options().patience);
  team.next(static_cast<std::int64_t>(index));
  const auto entries = self.entries_of(which);
  int turn = 0;
  for (auto _ : state) {
    self.round(which, entries, plan, turn);
    team.align();
    const int calls = plan.block_of(entries.front());
    state.SetIterationTime(median(slowest(team, static_cast<std::size_t>(turn * calls), static_cast<std::size_t>(calls),
                                          self.options().rank_0_only)));
    ++turn;
  }
  std::vector<Row> rows;
  std::size_t place = 0;
  double copy_us = 0;
  for (const Entry& entry : entries) {
    const auto count = static_cast<std::size_t>(plan.rounds * plan.block_of(entry));
    const auto times = slowest(team, place, count, self.options().rank_0_only);
    place += count;
    Row row;
    row.peer = entry.peer;
    row.which = which;
    row.median_us = median(times) * 1e6;
    row.p99_us = percentile(times, 0.99) * 1e6;
    row.wrong = self.total_wrong(entry.peer);
    all_wrong += row.wrong;
    if (entry.peer == "copy") copy_us = row.median_us;
    rows.push_back(row);
  }
  for (Row& row : rows) {
    // The copies are the bound of an all-reduce; of the other verbs a share of them is.
    row.copy_us = copy_us;
    row.ratio = rows.front().median_us > 0 ? row.median_us / rows.front().median_us : 0.0;
    if (json != nullptr) write_row(*json, row);
    if (row.peer == "tandem") {
      state.counters["median_us"] = row.median_us;
      state.counters["p99_us"] = row.p99_us;
      if (row.median_us > 0)
        state.counters["%bound"] = 100.0 * least_traffic(which.verb, which.ranks) * copy_us / row.median_us;
    } else if (row.peer != "copy") {
      state.counters[row.peer + "_x"] = row.ratio;
    }
    if (row.peer != "copy") state.counters["wrong"].value += static_cast<double>(row.wrong);
  }
}

/// A following rank's side: whatever rank 0 names, until nothing is left.
void follow(Rank& self) {
  for (auto index = self.team().next(); index != Team::nothing_left; index = self.team().next()) {
    const Case& which = self.cases()[static_cast<std::size_t>(index)];
    const Plan plan = Plan::for_bytes(which.bytes(), self.options().patience);
    const auto entries = self.entries_of(which);
    for (int turn = 0; turn < plan.rounds; ++turn) {
      self.round(which, entries, plan, turn);
      self.team().align();
    }
    for (const Entry& entry : entries) self.total_wrong(entry.peer);
  }
}

int lead(Rank& self, int argc, char** argv) {
  std::unique_ptr<std::ofstream> json;
  if (!self.options().json.empty()) {
    json = std::make_unique<std::ofstream>(self.options().json);
    if (!*json) {
      std::cerr << "collectives: cannot write " << self.options().json << '\n';
      return 2;
    }
  }
  std::uint64_t all_wrong = 0;
  for (std::size_t index = 0; index < self.cases().size(); ++index) {
    const Case& which = self.cases()[index];
    benchmark::RegisterBenchmark(
        which.name().c_str(),
        [&, index](benchmark::State& state) { measure(state, self, index, json.get(), all_wrong); })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond)
        ->Iterations(Plan::for_bytes(which.bytes(), self.options().patience).rounds);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  self.team().next(Team::nothing_left);
  self.dismiss_guests();
  if (all_wrong > 0) std::cerr << "collectives: " << all_wrong << " wrong elements\n";
  return all_wrong > 0 ? 1 : 0;
}

/// The MPIs that were asked for and found, started; they end with this object.
struct Guests {
  Guests(const Options& options, const Team& team) {
    if (!listed(options.transports, "shm")) return;
    int group = 0;
    for (const Mpi& mpi : all_mpis) {
      if (!listed(options.peers, mpi.peer)) continue;
      const std::string program = program_of(mpi);
      if (program.empty()) continue;
      jobs.push_back(start_mpi(program, team, ++group, options.pin));
      visitors.push_back({mpi, group, jobs.back().ended()});
    }
  }
  /// After the ranks have dismissed them.
  bool finish() {
    bool all = true;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      if (jobs[i].finish()) continue;
      std::cerr << "collectives: " << visitors[i].mpi.name << " did not end well\n";
      all = false;
    }
    return all;
  }

  std::vector<Job> jobs;
  std::vector<Visitor> visitors;
};

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  using namespace tandem::bench;
  Options options;
  CLI::App app{
      "tandem's collectives against MPIs, gloo and a plain prototype, in one run. Google Benchmark's own options "
      "(--benchmark_filter=...) may follow."};
  app.allow_extras();
  declare(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& fault) {
    return app.exit(fault) == 0 ? 0 : 2;
  }
  std::vector<std::string> rest = app.remaining();
  std::vector<char*> arguments{argv[0]};
  for (auto& argument : rest) arguments.push_back(argument.data());

  Team team(options.ranks);
  std::size_t window_bytes = tandem::page_bytes;
  for (const Case& which : cases_of(options)) window_bytes = std::max(window_bytes, which.bytes());
  Prototype prototype(options.ranks, window_bytes);
  std::string store_file = (std::filesystem::temp_directory_path() / "tandem_bench_XXXXXX").string();
  const int store = mkstemp(store_file.data());
  if (store < 0) {
    std::perror("collectives: no temporary file");
    return 1;
  }
  close(store);
  Guests guests(options, team);

  tandem::SpawnOptions watch;
  watch.notice = [](const std::string& what) { std::cerr << "collectives: " << what << '\n'; };
  const auto rank_main = [&] {
    team.enter(tandem::identity_from_environment().rank);
    Rank self(options, team, prototype, store_file, guests.visitors);
    if (team.rank() == 0) return lead(self, static_cast<int>(arguments.size()), arguments.data());
    follow(self);
    return 0;
  };
  int status = tandem::spawn(options.ranks, rank_main, watch);
  unlink(store_file.c_str());
  if (status == 0 && !guests.finish()) status = 1;
  return status;
}
