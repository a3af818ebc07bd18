// SPDX-License-Identifier: Apache-2.0
// The command line of the GPT example; see options.hpp.
#include "gpt/options.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <system_error>

#include <CLI/CLI.hpp>

#include "gpt/text.hpp"

namespace gpt {
namespace {

/// Says in its own words what CLI11 would call "Could not convert".
CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  const auto check = [=](const std::string& text) -> std::string {
    std::uint64_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, fault] = std::from_chars(text.data(), end, value);
    if (fault == std::errc() && stop == end && value >= least && value <= most) return {};
    return text + " is not a whole number from " + std::to_string(least) + " to " + std::to_string(most);
  };
  return CLI::Validator(check, "");
}

/// Not by CLI11, which rounds twice (to long double first): Python reads the same text as another number now and then.
double number_from_0(const std::string& option, const std::string& text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, fault] = std::from_chars(text.data(), end, value);
  if (fault == std::errc() && stop == end && value >= 0 && std::isfinite(value)) return value;
  throw InputError(option + ": " + text + " is not a number from 0; see --help");
}

/// What the system could give to new processes now, in bytes.
std::uint64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    std::uint64_t kilobytes = 0;
    if (word == "MemAvailable:" && file >> kilobytes) return kilobytes * 1024;
  }
  return std::numeric_limits<std::uint64_t>::max();
}

/// Above this a rank count is a slip of the finger: hundreds of ranks to a core would only wait for each other.
constexpr int most_ranks_per_core = 64;

int checked_ranks(std::optional<int> asked, Strategy strategy, const Setting& setting) {
  const auto refuse = [&](const std::string& why) {
    throw InputError("--ranks " + std::to_string(asked.value_or(*setting.launched_ranks)) + " cannot be: " + why);
  };
  if (setting.launched_ranks && asked.value_or(*setting.launched_ranks) != *setting.launched_ranks) {
    refuse("the launcher has started " + std::to_string(*setting.launched_ranks));
  }
  const int ranks = asked                          ? *asked
                    : setting.launched_ranks       ? *setting.launched_ranks
                    : strategy == Strategy::single ? 1
                                                   : std::max(2, setting.cores);
  if (strategy == Strategy::single && ranks != 1) {
    asked = ranks;
    refuse("--strategy single trains in one process; use --strategy ddp");
  }
  const int most = most_ranks_per_core * setting.cores;
  if (ranks > most) {
    refuse("this machine's " + std::to_string(setting.cores) + " cores carry at most " + std::to_string(most));
  }
  // libtorch, a model and its optimizer, and the rings between each two ranks.
  const std::uint64_t each =
      (std::uint64_t{200} << 20) + static_cast<std::uint64_t>(ranks) * (std::uint64_t{648} << 10);
  if (const std::uint64_t available = available_memory();
      ranks > 2 && static_cast<std::uint64_t>(ranks) * each > available) {
    refuse("they need about " + std::to_string(static_cast<std::uint64_t>(ranks) * each >> 30) +
           " GiB of memory, and " + std::to_string(available >> 30) + " are available");
  }
  return ranks;
}

/// Opened for writing before hours of training, not after them. Keeps what is there.
void require_writable(const std::string& path) {
  const bool there = std::filesystem::exists(path);
  if (std::ofstream file(path, std::ios::app); !file) throw InputError("cannot write to the file " + path);
  if (!there) std::filesystem::remove(path);
}

}  // namespace

std::variant<Options, std::string> parse(int argument_count, const char* const* arguments, const Setting& setting) {
  Options options;
  std::optional<int> ranks;
  std::optional<int> steps;
  std::string preset = options.preset.name;
  std::string clip = "1";
  std::string strategy = name_of(options.strategy);

  CLI::App app("Trains a character-level GPT on several processes and prints a sample of what it writes.", "train");
  app.add_option("--ranks", ranks, "processes that train together (default: one per core, at least 2)")
      ->check(whole_number(1, 1024));
  app.add_option("--strategy", strategy,
                 "single: one process, without tandem; ddp: data parallel; zero1, zero2, zero3: the same, with the "
                 "optimizer's state, also the gradients, also the parameters sharded; fsdp2: sharded by rows, with the "
                 "bits of PyTorch's fully_shard")
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(strategy_names), std::end(strategy_names))))
      ->capture_default_str();
  app.add_option("--transport", options.transport,
                 "what the ranks exchange data over: shm: memory of one host; tcp: sockets")
      ->check(CLI::IsMember({"shm", "tcp"}))
      ->capture_default_str();
  app.add_option("--steps", steps, "optimizer steps (default: 30, 1600 or 5000, by preset)")
      ->check(whole_number(1, 1'000'000'000));
  app.add_option("--accumulate", options.accumulate,
                 "micro-batches per optimizer step; ranks exchange gradients after the last")
      ->check(whole_number(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--clip", clip, "largest norm of all gradients; 0: they stay as they are")->capture_default_str();
  app.add_option("--preset", preset, "size of the model and length of the run")
      ->check(CLI::IsMember({"tiny", "small", "base"}))
      ->capture_default_str();
  app.add_option("--data", options.data, "any UTF-8 text to train on (default: Shakespeare's plays)");
  app.add_option("--json", options.json, "file that receives the results");
  app.add_option("--weights", options.weights, "file that receives the trained weights (safetensors)");
  app.add_option("--seed", options.seed, "of weights, batches and sample")
      ->check(whole_number(0, std::numeric_limits<std::uint64_t>::max()))
      ->capture_default_str();
  app.add_flag("--verify", options.verify,
               "train again in one process that adds up what the ranks would have, and count the weights that differ");
  try {
    app.parse(argument_count, arguments);
  } catch (const CLI::CallForHelp&) {
    return app.help();
  } catch (const CLI::ParseError& error) {
    throw InputError(std::string(error.what()) + "; see --help");
  }

  options.strategy = static_cast<Strategy>(std::ranges::find(strategy_names, strategy) - strategy_names);
  if (options.verify && options.strategy == Strategy::fsdp2) {
    throw InputError(
        "--verify emulates DistributedDataParallel, and --strategy fsdp2 is no such; scripts/verify_python holds it "
        "against fully_shard");
  }
  options.ranks = checked_ranks(ranks, options.strategy, setting);
  options.preset = *std::ranges::find(presets, preset, [](const Preset& one) { return std::string(one.name); });
  options.clip = number_from_0("--clip", clip);
  options.steps = steps.value_or(options.preset.steps);
  if (options.data.empty()) throw InputError("no text to train on; give one with --data, or start scripts/train");
  if (!options.json.empty()) require_writable(options.json);
  if (!options.weights.empty()) {
    // It is replaced, not written into.
    if (std::error_code ignored; std::filesystem::exists(options.weights, ignored) &&
                                 !std::filesystem::is_regular_file(options.weights, ignored)) {
      throw InputError("--weights " + options.weights +
                       " is not a regular file; name one, or a file that is not there");
    }
    require_writable(options.weights);
  }
  return options;
}

}  // namespace gpt
