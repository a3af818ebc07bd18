// SPDX-License-Identifier: Apache-2.0
// One connected socket to one peer: a stream each way and, between its frames, what the peer publishes of its control
// memory. Never blocks. Knows frames, not who the peer is nor what the bytes mean.
#pragma once

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <linux/sockios.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "tandem/core/bytes.hpp"
#include "tandem/transport/detail/descriptor.hpp"
#include "tandem/transport/detail/tcp_frame.hpp"

namespace tandem::detail {

/// Both ends of the stream at once: reserve / commit send, peek / consume receive, as with RingWriter and RingReader.
/// Frames go out in the order of commit, lend and publish; the kernel takes what it can, the rest waits here: at most
/// `slots` frames of the stream, and publications.
class TcpConnection {
 public:
  static constexpr std::size_t slots = 8;

  TcpConnection() = default;
  /// `copy` is this process's copy of the peer's control memory, where publications go.
  TcpConnection(Descriptor socket, const FrameLimits& limits, std::byte* copy)
      : socket_(std::move(socket)), limits_(limits), copy_(copy), reader_(limits) {}

  // --- out ------------------------------------------------------------------------------------------------------
  std::size_t slot_bytes() const noexcept { return limits_.payload_bytes; }
  /// Room for the next frame of the stream, or nothing while `slots` of them wait.
  std::span<std::byte> reserve() noexcept {
    if (waiting_ >= slots) flush();
    if (waiting_ >= slots || broken()) return {};
    if (open_.empty()) open_ = take(limits_.payload_bytes);
    return std::span(open_).first(limits_.payload_bytes);
  }
  /// Sends the first `bytes` of what reserve() gave; 0 < bytes <= slot_bytes().
  void commit(std::size_t bytes) noexcept {
    const std::byte* const payload = open_.data();
    put_stream(payload, bytes, std::exchange(open_, {}));
  }
  /// Sends `memory` without a copy, when reserve() gave room: it must not change until keep_loans();
  /// 0 < memory.size() <= slot_bytes().
  void lend(std::span<const std::byte> memory) noexcept { put_stream(memory.data(), memory.size(), {}); }
  /// The next frame begins at this byte of the stream: the ones between travelled elsewhere.
  void continue_stream_at(std::uint64_t position) noexcept { streamed_ = position; }
  /// The owner wants its memory back: copies what the kernel has not taken yet.
  void keep_loans() noexcept {
    for (Waiting& it : queue_) {
      if (it.header.length == 0 || !it.bytes.empty()) continue;
      it.bytes = copy_of({it.payload, it.header.length});
      it.payload = it.bytes.data();
    }
  }
  /// Has the kernel taken all frames of the stream?
  bool drained() noexcept {
    if (waiting_ != 0) flush();
    return waiting_ == 0 || broken();
  }
  /// What lies at `position` of this rank's control memory is now `bytes`. Goes with the next flush.
  void publish(std::uint64_t position, std::span<const std::byte> bytes) noexcept {
    if (broken()) return;
    for (std::size_t at = 0; at < bytes.size(); at += limits_.payload_bytes) {
      const auto part = bytes.subspan(at, std::min(limits_.payload_bytes, bytes.size() - at));
      // A word that is told again and again to one who does not read takes the place of its last value.
      if (queue_.size() > 1 && queue_.back().header.kind == FrameKind::publication &&
          queue_.back().header.position == position + at && queue_.back().header.length == part.size()) {
        spare_.push_back(std::move(queue_.back().bytes));
        queue_.pop_back();
      }
      auto memory = copy_of(part);
      const std::byte* const payload = memory.data();
      put(payload, part.size(), std::move(memory), FrameKind::publication, position + at);
    }
  }
  void say_goodbye() noexcept {
    if (!broken()) put(nullptr, 0, {}, FrameKind::goodbye, 0);
  }
  /// Gives the kernel what it takes.
  void flush() noexcept {
    while (!queue_.empty() && !broken()) {
      std::array<iovec, 48> parts{};
      std::size_t count = 0;
      std::size_t skip = sent_of_first_;
      const auto add = [&](const void* begin, std::size_t bytes) {
        const std::size_t skipped = std::min(skip, bytes);
        skip -= skipped;
        if (bytes == skipped) return;
        // The kernel only reads; its type is shared with readv.
        parts[count++] = {static_cast<std::byte*>(const_cast<void*>(begin)) + skipped, bytes - skipped};
      };
      for (auto it = queue_.begin(); it != queue_.end() && count + 3 <= parts.size(); ++it) {
        static constexpr std::byte padding[frame_alignment]{};
        add(&it->header, sizeof it->header);
        add(it->payload, it->header.length);
        add(padding, it->total() - sizeof it->header - it->header.length);
      }
      msghdr message{};
      message.msg_iov = parts.data();
      message.msg_iovlen = count;
      const ssize_t taken = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (taken < 0) {
        if (errno == EINTR) continue;
        const int code = errno;
        if (code == EAGAIN || code == EWOULDBLOCK || code == ENOBUFS) return;
        pull();  // a peer that takes nothing any more may have said why before
        fail_from(code);
        if (ended_ && front_ && !shown_) pull_rest();
        return;
      }
      drop_sent(static_cast<std::size_t>(taken));
    }
  }
  bool has_unsent() const noexcept { return !queue_.empty(); }

  // --- in -------------------------------------------------------------------------------------------------------
  /// What is unread of the stream's oldest frame, in place; empty when none has arrived. Stays valid until consumed.
  std::span<const std::byte> peek() noexcept {
    if (!front_ && kept_.empty()) pull();
    if (front_) return payload_.subspan(used_);
    return kept_.empty() ? std::span<const std::byte>()
                         : std::span<const std::byte>(kept_.front().bytes).subspan(used_);
  }
  /// Where in the stream the first byte of peek() lies, when there is one.
  std::uint64_t front_position() const noexcept {
    return (front_ || kept_.empty() ? front_position_ : kept_.front().position) + used_;
  }
  void consume(std::size_t bytes) noexcept {
    used_ += bytes;
    if (used_ < (front_ ? payload_.size() : kept_.front().bytes.size())) return;
    used_ = 0;
    if (!front_) {
      kept_.pop_front();
    } else if (shown_) {
      front_ = false;
      shown_.reset();
    } else {
      drop_front();
    }
  }
  /// Takes what has arrived, up to the next frame of the stream: publications appear in the copy.
  void pull() noexcept {
    while (!front_ && !drained_ && fault_.empty()) {
      const auto room = reader_.room();
      if (room.empty()) return;
      const ssize_t count = ::recv(socket_.get(), room.data(), room.size(), MSG_DONTWAIT);
      if (count < 0) {
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) {
          drained_ = true;
          fail_from(errno);
        }
        return;
      }
      if (count == 0) {
        ended_ = drained_ = true;
        if (!left_ && reader_.unfinished() != 0) fault_ = "closed its connection in the middle of a message";
        return;
      }
      reader_.received(static_cast<std::size_t>(count));
      take_frames();
      if (static_cast<std::size_t>(count) < room.size()) return;  // that was all there is
    }
  }

  // --- state ----------------------------------------------------------------------------------------------------
  int descriptor() const noexcept { return socket_.get(); }
  /// The peer said goodbye: it closed in good order.
  bool left() const noexcept { return left_; }
  /// Nothing more will come or go.
  bool broken() const noexcept { return ended_ || left_ || !fault_.empty(); }
  /// Why, in words that follow the peer's name; empty when the peer just closed.
  const std::string& fault() const noexcept { return fault_; }
  /// Takes nothing more from the peer; `why` follows its name.
  void refuse(const std::string& why) noexcept {
    if (fault_.empty()) fault_ = why;
  }
  /// Has a frame of the stream arrived that nobody has taken yet?
  bool holds_data() const noexcept { return front_ || !kept_.empty(); }
  /// Bytes that the peer's kernel does not have yet, and frames that this one's has not; none once it can take no more.
  std::size_t undelivered() const noexcept {
    pollfd state{socket_.get(), 0, 0};
    // After a reset the kernel goes on counting what it has thrown away.
    if (::poll(&state, 1, 0) == 1 && (state.revents & (POLLERR | POLLHUP)) != 0) return 0;
    int left = 0;
    ::ioctl(socket_.get(), SIOCOUTQ, &left);
    return queue_.size() + static_cast<std::size_t>(left);
  }
  /// Nothing more is sent; the peer sees the end after what was.
  void shut_down() noexcept { ::shutdown(socket_.get(), SHUT_WR); }

 private:
  struct Waiting {
    FrameHeader header;
    const std::byte* payload;      // in `bytes`, or lent
    std::vector<std::byte> bytes;  // empty when lent
    std::size_t total() const noexcept { return frame_bytes(header.length); }
  };

  struct Kept {
    std::uint64_t position;
    std::vector<std::byte> bytes;
  };

  /// The peer's end has gone, so this is all: reads past the stream's oldest frame, which stays in place, and keeps the
  /// ones behind it. What the peer said last lies behind them, and who waits for another rank would not take them.
  void pull_rest() noexcept {
    shown_.emplace(std::move(reader_));
    reader_ = shown_->behind();
    const auto payload = payload_;
    const auto position = front_position_;
    front_ = false;
    take_frames();
    if (!front_) pull();
    while (front_) {
      kept_.push_back({front_position_, {payload_.begin(), payload_.end()}});
      drop_front();
      if (!front_) pull();
    }
    front_ = true;
    payload_ = payload;
    front_position_ = position;
  }
  void drop_front() noexcept {
    reader_.drop();
    front_ = false;
    take_frames();
  }
  std::vector<std::byte> take(std::size_t bytes) noexcept {
    std::vector<std::byte> memory;
    if (!spare_.empty()) {
      memory = std::move(spare_.back());
      spare_.pop_back();
    }
    if (memory.size() < bytes) memory.resize(bytes);
    return memory;
  }
  std::vector<std::byte> copy_of(std::span<const std::byte> bytes) noexcept {
    auto memory = take(bytes.size());
    std::memcpy(memory.data(), bytes.data(), bytes.size());
    return memory;
  }
  void put(const std::byte* payload, std::size_t bytes, std::vector<std::byte> memory, FrameKind kind,
           std::uint64_t position) noexcept {
    FrameHeader header{};
    header.length = static_cast<std::uint32_t>(bytes);
    header.mark = frame_mark;
    header.kind = kind;
    header.checked = limits_.checked ? 1 : 0;
    header.position = position;
    if (limits_.checked) header.crc = frame_checksum(header, {payload, bytes});
    queue_.push_back({header, payload, std::move(memory)});
  }
  void put_stream(const std::byte* payload, std::size_t bytes, std::vector<std::byte> memory) noexcept {
    put(payload, bytes, std::move(memory), FrameKind::stream, streamed_);
    streamed_ += bytes;
    ++waiting_;
    flush();
  }
  void drop_sent(std::size_t taken) noexcept {
    sent_of_first_ += taken;
    while (!queue_.empty() && sent_of_first_ >= queue_.front().total()) {
      sent_of_first_ -= queue_.front().total();
      if (queue_.front().header.kind == FrameKind::stream) --waiting_;
      if (!queue_.front().bytes.empty() && spare_.size() < 2 * slots) spare_.push_back(std::move(queue_.front().bytes));
      queue_.pop_front();
    }
  }
  void take_frames() noexcept {
    while (!front_) {
      const auto frame = reader_.next();
      if (!frame) break;
      if (frame->header.kind == FrameKind::stream) {
        front_ = true;
        front_position_ = frame->header.position;
        payload_ = frame->payload;
        return;
      }
      if (frame->header.kind == FrameKind::publication) {
        std::memcpy(copy_ + frame->header.position, frame->payload.data(), frame->payload.size());
      } else {
        left_ = true;
      }
      reader_.drop();
    }
    if (!reader_.fault().empty()) fault_ = "sent what tandem never sends: " + reader_.fault();
  }
  void fail_from(int code) noexcept {
    if (left_ || ended_) return;
    if (code == ECONNRESET || code == EPIPE) {
      ended_ = true;  // as if it had closed: a killed process's kernel answers so
    } else {
      fault_ = "is not reached any more (" + std::generic_category().message(code) + ")";
    }
  }

  Descriptor socket_;
  FrameLimits limits_{};
  std::byte* copy_ = nullptr;
  FrameReader reader_{FrameLimits{0, {}, false}};
  bool front_ = false;  // payload_ is the oldest frame of the stream
  std::uint64_t front_position_ = 0;
  std::span<const std::byte> payload_;
  std::size_t used_ = 0;  // bytes of the oldest frame already consumed
  // Once the peer's end has gone: whose frame payload_ is, and the frames of the stream behind it.
  std::optional<FrameReader> shown_;
  std::deque<Kept> kept_;
  bool left_ = false;
  bool ended_ = false;
  bool drained_ = false;  // all that came before the end was read: sending may have failed earlier
  std::string fault_;

  std::deque<Waiting> queue_;  // not (wholly) taken by the kernel yet
  std::size_t sent_of_first_ = 0;
  std::size_t waiting_ = 0;  // frames of the stream among them
  std::vector<std::byte> open_;
  std::uint64_t streamed_ = 0;
  std::vector<std::vector<std::byte>> spare_;
};

}  // namespace tandem::detail
