// SPDX-License-Identifier: Apache-2.0
// Pages of this process alone: zeros, taken from the system as they are touched.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <memory>

#include "tandem/core/bytes.hpp"
#include "tandem/transport/detail/descriptor.hpp"

namespace tandem::detail {

struct Unmap {
  std::size_t bytes = 0;
  void operator()(std::byte* memory) const noexcept { ::munmap(memory, bytes); }
};
using PrivateMemory = std::unique_ptr<std::byte, Unmap>;

/// Page-aligned. Throws Error(system) when there is no address space for it.
inline PrivateMemory private_memory(std::size_t bytes) {
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw system_failure("no address space for " + format_bytes(bytes));
  return PrivateMemory(static_cast<std::byte*>(memory), Unmap{bytes});
}

}  // namespace tandem::detail
