// SPDX-License-Identifier: Apache-2.0
// How the bytes of a Tcp connection are cut into frames. A pure function from bytes to frames: it knows no socket and
// no clock, and what it refuses it says in a sentence. Fuzzed by tests/fuzz.
#pragma once

#include <isa-l/crc.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tandem/core/bytes.hpp"

namespace tandem::detail {

enum class FrameKind : std::uint8_t {
  stream = 1,       ///< the next bytes of the connection's stream, in whole elements of what its user sends
  publication = 2,  ///< what the sender's control memory says at `position` from now on
  goodbye = 3,      ///< the sender leaves in good order; nothing follows
};

/// Before every payload. Fields are in the byte order of the machines, which the handshake has compared.
struct FrameHeader {
  std::uint32_t
      length;  // of the payload, at most what the connection's limits say; padded to frame_alignment on the wire
  std::uint16_t mark;
  FrameKind kind;
  std::uint8_t checked;    // 1: crc is the CRC32C of this header, with crc = 0, and the payload
  std::uint64_t position;  // stream: payload bytes sent before; publication: where in the sender's control memory
  std::uint32_t crc;
  std::uint32_t unused[3];
};
inline constexpr std::uint16_t frame_mark = 0x7d44;
inline constexpr std::size_t frame_alignment = 16;  // payloads lie at multiples of it, so elements are read in place
static_assert(sizeof(FrameHeader) == 32 && sizeof(FrameHeader) % frame_alignment == 0);

constexpr std::size_t frame_bytes(std::size_t payload) noexcept {
  return sizeof(FrameHeader) + round_up(payload, frame_alignment);
}

inline std::uint32_t frame_checksum(FrameHeader header, std::span<const std::byte> payload) noexcept {
  header.crc = 0;
  const auto extend = [](std::uint32_t crc, const void* bytes, std::size_t count) {
    // ISA-L does not write to it; its signature forgot to say so.
    auto* const begin = static_cast<unsigned char*>(const_cast<void*>(bytes));
    return crc32_iscsi(begin, static_cast<int>(count), crc);
  };
  return ~extend(extend(~0U, &header, sizeof header), payload.data(), payload.size());
}

struct FrameLimits {
  std::size_t payload_bytes;  ///< longest payload
  Range control;              ///< where publications may go
  bool checked;               ///< every frame must carry a checksum
  int sockets = 1;            ///< over which the stream is spread: with more than one, its frames here leave gaps
};

/// Takes bytes as they arrive, gives whole frames, in place. Holds a few frames at most, whatever is announced;
/// after a fault it takes nothing more.
class FrameReader {
 public:
  struct Frame {
    FrameHeader header;
    std::span<const std::byte> payload;  // valid until drop()
  };

  explicit FrameReader(const FrameLimits& limits)
      : limits_(limits), longest_(frame_bytes(limits.payload_bytes)), memory_(capacity() + frame_alignment) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    base_ = memory_.data() + (round_up(address, frame_alignment) - address);
  }
  FrameReader(FrameReader&&) noexcept = default;
  FrameReader& operator=(FrameReader&&) noexcept = default;

  /// Where the next received bytes go; empty while a whole frame has to be dropped first.
  std::span<std::byte> room() noexcept {
    if (!fault_.empty()) return {};
    if (begin_ == end_) begin_ = end_ = 0;
    if (capacity() - end_ < longest_ && begin_ != 0 && !shown_) {
      std::memmove(base_, base_ + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    return {base_ + end_, capacity() - end_};
  }
  void received(std::size_t bytes) noexcept { end_ += bytes; }

  /// The oldest whole frame, or nothing yet. The same one until drop().
  std::optional<Frame> next() {
    if (!fault_.empty() || end_ - begin_ < sizeof(FrameHeader)) return std::nullopt;
    FrameHeader header;
    std::memcpy(&header, base_ + begin_, sizeof header);
    if (!shown_ && !accept(header)) return std::nullopt;
    if (end_ - begin_ < frame_bytes(header.length)) return std::nullopt;
    const std::span<const std::byte> payload(base_ + begin_ + sizeof header, header.length);
    if (!shown_ && header.checked != 0 && frame_checksum(header, payload) != header.crc) {
      fault_ = "a frame of " + std::to_string(header.length) + " bytes arrived damaged (its CRC32C is wrong)";
      return std::nullopt;
    }
    shown_ = true;
    return Frame{header, payload};
  }
  /// Through with the frame that next() gave.
  void drop() noexcept {
    FrameHeader header;
    std::memcpy(&header, base_ + begin_, sizeof header);
    if (header.kind == FrameKind::stream) position_ = header.position + header.length;
    begin_ += frame_bytes(header.length);
    shown_ = false;
  }

  /// Goes on behind the frame that next() gave, which stays where it is, in this one.
  FrameReader behind() const {
    FrameReader result(limits_);
    FrameHeader header;
    std::memcpy(&header, base_ + begin_, sizeof header);
    const std::size_t next = begin_ + frame_bytes(header.length);
    std::memcpy(result.base_, base_ + next, end_ - next);
    result.end_ = end_ - next;
    result.position_ = header.kind == FrameKind::stream ? header.position + header.length : position_;
    return result;
  }

  /// Why nothing more is taken; empty while all is well.
  const std::string& fault() const noexcept { return fault_; }
  /// Bytes of a frame that is not whole yet: the sender was cut off in the middle when nothing follows.
  std::size_t unfinished() const noexcept { return end_ - begin_; }

 private:
  std::size_t capacity() const noexcept { return 4 * longest_; }
  bool accept(const FrameHeader& header) {
    if (header.mark != frame_mark) {
      fault_ = "bytes arrived that begin no frame";
    } else if (limits_.checked && header.checked != 1) {
      fault_ = "a frame arrived without the checksum that was agreed";
    } else if (header.kind == FrameKind::stream) {
      if (header.length == 0 || header.length > limits_.payload_bytes) refuse_length(header);
      if (header.position < position_ || (header.position != position_ && limits_.sockets == 1)) {
        fault_ = "a frame at byte " + std::to_string(header.position) + " of the stream arrived where byte " +
                 std::to_string(position_) + " was due";
      }
    } else if (header.kind == FrameKind::publication) {
      const Range& control = limits_.control;
      if (header.length == 0 || header.length > limits_.payload_bytes || header.position < control.begin ||
          header.position > control.end || header.length > control.end - header.position) {
        refuse_length(header);
      }
    } else if (header.kind == FrameKind::goodbye) {
      if (header.length != 0) refuse_length(header);
    } else {
      fault_ = "a frame of an unknown kind (" + std::to_string(static_cast<unsigned>(header.kind)) + ") arrived";
    }
    return fault_.empty();
  }
  void refuse_length(const FrameHeader& header) {
    fault_ = "a frame that announces " + std::to_string(header.length) + " bytes at " +
             std::to_string(header.position) + " arrived, which cannot be";
  }

  FrameLimits limits_;
  std::size_t longest_;
  std::vector<std::byte> memory_;
  std::byte* base_ = nullptr;
  std::size_t begin_ = 0;  // of what is not dropped yet
  std::size_t end_ = 0;    // of what has been received
  bool shown_ = false;     // the frame at begin_ has been accepted and given out
  std::uint64_t position_ = 0;
  std::string fault_;
};

}  // namespace tandem::detail
