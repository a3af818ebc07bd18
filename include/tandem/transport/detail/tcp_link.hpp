// SPDX-License-Identifier: Apache-2.0
// The sockets of one channel between two ranks, as one stream each way: frames go to whichever socket takes them and
// are put together by their place in the stream. Knows frames' order, not what they mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tandem/transport/detail/tcp_connection.hpp"

namespace tandem::detail {

/// The same interface as TcpConnection. Publications travel on the first socket, in order among themselves; with more
/// sockets than one, a frame of the stream may arrive before a publication that was made before it.
class TcpLink {
 public:
  static constexpr std::size_t slots = TcpConnection::slots;

  TcpLink() = default;
  TcpLink(std::vector<Descriptor> sockets, FrameLimits limits, std::byte* copy) {
    limits.sockets = static_cast<int>(sockets.size());
    for (Descriptor& socket : sockets) sockets_.emplace_back(std::move(socket), limits, copy);
  }

  std::span<TcpConnection> sockets() noexcept { return sockets_; }

  // --- out ------------------------------------------------------------------------------------------------------
  std::size_t slot_bytes() const noexcept { return sockets_[0].slot_bytes(); }
  std::span<std::byte> reserve() noexcept {
    for (std::size_t turn = 0; turn < sockets_.size(); ++turn) {
      const auto slot = sockets_[next_].reserve();
      if (!slot.empty()) return slot;
      next_ = (next_ + 1) % sockets_.size();
    }
    return {};
  }
  void commit(std::size_t bytes) noexcept { next_socket(bytes).commit(bytes); }
  void lend(std::span<const std::byte> memory) noexcept { next_socket(memory.size()).lend(memory); }
  void keep_loans() noexcept {
    for (TcpConnection& it : sockets_) it.keep_loans();
  }
  bool drained() noexcept {
    bool all = true;
    for (TcpConnection& it : sockets_) all = it.drained() && all;
    return all;
  }
  void publish(std::uint64_t position, std::span<const std::byte> bytes) noexcept {
    sockets_[0].publish(position, bytes);
  }

  // --- in -------------------------------------------------------------------------------------------------------
  std::span<const std::byte> peek() noexcept {
    std::size_t ahead = 0;
    for (TcpConnection& it : sockets_) {
      const auto front = it.peek();
      if (front.empty()) continue;
      if (it.front_position() == due_) return front;
      ++ahead;
    }
    if (ahead == sockets_.size())
      sockets_[0].refuse("sent a stream of frames with a gap at byte " + std::to_string(due_));
    return {};
  }
  void consume(std::size_t bytes) noexcept {
    for (TcpConnection& it : sockets_) {
      if (!it.holds_data() || it.front_position() != due_) continue;
      it.consume(bytes);
      due_ += bytes;
      return;
    }
  }
  void pull() noexcept {
    for (TcpConnection& it : sockets_) it.pull();
  }

 private:
  /// The one that had room, told where in the stream its next frame lies.
  TcpConnection& next_socket(std::size_t bytes) noexcept {
    TcpConnection& socket = sockets_[next_];
    socket.continue_stream_at(streamed_);
    streamed_ += bytes;
    next_ = (next_ + 1) % sockets_.size();
    return socket;
  }

  std::vector<TcpConnection> sockets_;
  std::size_t next_ = 0;        // where the next frame goes, if there is room
  std::uint64_t streamed_ = 0;  // bytes of the stream sent
  std::uint64_t due_ = 0;       // and consumed
};

}  // namespace tandem::detail
