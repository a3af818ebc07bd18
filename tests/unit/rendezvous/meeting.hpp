// SPDX-License-Identifier: Apache-2.0
// What the rendezvous tests share: introductions whose content can be checked, and counts of what is open.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/ranks.hpp"
#include "tandem/core/clock.hpp"
#include "tandem/transport/rendezvous.hpp"

namespace tandem::test {

inline Deadline soon(double seconds) {
  return Deadline::after(std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9)));
}
inline void pause_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

 private:
  Clock::time_point begin_ = Clock::now();
};

inline std::byte pattern(int rank, std::size_t at) {
  return std::byte((at * 31 + static_cast<std::size_t>(rank) * 7) % 251);
}

/// `bytes` bytes, and `files` memory files that hold "RANK.FILE"; all differ by rank.
inline Introduction introduction(int rank, std::size_t bytes, int files) {
  Introduction result;
  for (std::size_t i = 0; i < bytes; ++i) result.data.push_back(pattern(rank, i));
  for (int file = 0; file < files; ++file) {
    result.descriptors.emplace_back(::memfd_create("tandem-test", MFD_CLOEXEC));
    const std::string text = std::to_string(rank) + "." + std::to_string(file);
    REQUIRE(::write(result.descriptors.back().get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  return result;
}

inline void check_introductions(const std::vector<Introduction>& all, int size, std::size_t bytes, int files) {
  REQUIRE(all.size() == static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    const Introduction& one = all[static_cast<std::size_t>(rank)];
    REQUIRE(one.data.size() == bytes);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < bytes; ++i) wrong += one.data[i] != pattern(rank, i);
    CHECK(wrong == 0);
    REQUIRE(one.descriptors.size() == static_cast<std::size_t>(files));
    for (int file = 0; file < files; ++file) {
      const int descriptor = one.descriptors[static_cast<std::size_t>(file)].get();
      std::array<char, 32> text{};
      REQUIRE(::pread(descriptor, text.data(), text.size(), 0) > 0);
      CHECK(std::string(text.data()) == std::to_string(rank) + "." + std::to_string(file));
      CHECK((::fcntl(descriptor, F_GETFD) & FD_CLOEXEC) != 0);
    }
  }
}

inline int open_files() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

/// Meets and returns the Error it ended with; nothing when it succeeded.
inline std::optional<Error> failed_meeting(const std::string& name, int rank, int size, double seconds,
                                           Introduction mine = {}) {
  try {
    meet(name, rank, size, std::move(mine), soon(seconds));
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  }
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace tandem::test
