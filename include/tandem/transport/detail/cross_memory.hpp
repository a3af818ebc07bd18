// SPDX-License-Identifier: Apache-2.0
// Reading another process's memory at its own addresses, by one copy that the kernel makes ("cross-memory attach").
// Knows process numbers and addresses, no rank.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace tandem::detail {

/// Reads `bytes` bytes at `address` of `process` into `to`. Returns 0, or the error number: ESRCH (the process has
/// ended), EFAULT (no such memory), EPERM (not allowed: another user's, or kernel.yama.ptrace_scope), ENOSYS.
inline int read_other_process(pid_t process, void* to, std::uint64_t address, std::size_t bytes) noexcept {
  constexpr std::size_t most = std::size_t{1} << 30;  // the kernel moves less than 2 GiB a call
  auto* at = static_cast<std::byte*>(to);
  while (bytes != 0) {
    const std::size_t part = std::min(bytes, most);
    const iovec here{at, part};
    const iovec there{reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), part};
    const ssize_t moved = ::process_vm_readv(process, &here, 1, &there, 1, 0);
    if (moved < 0) return errno;
    if (moved == 0) return EFAULT;
    at += moved;
    address += static_cast<std::uint64_t>(moved);
    bytes -= static_cast<std::size_t>(moved);
  }
  return 0;
}

}  // namespace tandem::detail
