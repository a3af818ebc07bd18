// SPDX-License-Identifier: Apache-2.0
// What the processes of a test tell one another behind the library's back: who is who, when somebody died, what was
// seen. Made before the fork.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <new>
#include <stdexcept>

namespace tandem::test {

struct SharedNotes {
  std::atomic<std::int32_t> process[8];  // by rank
  std::atomic<std::int64_t> noticed[8];  // by rank: when it got its error
  std::atomic<std::int64_t> died_at;     // steady clock, ns
  std::atomic<std::int32_t> seen;        // survivors that got their error
  std::atomic<std::int32_t> phase;
};

class SharedPage {
 public:
  SharedPage() {
    void* const memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("mmap");
    notes_ = new (memory) SharedNotes{};
  }
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;
  ~SharedPage() { ::munmap(notes_, 4096); }
  SharedNotes* operator->() const noexcept { return notes_; }

 private:
  SharedNotes* notes_;
};

/// The same clock in all processes.
inline std::int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

}  // namespace tandem::test
