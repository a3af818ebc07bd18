// SPDX-License-Identifier: Apache-2.0
#include "step/time.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "harness/statistics.hpp"

namespace tandem::bench {
namespace {

struct Entrant {
  const ModeInfo* info;
  std::unique_ptr<Mode> mode;
};

std::uint64_t differing_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  std::uint64_t count = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const auto x = a[i].contiguous().view(at::kInt);
    const auto y = b[i].contiguous().view(at::kInt);
    count += static_cast<std::uint64_t>(x.ne(y).sum().item<std::int64_t>());
  }
  return count;
}

std::vector<Entrant> entrants(Worlds& worlds, const Options& options, const Job& job) {
  std::vector<Entrant> result;
  for (const ModeInfo& info : all_modes) {
    if (!takes_part(info, options)) continue;
    torch::manual_seed(7);  // the same weights for all
    result.push_back({&info, make_mode(info, job, worlds)});
  }
  return result;
}

/// Every mode does a step of every round; who goes first changes, so that nobody always follows the same one.
void take_turns(Team& team, const std::vector<Entrant>& all, const Options& options,
                const std::vector<Batch>& batches) {
  using Timer = std::chrono::steady_clock;
  double* const samples = team.samples(team.rank());
  const auto steps = static_cast<std::size_t>(options.steps);
  const auto warm_up = static_cast<std::size_t>(options.warm_up);
  for (std::size_t round = 0; round < warm_up + steps; ++round) {
    for (std::size_t turn = 0; turn < all.size(); ++turn) {
      const std::size_t place = (turn + round) % all.size();
      team.align();
      const auto start = Timer::now();
      all[place].mode->step(batches[round % batches.size()]);
      const double seconds = std::chrono::duration<double>(Timer::now() - start).count();
      team.align();
      if (round >= warm_up) samples[place * steps + round - warm_up] = seconds;
    }
  }
}

}  // namespace

std::vector<StepTime> time_steps(Team& team, Worlds& worlds, const Options& options, const Job& job) {
  const std::vector<Entrant> all = entrants(worlds, options, job);
  torch::manual_seed(100 + static_cast<std::uint64_t>(team.rank()));  // every rank has its own data
  std::vector<Batch> batches;
  for (int i = 0; i < 3; ++i) batches.push_back(job.draw());
  take_turns(team, all, options, batches);

  const auto reference =
      std::find_if(all.begin(), all.end(), [](const Entrant& it) { return it.info->link == Link::gloo; });
  const std::vector<at::Tensor> wanted = reference->mode->parameters();
  const auto steps = static_cast<std::size_t>(options.steps);
  std::vector<StepTime> results;
  for (std::size_t place = 0; place < all.size(); ++place) {
    const Entrant& it = all[place];
    StepTime result{it.info};
    const bool compared = has_bits_of_c10d(*it.info);
    if (compared) {
      team.tally(team.rank()) = differing_bits(it.mode->parameters(), wanted);
      result.differing = 0;
    }
    team.align();
    std::vector<double> times(steps, 0.0);  // the slowest rank counts
    for (int rank = 0; rank < team.ranks(); ++rank) {
      for (std::size_t i = 0; i < steps; ++i) times[i] = std::max(times[i], team.samples(rank)[place * steps + i]);
      if (compared) *result.differing += team.tally(rank);
    }
    team.align();
    result.median_ms = median(times) * 1e3;
    result.p99_ms = percentile(times, 0.99) * 1e3;
    results.push_back(result);
  }
  return results;
}

}  // namespace tandem::bench
