// SPDX-License-Identifier: Apache-2.0
// One rank of the collectives' benchmark: its buffers, its peers, and its part in a round of a case. Knows nothing of
// what becomes of the samples.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/options.hpp"
#include "harness/contest.hpp"
#include "harness/pattern.hpp"
#include "harness/team.hpp"
#include "harness/visit.hpp"
#include "peers/copy.hpp"
#include "peers/gloo.hpp"
#include "peers/mpi.hpp"
#include "peers/prototype.hpp"
#include "peers/tandem.hpp"
#include "tandem/core/bytes.hpp"

namespace tandem::bench {

/// An MPI whose ranks are guests of the team.
struct Visitor {
  const Mpi& mpi;
  int group;
  int ended;  ///< see Job
};

class Rank {
 public:
  Rank(const Options& options, Team& team, Prototype& prototype, const std::string& store_file,
       const std::vector<Visitor>& visitors)
      : options_(options), team_(team), prototype_(prototype), cases_(cases_of(options)) {
    if (listed(options.peers, "gloo")) {
      gloo_.emplace(team.rank(), team.ranks(), store_file);  // before pinning: its threads keep all processors
    }
    if (listed(options.transports, "shm")) shm_ = join_over_shm(options.adopt);
    if (listed(options.transports, "tcp")) tcp_ = join_over_tcp();
    if (options.pin) team.pin();
    prototype_.enter(team);
    for (const Visitor& visitor : visitors) {
      hosts_.emplace_back(&visitor.mpi, Host(visitor.mpi.name, visitor.group, visitor.ended));
    }
    for (const Case& which : cases_) room_ = std::max(room_, which.bytes());
    room_ += 37 * page_bytes;  // so that no two buffers lie a power of two apart, see prototype.cpp
    private_in_.resize(room_);
    private_out_.resize(room_);
    const bool registered = std::any_of(cases_.begin(), cases_.end(), [](const Case& c) { return c.registered; });
    if (registered) {
      window_in_ = shm_->allocate(room_);
      window_out_ = shm_->allocate(room_);
      std::memset(window_in_, 0, room_);
      std::memset(window_out_, 0, room_);
    }
    copy_.emplace(room_);
  }

  const std::vector<Case>& cases() const noexcept { return cases_; }

  /// The peers of a case, tandem first; every rank has the same.
  std::vector<Entry> entries_of(const Case& which) {
    std::vector<Entry> entries;
    std::byte* const in = which.registered ? window_in_ : private_in_.data();
    std::byte* const out = which.registered ? window_out_ : private_out_.data();
    Tandem& tandem = which.transport == Over::tcp ? *tcp_ : *shm_;
    add(entries, which, "tandem", in, out, tandem.operation(which, in, out));
    // Over loopback the peer that crosses it too; shared memory is compared over shared memory.
    if (which.transport == Over::shm) add_prototype(entries, which);
    if (which.transport == Over::shm) add_mpis(entries, which);
    if (gloo_) {
      add(entries, which, "gloo", private_in_.data(), private_out_.data(),
          gloo_->operation(which, private_in_.data(), private_out_.data()));
      if (entries.back().peer == "gloo") entries.back().pace = Pace::sluggish;
    }
    if (which.transport == Over::shm && which.verb != Verb::barrier && listed(options_.peers, "copy")) {
      add(entries, which, "copy", nullptr, nullptr, [this, bytes = which.bytes()] { copy_->run(bytes); });
      entries.back().checked = false;
      // As many copies as make a sample that the clock can measure: the rate is asked for, not the latency of one.
      entries.back().calls_per_sample = static_cast<int>(std::clamp<std::size_t>(65536 / which.bytes(), 1, 64));
    }
    wrong_.clear();
    return entries;
  }

  /// Takes part in one round of a case; every rank calls it alike. Samples land in the team's mapping.
  void round(const Case& which, const std::vector<Entry>& entries, const Plan& plan, int turn) {
    std::size_t place = 0;
    for (const Entry& entry : entries) {
      const int calls = plan.block_of(entry);
      const int warm_up = plan.warm_up_of(entry);
      const std::size_t here = place + static_cast<std::size_t>(turn * calls);
      wrong_[entry.peer] += entry.host != nullptr ? entry.host->send(team_, Errand{which, room_, calls, warm_up, here})
                                                  : visit_number(which.dtype, [&]<class T>(T) {
                                                      return run_block<T>(team_, pattern<T>(), which, entry, calls,
                                                                          warm_up, here, turns_);
                                                    });
      place += static_cast<std::size_t>(plan.rounds * calls);
    }
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

  /// The run is over.
  void dismiss_guests() {
    for (auto& [mpi, host] : hosts_) host.dismiss(team_);
  }

  Team& team() noexcept { return team_; }
  const Options& options() const noexcept { return options_; }

 private:
  template <class T>
  static Pattern<T>& pattern() {
    static Pattern<T> only;
    return only;
  }

  /// A peer without an operation for the case is left out.
  static void add(std::vector<Entry>& entries, const Case& which, const char* peer, std::byte* in, std::byte* out,
                  std::function<void()> operate) {
    if (!operate) return;
    Entry entry;
    entry.peer = peer;
    entry.input = which.verb == Verb::barrier ? nullptr : in;
    entry.output = works_in_place(which.verb) ? in : out;
    entry.operate = std::move(operate);
    entries.push_back(std::move(entry));
  }

  void add_prototype(std::vector<Entry>& entries, const Case& which) {
    if (which.verb != Verb::all_reduce || which.dtype != Dtype::float32 || !listed(options_.peers, "prototype")) return;
    if (which.registered) {
      auto* const window = reinterpret_cast<std::byte*>(prototype_.window());
      add(entries, which, "prototype", window, window,
          [this, count = which.count] { prototype_.all_reduce_window(count); });
    } else {
      auto* const data = reinterpret_cast<float*>(private_in_.data());
      add(entries, which, "prototype", private_in_.data(), private_in_.data(),
          [this, data, count = which.count] { prototype_.all_reduce_private(data, count); });
    }
  }

  void add_mpis(std::vector<Entry>& entries, const Case& which) {
    if (!mpi_has(which)) return;
    for (auto& [mpi, host] : hosts_) {
      Entry entry;
      entry.peer = mpi->peer;
      entry.host = &host;
      if (mpi->glacial_when_crowded && team_.crowded()) entry.pace = Pace::glacial;
      entries.push_back(std::move(entry));
    }
  }

  const Options& options_;
  Team& team_;
  Prototype& prototype_;
  std::vector<Case> cases_;
  std::optional<Gloo> gloo_;
  std::unique_ptr<Tandem> shm_;
  std::unique_ptr<Tandem> tcp_;
  std::deque<std::pair<const Mpi*, Host>> hosts_;
  std::size_t room_ = page_bytes;
  std::vector<std::byte> private_in_;
  std::vector<std::byte> private_out_;
  std::byte* window_in_ = nullptr;
  std::byte* window_out_ = nullptr;
  std::optional<Copy> copy_;
  std::map<std::string, std::uint64_t> wrong_;
  std::uint64_t turns_ = 0;
};

}  // namespace tandem::bench
