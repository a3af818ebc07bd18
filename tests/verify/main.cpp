// SPDX-License-Identifier: Apache-2.0
// Trains an example GPT in every mode at several numbers of ranks, and holds each against PyTorch's own C++ in the same
// processes. Prints one row for each; exit status 0 only if no loss, no weight and no byte differs.
#include <algorithm>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tandem/comm/spawn.hpp"
#include "tandem/transport/tcp.hpp"
#include "verify/contest.hpp"

namespace tandem::verify {
namespace {

struct Options {
  std::vector<int> ranks{2, 3, 4, 5, 8};
  std::vector<std::string> modes;
  int steps = 20;
  std::string json;
};

template <class Strategy, class T>
struct Sides {};

/// Every mode: its name, what takes part, what it asks for, and the reference in words.
template <class F>
void each_mode(F visit) {
  constexpr auto plain = "c10d::Reducer over gloo";
  const Terms once{};
  Terms thrice;
  thrice.micro_batches = 3;
  visit("ddp", Sides<Ddp<>, ShmRing>{}, once, plain);
  visit("ddp-tcp", Sides<Ddp<>, Tcp>{}, once, plain);
  visit("ddp-accumulate", Sides<Ddp<>, ShmRing>{}, thrice, plain);
  {
    Terms terms;
    terms.ours.unused = unused_parameters::find;
    terms.theirs.find_unused = true;
    visit("ddp-find-unused", Sides<Ddp<>, ShmRing>{}, terms, "c10d::Reducer, find_unused_parameters");
  }
  {
    Terms terms;
    terms.ours.static_graph = true;
    terms.theirs.static_graph = true;
    visit("ddp-static-graph", Sides<Ddp<>, ShmRing>{}, terms, "c10d::Reducer, static_graph");
  }
  {
    Terms terms;
    terms.theirs.compress = at::kBFloat16;
    visit("ddp-bf16", Sides<Ddp<0, compress::bf16>, ShmRing>{}, terms, "c10d::Reducer, bf16_compress_hook");
    visit("zero2-bf16", Sides<Zero<2, compress::bf16>, ShmRing>{}, terms, "c10d::Reducer, bf16_compress_hook");
    terms.theirs.compress = at::kHalf;
    visit("ddp-fp16", Sides<Ddp<0, compress::fp16>, ShmRing>{}, terms, "c10d::Reducer, fp16_compress_hook");
  }
  Terms shared;
  shared.ours.placement = Placement::shared;
  visit("zero1", Sides<Zero<1>, ShmRing>{}, once, plain);
  visit("zero1-shared", Sides<Zero<1>, ShmRing>{}, shared, plain);
  visit("zero1-tcp", Sides<Zero<1>, Tcp>{}, once, plain);
  visit("zero2", Sides<Zero<2>, ShmRing>{}, once, plain);
  Terms pieces;
  pieces.ours.piece_bytes = std::size_t{64} << 10;
  visit("zero2-pieces", Sides<Zero<2>, ShmRing>{}, pieces, plain);
  visit("zero2-shared", Sides<Zero<2>, ShmRing>{}, shared, plain);
  visit("zero2-tcp", Sides<Zero<2>, Tcp>{}, once, plain);
  visit("zero2-accumulate", Sides<Zero<2>, ShmRing>{}, thrice, plain);
  visit("zero3", Sides<Zero<3>, ShmRing>{}, once, plain);
  visit("zero3-accumulate", Sides<Zero<3>, ShmRing>{}, thrice, plain);
  Terms apart;
  apart.ours.placement = Placement::apart;
  visit("zero3-apart", Sides<Zero<3>, ShmRing>{}, apart, plain);
  visit("zero3-tcp", Sides<Zero<3>, Tcp>{}, once, plain);
}

/// Rank 0's line, in the table and in the file. Did everything agree?
bool report(const Options& options, const std::string& mode, const char* reference, int ranks, const Outcome& outcome) {
  const bool equal = outcome.losses_differing == 0 && outcome.weights_differing == 0 &&
                     outcome.bytes_predicted == outcome.bytes_measured;
  std::cout << std::left << std::setw(18) << mode << std::right << std::setw(6) << ranks << std::setw(8)
            << outcome.losses_differing << std::setw(10) << outcome.weights_differing << " of " << std::left
            << std::setw(9) << outcome.weights << std::right << std::setw(14) << outcome.bytes_predicted
            << std::setw(14) << outcome.bytes_measured << std::setw(9) << outcome.peak_bytes / (1 << 20) << "  "
            << reference << std::endl;
  if (!options.json.empty()) {
    nlohmann::ordered_json row;
    row["mode"] = mode;
    row["ranks"] = ranks;
    row["reference"] = reference;
    row["losses_differing"] = outcome.losses_differing;
    row["weights_differing"] = outcome.weights_differing;
    row["weights"] = outcome.weights;
    row["bytes_predicted"] = outcome.bytes_predicted;
    row["bytes_measured"] = outcome.bytes_measured;
    row["peak_bytes"] = outcome.peak_bytes;
    std::ofstream(options.json, std::ios::app) << row.dump() << '\n';
  }
  return equal;
}

/// All modes at all numbers of ranks, each in processes of its own. The number of those that failed.
int run(const Options& options) {
  int failed = 0;
  std::cout << "mode               ranks  losses   weights that differ    predicted      measured  peak MB  reference\n"
               "                         differ                            bytes moved by all ranks  (a rank)\n";
  for (const int ranks : options.ranks) {
    each_mode(
        [&]<class Strategy, class T>(const std::string& mode, Sides<Strategy, T>, Terms terms, const char* reference) {
          if (std::find(options.modes.begin(), options.modes.end(), mode) == options.modes.end()) return;
          terms.steps = options.steps;
          const tandem_oracle::StoreFile store;
          const int status = spawn(ranks, [&] {
            const Outcome outcome = compete<Strategy, T>(terms, store.path(), ranks);
            if (identity_from_environment().rank != 0) return 0;
            return report(options, mode, reference, ranks, outcome) ? 0 : 1;
          });
          if (status != 0) {
            ++failed;
            std::cerr << "verify: " << mode << " at " << ranks << " ranks ended with status " << status << '\n';
          }
        });
  }
  return failed;
}

}  // namespace
}  // namespace tandem::verify

int main(int argc, char** argv) {
  using namespace tandem::verify;
  Options options;
  std::vector<std::string> names;
  each_mode([&](const std::string& mode, auto, const Terms&, const char*) { names.push_back(mode); });
  CLI::App app{"Every mode of training against PyTorch's own C++: no loss and no weight may differ in a bit.",
               "verify"};
  app.add_option("--ranks", options.ranks, "numbers of ranks")->delimiter(',')->check(CLI::Range(1, 16));
  app.add_option("--modes", options.modes, "modes; all unless given")->delimiter(',')->check(CLI::IsMember(names));
  app.add_option("--steps", options.steps, "optimizer steps of each")->check(CLI::Range(1, 100000));
  app.add_option("--json", options.json, "file that receives one JSON object for each row");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& fault) {
    return app.exit(fault) == 0 ? 0 : 2;
  }
  if (options.modes.empty()) options.modes = names;
  if (!options.json.empty() && !std::ofstream(options.json, std::ios::trunc)) {
    std::cerr << "verify: cannot write to the file " << options.json << '\n';
    return 2;
  }
  return run(options) == 0 ? 0 : 1;
}
