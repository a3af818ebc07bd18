// SPDX-License-Identifier: Apache-2.0
// Is a process of this host still there? Told by a descriptor that the process itself has made of itself, so that a
// reused process number cannot deceive.
#pragma once

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tandem/transport/detail/descriptor.hpp"

namespace tandem::detail {

inline Descriptor own_process() {
  Descriptor opened(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!opened) throw system_failure("pidfd_open failed (Linux 5.3 or newer is needed)");
  return opened;
}
/// Never waits.
inline bool has_ended(const Descriptor& process) noexcept {
  pollfd ended{process.get(), POLLIN, 0};
  return ::poll(&ended, 1, 0) == 1;
}

}  // namespace tandem::detail
