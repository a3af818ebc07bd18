// SPDX-License-Identifier: Apache-2.0
// Owns one file descriptor, so that no path out of a function leaks it. Knows nothing of what the descriptor refers to.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "tandem/core/error.hpp"

namespace tandem {

namespace detail {

/// "tandem: WHAT: No such file or directory": the sentence for a failed system call, from errno unless given.
inline Error system_failure(const std::string& what, int code = errno) {
  return Error(ErrorKind::system, "tandem: " + what + ": " + std::generic_category().message(code));
}

}  // namespace detail

/// Move-only owner of a file descriptor; closes it when it goes.
class Descriptor {
 public:
  Descriptor() noexcept = default;
  explicit Descriptor(int descriptor) noexcept : descriptor_(descriptor) {}
  Descriptor(Descriptor&& other) noexcept : descriptor_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { reset(); }

  int get() const noexcept { return descriptor_; }
  explicit operator bool() const noexcept { return descriptor_ >= 0; }
  /// Gives the descriptor up; the caller closes it.
  int release() noexcept { return std::exchange(descriptor_, -1); }
  void reset(int descriptor = -1) noexcept {
    // Linux frees the number even when close() is interrupted: a second call could close another thread's file.
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = descriptor;
  }
  /// A second descriptor of an open file, closed on exec. Throws Error(system), for example at the file limit.
  static Descriptor duplicate_of(int descriptor) {
    const int copy = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) throw detail::system_failure("cannot duplicate a file descriptor");
    return Descriptor(copy);
  }

 private:
  int descriptor_ = -1;
};

}  // namespace tandem
