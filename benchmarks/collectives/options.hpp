// SPDX-License-Identifier: Apache-2.0
// What the collectives' benchmark is asked to do, and the cases that follow from it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "harness/case.hpp"
#include "peers/mpi.hpp"
#include "tandem/core/bytes.hpp"

namespace tandem::bench {

struct Options {
  int ranks = 2;
  std::size_t most_bytes = std::size_t{256} << 20;
  std::size_t least_bytes = 8;
  std::vector<std::string> transports = {"shm", "tcp"};
  std::vector<std::string> verbs;  // all, unless named
  std::vector<std::string> dtypes = {"float32", "bfloat16"};
  std::vector<std::string> buffers = {"registered", "unregistered"};
  std::vector<std::string> peers = {"prototype", "gloo", "copy"};  // and the MPIs
  std::string json;
  double patience = 1.0;
  bool pin = true;
  bool every_size = false;
  bool adopt = false;
  bool rank_0_only = false;

  Options() {
    for (const Verb verb : all_verbs) verbs.emplace_back(name_of(verb));
    for (const Mpi& mpi : all_mpis) peers.emplace_back(mpi.peer);
  }
};

inline bool listed(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

/// Declares the command line; `options` must outlive the parsing.
inline void declare(CLI::App& app, Options& options) {
  const auto one_of = [](const auto& words) {
    std::vector<std::string> names;
    for (const auto word : words) names.emplace_back(name_of(word));
    return CLI::IsMember(names);
  };
  app.add_option("--ranks", options.ranks, "ranks, forked by this program")->check(CLI::Range(2, 8));
  app.add_option("--max-bytes", options.most_bytes, "largest buffer");
  app.add_option("--min-bytes", options.least_bytes, "smallest buffer");
  app.add_option("--transports", options.transports, "what tandem runs over")
      ->delimiter(',')
      ->check(one_of(all_transports));
  app.add_option("--verbs", options.verbs, "verbs to time")->delimiter(',')->check(one_of(all_verbs));
  app.add_option("--dtypes", options.dtypes, "element types")->delimiter(',')->check(one_of(all_dtypes));
  app.add_option("--buffers", options.buffers, "kinds of buffers (over tcp there is one kind)")
      ->delimiter(',')
      ->check(CLI::IsMember(std::vector<std::string>{"registered", "unregistered"}));
  app.add_option("--peers", options.peers, "what tandem is compared with, where it was found")
      ->delimiter(',')
      ->check(CLI::IsMember(std::vector<std::string>(options.peers)));
  app.add_option("--json", options.json, "write one JSON object per line and peer");
  app.add_option("--patience", options.patience, "1 = full number of calls")->check(CLI::Range(0.001, 10.0));
  app.add_flag("!--no-pin", options.pin, "leave ranks to the scheduler");
  app.add_flag("--every-size", options.every_size, "every power of two");
  app.add_flag("--adopt", options.adopt, "registered buffers are plain tensors, after adopt_allocator");
  app.add_flag("--rank0", options.rank_0_only, "time rank 0 instead of the slowest rank");
}

/// The sizes of one verb, dtype, transport and kind of buffer, appended to `cases`.
inline void add_sizes(std::vector<Case>& cases, Case which, const Options& options) {
  const std::size_t factor = options.every_size ? 2 : 4;
  for (std::size_t bytes = 8; bytes <= options.most_bytes;) {
    which.count = std::max<std::size_t>(1, bytes / size_of(which.dtype));
    if (is_sliced(which.verb)) which.count = round_up(which.count, static_cast<std::size_t>(options.ranks));
    if (bytes >= options.least_bytes) cases.push_back(which);
    bytes = bytes < 1024 ? bytes * (options.every_size ? 2 : 128) : bytes * factor;
  }
}

inline std::vector<Case> cases_of(const Options& options) {
  std::vector<Case> cases;
  for (const Over transport : all_transports) {
    if (!listed(options.transports, name_of(transport))) continue;
    for (const Verb verb : all_verbs) {
      if (!listed(options.verbs, name_of(verb))) continue;
      if (verb == Verb::send && options.ranks % 2 != 0) continue;  // pairs
      bool first = true;
      for (const Dtype dtype : all_dtypes) {
        if (!listed(options.dtypes, tandem::name_of(dtype))) continue;
        for (const bool registered : {true, false}) {
          const bool wanted = transport == Over::tcp
                                  ? !registered
                                  : listed(options.buffers, registered ? "registered" : "unregistered");
          if (!wanted) continue;
          const Case which{transport, verb, dtype, 0, registered, options.ranks};
          if (verb != Verb::barrier) {
            add_sizes(cases, which, options);
          } else if (first) {  // it has neither a type nor a buffer
            cases.push_back(which);
          }
          first = false;
        }
      }
    }
  }
  return cases;
}

}  // namespace tandem::bench
