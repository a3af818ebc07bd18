// SPDX-License-Identifier: Apache-2.0
// Tells a process whether it is a copy that fork() made of the one that made this object: one load, no system call.
#pragma once

#include <sys/mman.h>

#include <memory>

#include "tandem/core/bytes.hpp"
#include "tandem/transport/detail/descriptor.hpp"

namespace tandem::detail {

class ForkMark {
 public:
  ForkMark() {
    void* const page = ::mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) throw system_failure("mapping a page failed");
    alive_.reset(static_cast<unsigned char*>(page));
    *alive_ = 1;
    ::madvise(page, page_bytes, MADV_WIPEONFORK);  // a child reads zero
  }
  bool forked() const noexcept { return alive_ != nullptr && *alive_ == 0; }

 private:
  struct Unmap {
    void operator()(unsigned char* page) const noexcept { ::munmap(page, page_bytes); }
  };
  std::unique_ptr<unsigned char, Unmap> alive_;
};

}  // namespace tandem::detail
