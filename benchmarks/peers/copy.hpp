// SPDX-License-Identifier: Apache-2.0
// What the machine allows: every rank copies a buffer at the same time as all the others. An all-reduce that reads
// each input once and writes each output once moves the same 2ND bytes, so this is its bound.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <new>

#include "tandem/core/bytes.hpp"

namespace tandem::bench {

/// Two buffers of one rank, in shared pages (huge ones where the kernel has them) like the windows it is the bound of.
class Copy {
 public:
  explicit Copy(std::size_t bytes)
      : bytes_(round_up(bytes, page_bytes) + 37 * page_bytes) {  // not a power of two apart
    from_ = map(bytes_);
    to_ = map(bytes_);
    std::memset(from_, 1, bytes_);
    std::memset(to_, 2, bytes_);
  }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  ~Copy() {
    munmap(from_, bytes_);
    munmap(to_, bytes_);
  }

  void run(std::size_t bytes) noexcept {
    std::memcpy(to_, from_, bytes);
    asm volatile("" : : "r"(to_) : "memory");  // or the compiler drops a copy that nobody reads
  }

 private:
  static void* map(std::size_t bytes) {
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
  }

  std::size_t bytes_;
  void* from_ = nullptr;
  void* to_ = nullptr;
};

}  // namespace tandem::bench
