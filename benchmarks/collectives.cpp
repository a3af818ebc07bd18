// SPDX-License-Identifier: Apache-2.0
// tandem's collectives over ShmRing against gloo and against a plain prototype, in one run and by turns; every result
// is checked. Google Benchmark drives rank 0, the other ranks follow; its time is tandem's.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <CLI/CLI.hpp>

#include "harness/contest.hpp"
#include "harness/pattern.hpp"
#include "harness/row.hpp"
#include "harness/statistics.hpp"
#include "harness/team.hpp"
#include "peers/copy.hpp"
#include "peers/gloo.hpp"
#include "peers/prototype.hpp"
#include "peers/tandem_peer.hpp"
#include "tandem/comm/join.hpp"
#include "tandem/comm/spawn.hpp"
#include "tandem/transport/shm_ring.hpp"

namespace tandem::bench {
namespace {

struct Options {
  int ranks = 2;
  std::size_t most_bytes = std::size_t{256} << 20;
  std::size_t least_bytes = 8;
  std::vector<std::string> verbs = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "send", "barrier"};
  std::vector<std::string> dtypes = {"float32"};
  std::vector<std::string> buffers = {"registered", "unregistered"};
  std::string json;
  double patience = 1.0;
  bool pin = true;
  bool every_size = false;
  bool rank_0_only = false;
};

constexpr Verb all_verbs[] = {Verb::all_reduce, Verb::reduce_scatter, Verb::all_gather,
                              Verb::broadcast,  Verb::send,           Verb::barrier};
constexpr Dtype all_dtypes[] = {Dtype::float32, Dtype::float64, Dtype::float16, Dtype::bfloat16,
                                Dtype::int8,    Dtype::uint8,   Dtype::int32,   Dtype::int64};

std::vector<Case> cases_of(const Options& options) {
  const auto listed = [](const std::vector<std::string>& list, const char* name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  std::vector<Case> cases;
  for (const Verb verb : all_verbs) {
    if (!listed(options.verbs, name_of(verb))) continue;
    if (verb == Verb::send && options.ranks % 2 != 0) continue;  // pairs
    for (const Dtype dtype : all_dtypes) {
      if (!listed(options.dtypes, tandem::name_of(dtype))) continue;
      for (const bool registered : {true, false}) {
        if (!listed(options.buffers, registered ? "registered" : "unregistered")) continue;
        if (verb == Verb::barrier) {
          if (registered) cases.push_back({verb, dtype, 0, true, options.ranks});
          continue;
        }
        const std::size_t factor = options.every_size ? 2 : 4;
        std::size_t bytes = 8;
        while (bytes <= options.most_bytes) {
          // gloo knows equal slices only, so the sliced verbs get a count that the ranks divide.
          std::size_t count = std::max<std::size_t>(1, bytes / size_of(dtype));
          if (verb == Verb::reduce_scatter || verb == Verb::all_gather) {
            count = round_up(count, static_cast<std::size_t>(options.ranks));
          }
          if (bytes >= options.least_bytes) cases.push_back({verb, dtype, count, registered, options.ranks});
          bytes = bytes < 1024 ? bytes * (options.every_size ? 2 : 128) : bytes * factor;
        }
      }
    }
  }
  return cases;
}

/// All of one rank: its buffers, its peers, and the cases it takes part in.
class Rank {
 public:
  Rank(const Options& options, Team& team, Prototype& prototype, const std::string& store_file)
      : options_(options),
        team_(team),
        prototype_(prototype),
        cases_(cases_of(options)),
        gloo_(team.rank(), team.ranks(), store_file),  // before pinning: its threads keep all processors
        world_(join<ShmRing>()) {
    if (options.pin) team.pin();
    prototype_.enter(team);
    std::size_t bytes = page_bytes;
    for (const Case& which : cases_) bytes = std::max(bytes, which.bytes());
    bytes += 37 * page_bytes;  // so that no two buffers lie a power of two apart, see prototype.cpp
    private_in_.resize(bytes);
    private_out_.resize(bytes);
    const bool registered = std::any_of(cases_.begin(), cases_.end(), [](const Case& c) { return c.registered; });
    if (registered) {
      window_in_ = static_cast<std::byte*>(world_.arena()->allocate(bytes));
      window_out_ = static_cast<std::byte*>(world_.arena()->allocate(bytes));
      std::memset(window_in_, 0, bytes);
      std::memset(window_out_, 0, bytes);
    }
    copy_.emplace(bytes);
  }

  const std::vector<Case>& cases() const noexcept { return cases_; }

  /// Takes part in one round of a case; every rank calls it alike. Samples land in the team's mapping.
  void round(const Case& which, const std::vector<Entry>& entries, const Plan& plan, int turn) {
    std::size_t place = 0;
    for (const Entry& entry : entries) {
      const int calls = plan.block_of(entry);
      visit_number(which.dtype, [&]<class T>(T) {
        wrong_[entry.peer] += run_block<T>(team_, pattern<T>(), which, entry, calls, plan.warm_up,
                                           place + static_cast<std::size_t>(turn * calls), turns_);
      });
      place += static_cast<std::size_t>(plan.rounds * calls);
    }
  }

  std::vector<Entry> entries_of(const Case& which) {
    std::vector<Entry> entries;
    const bool in_place = which.verb == Verb::all_reduce || which.verb == Verb::broadcast || which.verb == Verb::send;
    const auto add = [&](const char* peer, std::byte* in, std::byte* out, std::function<void()> operate) {
      Entry entry;
      entry.peer = peer;
      entry.input = which.verb == Verb::barrier ? nullptr : in;
      entry.output = in_place ? in : out;
      entry.operate = std::move(operate);
      if (entry.operate) entries.push_back(std::move(entry));
    };
    std::byte* const in = which.registered ? window_in_ : private_in_.data();
    std::byte* const out = which.registered ? window_out_ : private_out_.data();
    visit_number(which.dtype, [&]<class T>(T) { add("tandem", in, out, tandem_operation<T>(world_, which, in, out)); });
    if (which.verb == Verb::all_reduce && which.dtype == Dtype::float32) {
      if (which.registered) {
        auto* const window = reinterpret_cast<std::byte*>(prototype_.window());
        add("prototype", window, window, [this, count = which.count] { prototype_.all_reduce_window(count); });
      } else {
        auto* const data = reinterpret_cast<float*>(private_in_.data());
        add("prototype", private_in_.data(), private_in_.data(),
            [this, data, count = which.count] { prototype_.all_reduce_private(data, count); });
      }
    }
    add("gloo", private_in_.data(), private_out_.data(),
        gloo_.operation(which, private_in_.data(), private_out_.data()));
    if (!entries.empty() && entries.back().peer == "gloo") entries.back().sluggish = true;
    if (which.verb != Verb::barrier) {
      add("copy", nullptr, nullptr, [this, bytes = which.bytes()] { copy_->run(bytes); });
      entries.back().input = nullptr;
      entries.back().checked = false;
      // As many copies as make a sample that the clock can measure: the rate is asked for, not the latency of one.
      entries.back().calls_per_sample = static_cast<int>(std::clamp<std::size_t>(65536 / which.bytes(), 1, 64));
    }
    wrong_.clear();
    return entries;
  }

  /// The case is over: hands this rank's wrong counts to rank 0, peer by peer.
  std::uint64_t total_wrong(const std::string& peer) {
    team_.tally(team_.rank()) = wrong_[peer];
    team_.align();
    std::uint64_t total = 0;
    for (int rank = 0; rank < team_.ranks(); ++rank) total += team_.tally(rank);
    team_.align();
    return total;
  }

  Team& team() noexcept { return team_; }
  const Options& options() const noexcept { return options_; }

 private:
  template <class T>
  static Pattern<T>& pattern() {
    static Pattern<T> only;
    return only;
  }

  const Options& options_;
  Team& team_;
  Prototype& prototype_;
  std::vector<Case> cases_;
  Gloo gloo_;
  Communicator<ShmRing> world_;
  std::vector<std::byte> private_in_;
  std::vector<std::byte> private_out_;
  std::byte* window_in_ = nullptr;
  std::byte* window_out_ = nullptr;
  std::optional<Copy> copy_;
  std::map<std::string, std::uint64_t> wrong_;
  std::uint64_t turns_ = 0;
};

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
  if (all_wrong > 0) std::cerr << "collectives: " << all_wrong << " wrong elements\n";
  return all_wrong > 0 ? 1 : 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  using namespace tandem::bench;
  Options options;
  CLI::App app{
      "tandem's collectives against gloo and a plain prototype, in one run. Google Benchmark's own options "
      "(--benchmark_filter=...) may follow."};
  app.allow_extras();
  app.add_option("--ranks", options.ranks, "ranks, forked by this program")->check(CLI::Range(2, 8));
  app.add_option("--max-bytes", options.most_bytes, "largest buffer");
  app.add_option("--min-bytes", options.least_bytes, "smallest buffer");
  const auto one_of = [](const auto& words) {
    std::vector<std::string> names;
    for (const auto word : words) names.emplace_back(name_of(word));
    return CLI::IsMember(names);
  };
  app.add_option("--verbs", options.verbs, "verbs to time")->delimiter(',')->check(one_of(all_verbs));
  app.add_option("--dtypes", options.dtypes, "element types")->delimiter(',')->check(one_of(all_dtypes));
  app.add_option("--buffers", options.buffers, "kinds of buffers")
      ->delimiter(',')
      ->check(CLI::IsMember(std::vector<std::string>{"registered", "unregistered"}));
  app.add_option("--json", options.json, "write one JSON object per line and peer");
  app.add_option("--patience", options.patience, "1 = full number of calls")->check(CLI::Range(0.001, 10.0));
  app.add_flag("!--no-pin", options.pin, "leave ranks to the scheduler");
  app.add_flag("--every-size", options.every_size, "every power of two");
  app.add_flag("--rank0", options.rank_0_only, "time rank 0 instead of the slowest rank");
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

  const int status = tandem::spawn(options.ranks, [&] {
    team.enter(tandem::identity_from_environment().rank);
    Rank self(options, team, prototype, store_file);
    if (team.rank() == 0) return lead(self, static_cast<int>(arguments.size()), arguments.data());
    follow(self);
    return 0;
  });
  unlink(store_file.c_str());
  return status;
}
