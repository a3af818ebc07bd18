// SPDX-License-Identifier: Apache-2.0
// The program behind scripts/train: reads the options and the text, then becomes the ranks. Under a launcher (torchrun,
// srun, mpirun) each process already is a rank.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <thread>
#include <variant>

#include "gpt/options.hpp"
#include "gpt/text.hpp"
#include "gpt/train.hpp"
#include "tandem/comm/identity.hpp"
#include "tandem/comm/spawn.hpp"

namespace {

constexpr int failed = 1;
constexpr int not_possible = 2;  // what the user asked for

/// A run that the user ended tells so; a rank that ended is a failure, whatever ended it.
int exit_status(int spawned, int interrupted_by) {
  if (interrupted_by != 0) return 128 + interrupted_by;
  return spawned == 0 || spawned == not_possible ? spawned : failed;
}

int run(int argument_count, char** arguments) {
  gpt::Setting setting;
  setting.cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  if (tandem::launched()) setting.launched_ranks = tandem::identity_from_environment().size;

  const auto parsed = gpt::parse(argument_count, arguments, setting);
  if (const auto* const help = std::get_if<std::string>(&parsed)) {
    std::cout << *help;
    return 0;
  }
  const auto& options = std::get<gpt::Options>(parsed);
  const gpt::Corpus corpus = gpt::prepare(gpt::read_file(options.data), options.preset.context, options.data);
  if (setting.launched_ranks) return gpt::train(options, corpus);

  // Each rank is a fork of this process and shares the text with it. Nothing before this line may call libtorch: its
  // threads would not survive the fork.
  tandem::SpawnOptions how;
  how.notice = [](const std::string& text) { std::cerr << "train: " << text << std::endl; };
  const auto rank = [&] { return gpt::train(options, corpus); };
  int interrupted_by = 0;
  how.interrupted_by = &interrupted_by;
  // A rank that is stopped cannot be told; nobody shall wait longer than a second for it.
  how.farewell = std::chrono::milliseconds(300);
  how.grace = std::chrono::milliseconds(300);
  const int status = tandem::spawn(options.ranks, rank, how);
  // At once: libtorch would take its time to dismantle what this process has never used, and when a rank has died all
  // shall be over within a second.
  std::cout.flush();
  std::_Exit(exit_status(status, interrupted_by));
}

}  // namespace

int main(int argument_count, char** arguments) {
  try {
    return run(argument_count, arguments);
  } catch (const gpt::InputError& error) {
    std::cerr << "train: " << error.what() << std::endl;
    return not_possible;
  } catch (const std::exception& error) {
    std::cerr << "train: " << error.what() << std::endl;
    return failed;
  }
}
