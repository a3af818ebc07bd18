// SPDX-License-Identifier: Apache-2.0
// Tells a process whether it is a copy that fork() made of the one that made this object: one load, no system call.
#pragma once

#include <sys/mman.h>

#include <cstddef>

#include "tandem/core/bytes.hpp"
#include "tandem/transport/detail/private_memory.hpp"

namespace tandem::detail {

class ForkMark {
 public:
  ForkMark() {
    *page_ = std::byte{1};
    ::madvise(page_.get(), page_bytes, MADV_WIPEONFORK);  // a child reads zero
  }
  bool forked() const noexcept { return page_ != nullptr && *page_ == std::byte{0}; }

 private:
  PrivateMemory page_ = private_memory(page_bytes);
};

}  // namespace tandem::detail
