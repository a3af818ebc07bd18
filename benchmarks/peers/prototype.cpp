// SPDX-License-Identifier: Apache-2.0
// The yardstick's two algorithms. Built with the machine's own instruction set where the compiler can.
#include "peers/prototype.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "tandem/core/bytes.hpp"

namespace tandem::bench {
namespace {

// One vector of eight floats; the compiler cuts it where registers are narrower. Unaligned: windows are aligned, runs
// of private buffers need not be.
using Vector = float __attribute__((vector_size(32), aligned(4), may_alias));
constexpr std::size_t lanes = 8;

void* map_shared(std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  madvise(memory, bytes, MADV_HUGEPAGE);  // where the kernel has huge shared pages
  return memory;
}

Vector load(const float* from) noexcept { return *reinterpret_cast<const Vector*>(from); }
void store(float* to, Vector value) noexcept { *reinterpret_cast<Vector*>(to) = value; }

/// windows[*][begin, end) = their sum.
void fold_and_push(float* const* windows, int ranks, std::size_t begin, std::size_t end) noexcept {
  std::size_t i = begin;
  for (; i + lanes <= end; i += lanes) {
    Vector sum = load(windows[0] + i);
    for (int rank = 1; rank < ranks; ++rank) sum += load(windows[rank] + i);
    for (int rank = 0; rank < ranks; ++rank) store(windows[rank] + i, sum);
  }
  for (; i < end; ++i) {
    float sum = windows[0][i];
    for (int rank = 1; rank < ranks; ++rank) sum += windows[rank][i];
    for (int rank = 0; rank < ranks; ++rank) windows[rank][i] = sum;
  }
}

void add_to(float* data, const float* other, std::size_t count) noexcept {
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) store(data + i, load(data + i) + load(other + i));
  for (; i < count; ++i) data[i] += other[i];
}

}  // namespace

Prototype::Prototype(int ranks, std::size_t window_bytes)
    // The odd pages keep windows from lying a power of two apart: the level-1 caches of Zen guess a line's way from a
    // hash of its address, and equal hashes made this four times slower at 64 KB.
    : ranks_(ranks), window_bytes_(round_up(std::max(window_bytes, page_bytes), page_bytes) + 37 * page_bytes) {
  flags_ = new (map_shared(sizeof(Flags))) Flags;
  for (int rank = 0; rank < ranks; ++rank) {
    windows_[rank] = static_cast<float*>(map_shared(window_bytes_));
    slots_[rank] = static_cast<std::byte*>(map_shared(slots * slot_bytes));
  }
}

Prototype::~Prototype() {
  for (int rank = 0; rank < ranks_; ++rank) {
    munmap(windows_[rank], window_bytes_);
    munmap(slots_[rank], slots * slot_bytes);
  }
  munmap(static_cast<void*>(flags_), sizeof(Flags));
}

void Prototype::enter(const Team& team) {
  rank_ = team.rank();
  pauses_ = team.crowded() ? 0 : 2000;
  std::memset(windows_[rank_], 0, window_bytes_);  // first touch by the rank that uses it most
  std::memset(slots_[rank_], 0, slots * slot_bytes);
}

void Prototype::barrier() noexcept {
  ++turn_;
  flags_->arrived[rank_].value.store(turn_, std::memory_order_release);
  int spins = 0;
  for (int peer = 0; peer < ranks_; ++peer) {
    while (flags_->arrived[peer].value.load(std::memory_order_acquire) < turn_) {
      cpu_relax();
      if (++spins > pauses_) {
        sched_yield();
        spins = 0;
      }
    }
  }
}

// Runs are cut at multiples of 16 elements, a cache line of floats; the last takes the rest.
void Prototype::run_of(std::size_t count, int run, std::size_t& begin, std::size_t& end) const noexcept {
  const std::size_t each = count / static_cast<std::size_t>(ranks_) / 16 * 16;
  begin = each * static_cast<std::size_t>(run);
  end = run == ranks_ - 1 ? count : begin + each;
}

void Prototype::all_reduce_window(std::size_t count) noexcept {
  std::size_t begin = 0;
  std::size_t end = 0;
  run_of(count, rank_, begin, end);
  barrier();
  fold_and_push(windows_, ranks_, begin, end);
  barrier();
}

// Each index of a slot ring has one writer: `written` the producer, `drained` the consumer (the next rank). A release
// store publishes the slot's bytes, or its being free again; the other side's acquire load sees them.
void Prototype::exchange(float* data, std::size_t count, int send_run, int receive_run, bool add) noexcept {
  constexpr std::size_t slot_count = slot_bytes / sizeof(float);
  const int next = (rank_ + 1) % ranks_;
  const int previous = (rank_ + ranks_ - 1) % ranks_;
  std::size_t send = 0;
  std::size_t send_end = 0;
  std::size_t receive = 0;
  std::size_t receive_end = 0;
  run_of(count, send_run, send, send_end);
  run_of(count, receive_run, receive, receive_end);
  int spins = 0;
  while (send < send_end || receive < receive_end) {
    bool progress = false;
    if (send < send_end && sent_ - flags_->drained[next].value.load(std::memory_order_acquire) < slots) {
      const std::size_t length = std::min(slot_count, send_end - send);
      std::memcpy(slots_[rank_] + (sent_ % slots) * slot_bytes, data + send, length * sizeof(float));
      send += length;
      flags_->written[rank_].value.store(++sent_, std::memory_order_release);
      progress = true;
    }
    if (receive < receive_end && flags_->written[previous].value.load(std::memory_order_acquire) > received_) {
      const std::size_t length = std::min(slot_count, receive_end - receive);
      const auto* const slot = reinterpret_cast<const float*>(slots_[previous] + (received_ % slots) * slot_bytes);
      if (add)
        add_to(data + receive, slot, length);
      else
        std::memcpy(data + receive, slot, length * sizeof(float));
      receive += length;
      flags_->drained[rank_].value.store(++received_, std::memory_order_release);
      progress = true;
    }
    if (!progress) {
      cpu_relax();
      if (++spins > pauses_) {
        sched_yield();
        spins = 0;
      }
    }
  }
}

void Prototype::all_reduce_private(float* data, std::size_t count) noexcept {
  const int n = ranks_;
  for (int step = 0; step < n - 1; ++step) {
    exchange(data, count, (rank_ - step + n) % n, (rank_ - step - 1 + 2 * n) % n, true);
  }
  for (int step = 0; step < n - 1; ++step) {
    exchange(data, count, (rank_ + 1 - step + n) % n, (rank_ - step + n) % n, false);
  }
}

}  // namespace tandem::bench
