// SPDX-License-Identifier: Apache-2.0
// Where a job's secret comes from. Knows files and the environment, not what the secret is for.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tandem/core/env.hpp"
#include "tandem/core/error.hpp"
#include "tandem/transport/detail/descriptor.hpp"

namespace tandem::detail {

using TcpSecret = std::vector<std::uint8_t>;

inline constexpr std::size_t secret_least_bytes = 16;
inline constexpr std::size_t secret_most_bytes = 4096;

inline void require_length(const TcpSecret& secret, const std::string& what) {
  if (secret.size() >= secret_least_bytes && secret.size() <= secret_most_bytes) return;
  throw Error(ErrorKind::environment, "tandem: the job's secret in " + what + " has " + std::to_string(secret.size()) +
                                          " bytes, but must have " + std::to_string(secret_least_bytes) + " to " +
                                          std::to_string(secret_most_bytes));
}

/// All of an open file from its beginning, whatever its offset: ranks that inherit one descriptor share the offset. Of
/// a pipe only one of them would get anything.
inline TcpSecret read_secret(const Descriptor& file, const std::string& what) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw system_failure("cannot look at " + what);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorKind::environment, "tandem: " + what +
                                            " is not a regular file, which every rank can read from its beginning; "
                                            "put the secret into a file with mode 0600, or a memfd");
  }
  TcpSecret secret(secret_most_bytes + 1);
  std::size_t length = 0;
  while (length < secret.size()) {
    const ssize_t part =
        ::pread(file.get(), secret.data() + length, secret.size() - length, static_cast<off_t>(length));
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) throw system_failure("cannot read the job's secret from " + what);
    if (part == 0) break;
    length += static_cast<std::size_t>(part);
  }
  secret.resize(length);
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
  require_length(secret, what);
  return secret;
}

/// From the first of: TANDEM_SECRET_FD (an inherited descriptor), TANDEM_SECRET_FILE (readable by its owner alone),
/// TANDEM_SECRET (taken out of the environment once read). Empty with TANDEM_INSECURE=1; nothing when none is set.
inline std::optional<TcpSecret> configured_secret() {
  static std::optional<TcpSecret> kept;  // a process that joins again finds it here
  std::optional<TcpSecret> given;
  if (const auto text = environment("TANDEM_SECRET")) {  // also when another source is taken
    given.emplace(text->begin(), text->end());
    // Programs that this one starts, and whoever may read its environment from now on, do not get it.
    if (char* const in_place = std::getenv("TANDEM_SECRET")) std::memset(in_place, 'x', std::strlen(in_place));
    ::unsetenv("TANDEM_SECRET");
  }
  if (const auto number = environment_integer("TANDEM_SECRET_FD", 0, 1 << 20)) {
    return read_secret(Descriptor::duplicate_of(static_cast<int>(*number)), "TANDEM_SECRET_FD");
  }
  if (const auto path = environment("TANDEM_SECRET_FILE")) {
    const Descriptor file(::open(path->c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a FIFO would wait
    if (!file) throw system_failure("cannot open the job's secret, TANDEM_SECRET_FILE=" + *path);
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) throw system_failure("cannot look at TANDEM_SECRET_FILE=" + *path);
    if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0 || (status.st_uid != ::geteuid() && status.st_uid != 0)) {
      throw Error(ErrorKind::environment, "tandem: TANDEM_SECRET_FILE=" + *path +
                                              " can be read by others than its owner, or belongs to somebody else; "
                                              "chmod 600 it");
    }
    return read_secret(file, "TANDEM_SECRET_FILE=" + *path);
  }
  if (given) {
    require_length(*given, "TANDEM_SECRET");
    kept = std::move(given);
  }
  if (kept) return kept;
  if (environment_integer("TANDEM_INSECURE", 0, 1).value_or(0) == 1) return TcpSecret();
  return std::nullopt;
}

}  // namespace tandem::detail
