// SPDX-License-Identifier: Apache-2.0
// The yardstick: the plainest all-reduce over shared memory that one can write in an afternoon, with none of what a
// library owes its users (no fingerprint, no deadline, no order contract, no second communicator). fp32 Sum only.
// tandem must stay within a small factor of it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "harness/team.hpp"

namespace tandem::bench {

/// Maps its memory before the fork; every rank then uses its own copy of the object.
class Prototype {
 public:
  Prototype(int ranks, std::size_t window_bytes);
  Prototype(const Prototype&) = delete;
  Prototype& operator=(const Prototype&) = delete;
  ~Prototype();

  void enter(const Team& team);

  /// This rank's window, in which all_reduce_window works.
  float* window() noexcept { return windows_[rank_]; }
  /// Direct push: barrier, fold the own run of all windows and store it to all of them, barrier.
  void all_reduce_window(std::size_t count) noexcept;
  /// Ring over single-producer single-consumer slots, from and to private memory.
  void all_reduce_private(float* data, std::size_t count) noexcept;

 private:
  static constexpr std::size_t slot_bytes = std::size_t{64} << 10;
  static constexpr std::uint64_t slots = 8;
  struct alignas(128) Flag {
    std::atomic<std::uint64_t> value{0};
  };
  struct Flags {
    Flag arrived[Team::most_ranks];
    Flag written[Team::most_ranks];  // slots that rank r has filled, written by r
    Flag drained[Team::most_ranks];  // slots that rank r has emptied, written by r
  };

  void barrier() noexcept;
  void exchange(float* data, std::size_t count, int send_run, int receive_run, bool add) noexcept;
  void run_of(std::size_t count, int run, std::size_t& begin, std::size_t& end) const noexcept;

  int ranks_;
  int rank_ = 0;
  int pauses_ = 2000;
  std::size_t window_bytes_;
  Flags* flags_ = nullptr;
  float* windows_[Team::most_ranks] = {};
  std::byte* slots_[Team::most_ranks] = {};
  std::uint64_t turn_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
};

}  // namespace tandem::bench
