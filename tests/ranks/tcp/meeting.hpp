// SPDX-License-Identifier: Apache-2.0
// What tests of ranks that meet at rank 0's port share: ports, secrets, and a sum that shows that all is well.
#pragma once

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "support/worlds.hpp"
#include "tandem/collective/all_reduce.hpp"
#include "tandem/transport/tcp.hpp"

namespace tandem::test {

/// A port that was free a moment ago.
inline int free_port() {
  const Descriptor door = detail::listen_on(detail::TcpAddress::loopback(), {});
  return detail::local_address(door).port();
}

class SecretFile {
 public:
  explicit SecretFile(const std::string& secret)
      : path_(std::filesystem::temp_directory_path() /
              ("tandem-secret-" + std::to_string(::getpid()) + "-" + std::to_string(++number))) {
    std::ofstream file(path_);
    ::chmod(path_.c_str(), 0600);
    file << secret;
  }
  ~SecretFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  inline static int number = 0;
  std::string path_;
};

inline void meet_at(const std::string& host, int port, const std::string& secret_file) {
  ::setenv("MASTER_ADDR", host.c_str(), 1);
  ::setenv("TANDEM_PORT", std::to_string(port).c_str(), 1);
  if (!secret_file.empty()) ::setenv("TANDEM_SECRET_FILE", secret_file.c_str(), 1);
}
inline void meet_at(const detail::TcpAddress& address, const std::string& secret_file) {
  meet_at(address.host(), address.port(), secret_file);
}
inline JoinOptions within(std::chrono::nanoseconds timeout) {
  JoinOptions options;
  options.timeout = timeout;
  return options;
}
inline void add_up(World& world) {
  std::vector<double> values(10000, world.rank() + 1);
  all_reduce(world, std::span(values), Sum{});
  CHECK(values.back() == world.size() * (world.size() + 1) / 2);
}

}  // namespace tandem::test
