// SPDX-License-Identifier: Apache-2.0
// Where the secret comes from, and that nothing readable by others is taken for one.
#include "tandem/transport/detail/tcp_secret.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

using namespace tandem;
using namespace tandem::detail;

namespace {

struct Environment {
  ~Environment() {
    for (const char* name : {"TANDEM_SECRET_FD", "TANDEM_SECRET_FILE", "TANDEM_SECRET", "TANDEM_INSECURE"})
      ::unsetenv(name);
  }
};
std::string text_of(const TcpSecret& secret) { return std::string(secret.begin(), secret.end()); }
std::string failure() {
  try {
    configured_secret();
    return "";
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::environment);
    return error.what();
  }
}

}  // namespace

TEST_CASE("the secret comes from a descriptor, a file that is the owner's alone, or nowhere") {
  const Environment guard;
  CHECK_FALSE(configured_secret());
  ::setenv("TANDEM_INSECURE", "1", 1);
  REQUIRE(configured_secret());
  CHECK(configured_secret()->empty());

  const std::string path = std::filesystem::temp_directory_path() / ("tandem-secret-" + std::to_string(::getpid()));
  std::ofstream(path) << "0123456789abcdef\n";
  ::setenv("TANDEM_SECRET_FILE", path.c_str(), 1);
  ::chmod(path.c_str(), 0644);
  CHECK(failure().find("can be read by others") != std::string::npos);
  ::chmod(path.c_str(), 0600);
  CHECK(text_of(*configured_secret()) == "0123456789abcdef");
  std::ofstream(path) << "short";
  CHECK(failure().find("has 5 bytes, but must have 16 to 4096") != std::string::npos);
  std::filesystem::remove(path);

  const int memory = ::memfd_create("secret", MFD_CLOEXEC);
  REQUIRE(::write(memory, "from a descriptor", 17) == 17);
  ::setenv("TANDEM_SECRET_FD", std::to_string(memory).c_str(), 1);
  CHECK(text_of(*configured_secret()) == "from a descriptor");
  CHECK(text_of(*configured_secret()) == "from a descriptor");  // all ranks read the same inherited one
  ::close(memory);
}

// A FIFO kept join() waiting past every deadline; of a pipe the first of the ranks that inherit it would get all.
TEST_CASE("a secret that cannot be read from its beginning by every rank is refused") {
  const Environment guard;
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  ::setenv("TANDEM_SECRET_FD", std::to_string(ends[0]).c_str(), 1);
  CHECK(failure().find("TANDEM_SECRET_FD is not a regular file") != std::string::npos);
  ::close(ends[0]);
  ::close(ends[1]);
  ::unsetenv("TANDEM_SECRET_FD");
  const std::string path = std::filesystem::temp_directory_path() / ("tandem-fifo-" + std::to_string(::getpid()));
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  ::setenv("TANDEM_SECRET_FILE", path.c_str(), 1);
  CHECK(failure().find("is not a regular file") != std::string::npos);
  std::filesystem::remove(path);
}

// It stayed readable in /proc when a file was given as well.
TEST_CASE("a secret in the environment is taken out of it also when a file wins") {
  const Environment guard;
  const std::string path = std::filesystem::temp_directory_path() / ("tandem-both-" + std::to_string(::getpid()));
  std::ofstream(path) << "0123456789abcdef";
  ::chmod(path.c_str(), 0600);
  ::setenv("TANDEM_SECRET_FILE", path.c_str(), 1);
  ::setenv("TANDEM_SECRET", "another secret of length", 1);
  CHECK(text_of(*configured_secret()) == "0123456789abcdef");
  CHECK(std::getenv("TANDEM_SECRET") == nullptr);
  std::filesystem::remove(path);
}

TEST_CASE("a secret in the environment is taken out of it, and kept for the next join") {
  const Environment guard;
  ::setenv("TANDEM_SECRET", "too short", 1);
  CHECK(failure().find("has 9 bytes") != std::string::npos);
  ::setenv("TANDEM_SECRET", "sixteen and more bytes", 1);
  const char* const in_place = std::getenv("TANDEM_SECRET");
  CHECK(text_of(*configured_secret()) == "sixteen and more bytes");
  CHECK(std::getenv("TANDEM_SECRET") == nullptr);
  CHECK(std::string(in_place, 5) == "xxxxx");
  CHECK(text_of(*configured_secret()) == "sixteen and more bytes");
}
