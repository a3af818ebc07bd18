// SPDX-License-Identifier: Apache-2.0
// What the user sees and keeps of a run: progress, results, the JSON file. Knows nothing of tensors.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpt/options.hpp"

namespace gpt {

/// Results of a run, as rank 0 knows them.
struct Report {
  std::int64_t parameters = 0;
  double loss = 0;             ///< nats per character, mean over the ranks and the last steps (see Progress)
  std::vector<double> losses;  ///< of each step, before its update; mean over ranks and micro-batches
  double held_out_loss = 0;    ///< nats per character, on text that was never trained on
  double seconds = 0;          ///< of training
  double tokens_per_second = 0;
  std::uint64_t bytes_predicted = 0;  ///< moved by all ranks in training
  std::uint64_t bytes_measured = 0;
  std::optional<std::int64_t> weights_differing;  ///< with --verify
  std::string weights_sha256;
  std::string sample;
};

/// Progress on standard output: on a terminal one line that is written over, elsewhere a few plain lines. Also the
/// stopwatch of the run.
class Progress {
 public:
  /// `visible`: false on the ranks that do not speak.
  Progress(int steps, std::int64_t tokens_per_step, bool visible);

  /// True when so many steps are done that `show` is due. The same on every rank, terminal or not: what is shown is an
  /// average over all ranks, so all must take part.
  bool due(int done) const;
  void show(int done, double loss);
  double seconds() const;

 private:
  int steps_;
  int interval_;
  std::int64_t tokens_per_step_;
  bool visible_;
  bool terminal_;
  int shown_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// The SHA-256 of bytes that come in pieces.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void update(std::span<const std::byte> bytes);
  /// In hexadecimal; ends the computation.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The results for people. The last line tells the bytes moved.
void print(const Options& options, const Report& report);
/// The results for programs. Throws InputError when the file cannot be written.
void write_json(const Options& options, const Report& report);

}  // namespace gpt
