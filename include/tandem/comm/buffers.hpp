// SPDX-License-Identifier: Apache-2.0
// Where the buffers of an operation lie, as the posts of all members say, and how this rank reaches them: in windows
// that all map or, where the system lets processes read each other's memory, wherever they are. Knows no algorithm.
#pragma once

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tandem/comm/arena.hpp"
#include "tandem/comm/board.hpp"
#include "tandem/comm/operation.hpp"
#include "tandem/core/bytes.hpp"
#include "tandem/core/copy.hpp"
#include "tandem/transport/concepts.hpp"

namespace tandem::detail {

/// A place as a post tells it: an offset in its rank's window; `own_memory` and an address, of its rank's own memory;
/// or `hidden`, where nobody else gets to.
struct Place {
  static constexpr std::uint64_t own_memory = std::uint64_t{1} << 63;
  static constexpr std::uint64_t hidden = Arena::private_memory;
  static constexpr std::uint64_t nothing = 0;  // no buffer: the board lies there
  static constexpr bool in_window(std::uint64_t place) noexcept { return (place & own_memory) == 0; }
};
static_assert(!Place::in_window(Place::hidden));

/// Refers to what the communicator keeps.
template <ControlTransport T>
class Buffers {
 public:
  Buffers(T& endpoint, std::shared_ptr<Arena> arena, const std::vector<Block*>& blocks, const std::vector<int>& members)
      : endpoint_(endpoint), arena_(std::move(arena)), blocks_(blocks), members_(members) {
    for (const int member : members) windows_.push_back(endpoint.window(member));
    if constexpr (T::has_windows) reads_others_ = endpoint.reads_others();
  }

  /// May this rank read the others' own memory? The others learn it from its block.
  bool reads_others() const noexcept { return reads_others_; }
  /// Where memory of this rank lies for the others.
  std::uint64_t place_of(const void* memory, std::size_t bytes) const noexcept {
    if (!T::has_windows) return Place::hidden;
    const std::uint64_t offset = arena_->offset_of(memory, bytes);
    if (offset != Arena::private_memory || !reads_others_ || !can_be_read(memory, bytes)) return offset;
    return Place::own_memory | reinterpret_cast<std::uintptr_t>(memory);
  }
  /// The same where only a registered buffer is of use to them.
  std::uint64_t window_place_of(const void* memory, std::size_t bytes) const noexcept {
    const std::uint64_t offset = T::has_windows ? arena_->offset_of(memory, bytes) : Place::hidden;
    return Place::in_window(offset) ? offset : Place::nothing;
  }

  // After all members' posts were awaited; the same answers on all of them.
  /// Of the members that give something, how many are registered.
  Registration registration(const Operation& operation) const noexcept {
    if (!T::has_windows) return Registration::none;
    bool any = false;
    bool all = true;
    for (int member = 0; member < static_cast<int>(blocks_.size()); ++member) {
      const Line& line = line_of(operation, member);
      if (!is_registered(operation, member))
        all = false;
      else if (line.input != Place::nothing)
        any = true;
    }
    return all ? Registration::all : any ? Registration::some : Registration::none;
  }
  bool is_registered(const Operation& operation, int member) const noexcept {
    const Line& line = line_of(operation, member);
    return Place::in_window(line.input) && Place::in_window(line.output);
  }
  /// May others store into a buffer of that member's?
  bool is_stored_to(const Operation& operation, int member) const noexcept {
    const std::uint64_t output = line_of(operation, member).output;
    return Place::in_window(output) && output != Place::nothing;
  }
  /// Can every member read every other's buffers, wherever they are?
  bool all_readable(const Operation& operation) const noexcept {
    if (!T::has_windows) return false;
    for (int member = 0; member < static_cast<int>(blocks_.size()); ++member) {
      const Line& line = line_of(operation, member);
      if (line.input == Place::hidden || line.output == Place::hidden) return false;
      if (blocks_[static_cast<std::size_t>(member)]->reads_others == 0) return false;
    }
    return true;
  }
  const std::byte* input_of(const Operation& operation, int member) const noexcept {
    return window(member) + line_of(operation, member).input;
  }
  std::byte* output_of(const Operation& operation, int member) const noexcept {
    return window(member) + line_of(operation, member).output;
  }
  /// Copies bytes at a place of a member to `to`. Returns 0 or the error number, see read_other_process.
  int load(int member, std::uint64_t place, std::uint64_t offset, void* to, std::size_t bytes) const noexcept {
    if (Place::in_window(place)) {
      copy_result(to, window(member) + place + offset, bytes);
      return 0;
    }
    if constexpr (T::has_windows) {
      const int peer = members_[static_cast<std::size_t>(member)];
      return endpoint_.read_other(peer, to, (place & ~Place::own_memory) + offset, bytes);
    }
    return ENOSYS;
  }

 private:
  /// Not all memory can: that of devices, for one. Tried once for each buffer; what is small is staged or streamed.
  bool can_be_read(const void* memory, std::size_t bytes) const noexcept {
    if (bytes <= Block::eager_bytes) return true;
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    std::uintptr_t& last = tried_[address / page_bytes % tried_.size()];
    if (last == address) return true;
    if constexpr (T::has_windows) {
      std::byte seen{};
      if (endpoint_.read_other(endpoint_.rank(), &seen, address, 1) != 0) return false;
    }
    last = address;
    return true;
  }
  std::byte* window(int member) const noexcept { return windows_[static_cast<std::size_t>(member)]; }
  const Line& line_of(const Operation& operation, int member) const noexcept {
    return blocks_[static_cast<std::size_t>(member)]->lines[operation.sequence % Block::line_count];
  }

  T& endpoint_;
  std::shared_ptr<Arena> arena_;
  const std::vector<Block*>& blocks_;
  const std::vector<int>& members_;
  std::vector<std::byte*> windows_;
  bool reads_others_ = false;
  mutable std::array<std::uintptr_t, 64> tried_{};  // addresses of buffers that can be read
};

}  // namespace tandem::detail
