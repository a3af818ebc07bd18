// SPDX-License-Identifier: Apache-2.0
// One rank's shared memory: a sealed memfd mapped at its full virtual range, of which pages are reserved as needed.
// Knows nothing of what lies in it. Leaves no name anywhere: when the last process is gone, so is the memory.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tandem/core/bytes.hpp"
#include "tandem/core/error.hpp"
#include "tandem/transport/detail/descriptor.hpp"
#include "tandem/transport/detail/memory_limit.hpp"

namespace tandem::detail {

/// Move-only mapping. The owner creates it and may reserve pages; peers attach to its descriptor.
class Window {
 public:
  Window() = default;

  /// A window of `bytes` virtual bytes (rounded up to pages), no page reserved yet.
  /// The memfd is sealed against shrinking, so no peer can turn a later access into SIGBUS.
  static Window create(std::size_t bytes) {
    bytes = round_up(bytes, page_bytes);
    rlimit files{};  // whose excess would be answered with a signal
    if (::getrlimit(RLIMIT_FSIZE, &files) == 0 && bytes > files.rlim_cur) {
      throw Error(ErrorKind::environment, "tandem: a window of " + format_bytes(bytes) +
                                              " is larger than the files of this process may be, " +
                                              format_bytes(files.rlim_cur) +
                                              " (ulimit -f); raise that, or pass smaller JoinOptions::arena_bytes");
    }
    Descriptor memory(::memfd_create("tandem", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!memory) throw system_failure("memfd_create failed");
    if (::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0) {
      throw system_failure("a window of " + format_bytes(bytes) + " virtual memory is not to be had (ftruncate)");
    }
    if (::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) throw system_failure("sealing a memfd failed");
    return Window(std::move(memory), bytes, true);
  }

  /// Maps a peer's window. The size was agreed beforehand; a descriptor that does not keep it is refused.
  static Window attach(Descriptor memory, std::size_t bytes) {
    struct stat status {};
    if (::fstat(memory.get(), &status) != 0) throw system_failure("fstat of a peer's window failed");
    if (static_cast<std::size_t>(status.st_size) != bytes) {
      throw Error(ErrorKind::environment, "tandem: a peer's window has " + std::to_string(status.st_size) +
                                              " bytes where " + std::to_string(bytes) + " were agreed");
    }
    const int seals = ::fcntl(memory.get(), F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
      throw Error(ErrorKind::environment, "tandem: a peer's window is not sealed against shrinking");
    }
    return Window(std::move(memory), bytes, false);
  }

  Window(Window&& other) noexcept { swap(other); }
  Window& operator=(Window&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Window() {
    // A forked child does not have the mapping (MADV_DONTFORK) and may have another one at this address by now.
    if (base_ != nullptr && ::getpid() == mapped_by_) ::munmap(base_, bytes_);
  }

  std::byte* base() const noexcept { return base_; }
  std::size_t size() const noexcept { return bytes_; }
  int descriptor() const noexcept { return memory_.get(); }

  /// Makes the pages of `range` real, so that touching them can never fail. Throws Error(system) when memory is short.
  void reserve(Range range) {
    constexpr std::uint64_t kept = std::uint64_t{2} << 20;  // page tables are charged too
    const std::uint64_t left = memory_left_in_groups();
    if (left < kept || range.size() > left - kept) {
      throw system_failure("no memory for another " + format_bytes(range.size()) +
                               " of shared memory: the control group (container) of this process may take " +
                               format_bytes(left) + " more",
                           ENOMEM);
    }
    int fault = 0;
    do {
      fault = ::posix_fallocate(memory_.get(), static_cast<off_t>(range.begin), static_cast<off_t>(range.size()));
    } while (fault == EINTR);
    if (fault != 0) {
      throw system_failure("no memory for another " + format_bytes(range.size()) + " of shared memory", fault);
    }
  }

  /// The pages of `range` go to the system for every process that maps them, as far as it takes them; reading there
  /// gives zeros. Until the next reserve() a touch can fail.
  void give_back(Range range) noexcept {
    ::fallocate(memory_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(range.begin),
                static_cast<off_t>(range.size()));
  }

  /// Puts private pages with the same content where the shared ones of `span` are, leaving `kept` ranges' bytes
  /// intact: whoever still maps the memfd can no longer reach what this process uses. Page-aligned span.
  /// Costs a copy of the kept bytes. Returns false when memory is too short for it; nothing is changed then.
  bool make_private(Range span, const std::vector<Range>& kept) noexcept {
    if (span.empty()) return true;
    void* const fresh =
        ::mmap(nullptr, span.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fresh == MAP_FAILED) return false;
    auto* const copy = static_cast<std::byte*>(fresh);
    for (const Range& range : kept) std::memcpy(copy + (range.begin - span.begin), base_ + range.begin, range.size());
    if (::mremap(fresh, span.size(), span.size(), MREMAP_MAYMOVE | MREMAP_FIXED, base_ + span.begin) == MAP_FAILED) {
      ::munmap(fresh, span.size());
      return false;
    }
    return true;
  }

 private:
  Window(Descriptor memory, std::size_t bytes, bool owned) : memory_(std::move(memory)), bytes_(bytes) {
    void* const address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memory_.get(), 0);
    if (address == MAP_FAILED)
      throw system_failure("mapping a window of " + format_bytes(bytes) +
                           " failed; pass smaller JoinOptions::arena_bytes where address space is short");
    base_ = static_cast<std::byte*>(address);
    // A forked child must not write into memory that peers fold from.
    ::madvise(base_, bytes_, MADV_DONTFORK);
    ::madvise(base_, bytes_, MADV_HUGEPAGE);  // granted only where the system allows it for shared memory
    if (!owned) memory_.reset();              // the mapping keeps the memory; a descriptor per peer would add up
  }
  void swap(Window& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    std::swap(mapped_by_, other.mapped_by_);
  }

  Descriptor memory_;
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
  ::pid_t mapped_by_ = ::getpid();
};

}  // namespace tandem::detail
