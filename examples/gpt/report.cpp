// SPDX-License-Identifier: Apache-2.0
// Progress, results and the JSON file; see report.hpp.
#include "gpt/report.hpp"

#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "gpt/text.hpp"

namespace gpt {
namespace {

std::string rate(double per_second) {
  std::array<char, 32> text{};
  if (per_second < 10000) {
    std::snprintf(text.data(), text.size(), "%.0f", per_second);
  } else {
    std::snprintf(text.data(), text.size(), "%.1fk", per_second / 1000);
  }
  return text.data();
}

std::string minutes(double seconds) {
  const long whole = std::lround(std::max(0.0, seconds));
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%ld:%02ld", whole / 60, whole % 60);
  return text.data();
}

}  // namespace

Progress::Progress(int steps, std::int64_t tokens_per_step, bool visible)
    : steps_(steps),
      interval_(std::max(1, steps / 100)),
      tokens_per_step_(tokens_per_step),
      visible_(visible),
      terminal_(::isatty(STDOUT_FILENO) == 1) {}

bool Progress::due(int done) const { return done % interval_ == 0 || done == steps_; }

void Progress::show(int done, double loss) {
  const bool last = done == steps_;
  // Into a file or a pipe goes every tenth of the run, never a carriage return.
  if (!visible_ || (!terminal_ && !last && done < shown_ + steps_ / 10)) return;
  shown_ = done;
  const double elapsed = seconds();
  const double per_second = static_cast<double>(done * tokens_per_step_) / std::max(elapsed, 1e-9);
  const std::string end = last ? "took " + minutes(elapsed) : "ETA " + minutes(elapsed / done * (steps_ - done));
  std::printf("%sstep %*d/%d  loss %.3f  %s tokens/s  %s%s", terminal_ ? "\r" : "",
              static_cast<int>(std::to_string(steps_).size()), done, steps_, loss, rate(per_second).c_str(),
              end.c_str(), terminal_ && !last ? "   " : "\n");
  std::fflush(stdout);
}

double Progress::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  if (state_->context == nullptr || EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) != 1) {
    throw std::runtime_error("OpenSSL offers no SHA-256");
  }
}
Sha256::~Sha256() { EVP_MD_CTX_free(state_->context); }

void Sha256::update(std::span<const std::byte> bytes) { EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()); }

std::string Sha256::finish() {
  std::array<unsigned char, 32> digest{};
  EVP_DigestFinal_ex(state_->context, digest.data(), nullptr);
  std::string text;
  for (const unsigned char byte : digest) {
    for (const int digit : {byte >> 4, byte & 15}) text.push_back("0123456789abcdef"[digit]);
  }
  return text;
}

void print(const Options& options, const Report& report) {
  std::printf("\nheld-out loss %.3f nats per character; %lld parameters, SHA-256 %s\n", report.held_out_loss,
              static_cast<long long>(report.parameters), report.weights_sha256.c_str());
  std::printf("\n--- sample -------------------------------------------------------------------\n%s\n",
              report.sample.c_str());
  std::printf("------------------------------------------------------------------------------\n\n");
  if (report.weights_differing) {
    std::printf("verified: %lld of %lld weights differ from a run in one process that emulates %d %s\n",
                static_cast<long long>(*report.weights_differing), static_cast<long long>(report.parameters),
                options.ranks, options.ranks == 1 ? "rank" : "ranks");
  }
  std::printf("bytes moved: %llu predicted, %llu measured\n", static_cast<unsigned long long>(report.bytes_predicted),
              static_cast<unsigned long long>(report.bytes_measured));
  std::fflush(stdout);
}

void write_json(const Options& options, const Report& report) {
  nlohmann::ordered_json json = {
      {"ranks", options.ranks},
      {"strategy", name_of(options.strategy)},
      {"transport", options.transport},
      {"preset", options.preset.name},
      {"steps", options.steps},
      {"accumulate", options.accumulate},
      {"clip", options.clip},
      {"parameters", report.parameters},
      {"loss", report.loss},
      {"heldout_loss", report.held_out_loss},
      {"seconds", report.seconds},
      {"tokens_per_second", report.tokens_per_second},
      {"bytes_predicted", report.bytes_predicted},
      {"bytes_measured", report.bytes_measured},
  };
  if (report.weights_differing) json["weights_differing"] = *report.weights_differing;
  json["losses"] = report.losses;
  json["weights_sha256"] = report.weights_sha256;
  json["sample"] = report.sample;
  std::ofstream file(options.json);
  file << json.dump(2) << '\n';
  file.close();
  if (!file) throw InputError("cannot write to the file " + options.json);
}

}  // namespace gpt
