// SPDX-License-Identifier: Apache-2.0
// Bytes on a Tcp connection, as a peer or anybody who broke in might send them: true frames, nearly true ones and
// rubbish. However they are cut, the reader gives what a plain parser of the whole finds, and holds no more than it
// may.
#include "tandem/transport/detail/tcp_frame.hpp"

#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "fuzz/require.hpp"

using namespace tandem;
using namespace tandem::detail;
using tandem::test::require;

namespace {

using Bytes = std::vector<std::byte>;

/// What came of the bytes: accepted frames as they were on the wire, without padding, and whether a fault ended it.
struct Outcome {
  std::vector<Bytes> frames;
  bool fault = false;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Bytes encoded(const FrameHeader& header, std::span<const std::byte> payload) {
  Bytes bytes(sizeof header);
  std::memcpy(bytes.data(), &header, sizeof header);
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

/// True frames with small payloads, frames with a wrong field, flipped bits, and plain rubbish in between.
Bytes make_wire(FuzzedDataProvider& input, const FrameLimits& limits) {
  Bytes wire;
  std::uint64_t streamed = 0;
  while (input.remaining_bytes() > 0 && wire.size() < 4096) {
    const auto kind = input.ConsumeIntegralInRange<int>(0, 6);
    if (kind == 6) {
      const auto rubbish = input.ConsumeBytes<std::uint8_t>(input.ConsumeIntegralInRange<std::size_t>(1, 80));
      const auto bytes = std::as_bytes(std::span(rubbish));
      wire.insert(wire.end(), bytes.begin(), bytes.end());
      continue;
    }
    FrameHeader header{};
    header.mark = frame_mark;
    header.kind = kind < 3 ? FrameKind::stream : kind < 5 ? FrameKind::publication : FrameKind::goodbye;
    header.checked = limits.checked || input.ConsumeBool() ? 1 : 0;
    std::size_t length = 0;
    if (header.kind != FrameKind::goodbye) length = input.ConsumeIntegralInRange<std::size_t>(1, limits.payload_bytes);
    if (header.kind == FrameKind::stream) {
      if (limits.sockets > 1 && input.ConsumeBool()) streamed += input.ConsumeIntegral<std::uint16_t>();
      header.position = streamed;
    }
    if (header.kind == FrameKind::publication) {
      header.position = input.ConsumeIntegralInRange<std::uint64_t>(limits.control.begin, limits.control.end - length);
    }
    header.length = static_cast<std::uint32_t>(length);
    switch (input.ConsumeIntegralInRange<int>(0, 11)) {
      case 0:
        header.length = input.ConsumeIntegral<std::uint32_t>();
        break;
      case 1:
        header.position = input.ConsumeIntegral<std::uint64_t>();
        break;
      case 2:
        header.kind = static_cast<FrameKind>(input.ConsumeIntegral<std::uint8_t>());
        break;
      case 3:
        header.checked = input.ConsumeIntegral<std::uint8_t>();
        break;
      default:
        break;
    }
    if (header.kind == FrameKind::stream) streamed += length;
    const Bytes payload(length, static_cast<std::byte>(input.ConsumeIntegral<std::uint8_t>()));
    if (header.checked != 0) header.crc = frame_checksum(header, payload);
    Bytes frame = encoded(header, payload);
    frame.resize(frame_bytes(length), std::byte{0x77});  // padding means nothing
    if (input.ConsumeIntegralInRange<int>(0, 15) == 0) {
      frame[input.ConsumeIntegralInRange<std::size_t>(0, frame.size() - 1)] ^=
          static_cast<std::byte>(1U << input.ConsumeIntegralInRange<int>(0, 7));
    }
    wire.insert(wire.end(), frame.begin(), frame.end());
  }
  return wire;
}

/// The same rules, written down again for bytes that are all there at once.
Outcome expected(std::span<const std::byte> wire, const FrameLimits& limits) {
  Outcome outcome;
  std::uint64_t streamed = 0;
  while (wire.size() >= sizeof(FrameHeader)) {
    FrameHeader header;
    std::memcpy(&header, wire.data(), sizeof header);
    const bool short_enough = header.length >= 1 && header.length <= limits.payload_bytes;
    bool good = header.mark == frame_mark && (!limits.checked || header.checked == 1);
    switch (header.kind) {
      case FrameKind::stream:
        good =
            good && short_enough && (header.position == streamed || (limits.sockets > 1 && header.position > streamed));
        break;
      case FrameKind::publication:
        good = good && short_enough && header.position >= limits.control.begin &&
               header.position <= limits.control.end - header.length;
        break;
      case FrameKind::goodbye:
        good = good && header.length == 0;
        break;
      default:
        good = false;
    }
    if (good && wire.size() < frame_bytes(header.length)) return outcome;
    const auto payload = good ? wire.subspan(sizeof header, header.length) : std::span<const std::byte>();
    if (!good || (header.checked != 0 && frame_checksum(header, payload) != header.crc)) {
      outcome.fault = true;
      return outcome;
    }
    if (header.kind == FrameKind::stream) streamed = header.position + header.length;
    outcome.frames.push_back(encoded(header, payload));
    wire = wire.subspan(frame_bytes(header.length));
  }
  return outcome;
}

/// What the reader gives for pieces of at most `most` bytes. All that is asked of a reader is asked here.
Outcome read_all(std::span<const std::byte> wire, const FrameLimits& limits, std::size_t most, std::uint32_t seed) {
  std::minstd_rand random(seed);
  FrameReader reader(limits);
  Outcome outcome;
  while (true) {
    bool moved = false;
    const auto room = reader.room();
    require(room.size() <= 4 * frame_bytes(limits.payload_bytes), "room for a few frames at most");
    if (!room.empty() && !wire.empty()) {
      const std::size_t part = std::min({room.size(), wire.size(), 1 + random() % most});
      // What is not received yet is other rubbish in every run: a reader that looked at it would give other frames.
      std::memset(room.data(), static_cast<int>(seed), std::min(room.size(), part + 2 * sizeof(FrameHeader)));
      std::memcpy(room.data(), wire.data(), part);
      reader.received(part);
      wire = wire.subspan(part);
      moved = true;
    }
    while (const auto frame = reader.next()) {
      require(reinterpret_cast<std::uintptr_t>(frame->payload.data()) % frame_alignment == 0, "payloads are aligned");
      require(reader.next()->payload.data() == frame->payload.data(), "a frame stays where it is until dropped");
      outcome.frames.push_back(encoded(frame->header, frame->payload));
      reader.drop();
      moved = true;
    }
    if (!reader.fault().empty()) {
      require(reader.room().empty() && !reader.next(), "after a fault nothing is taken and nothing given");
      outcome.fault = true;
      return outcome;
    }
    if (wire.empty()) return outcome;
    require(moved, "whoever has room or frames gets on");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  const FrameLimits limits{input.ConsumeIntegralInRange<std::size_t>(1, 600),
                           {64, 64 + 4096},
                           input.ConsumeBool(),
                           input.ConsumeIntegralInRange<int>(1, 2)};
  const auto seed = input.ConsumeIntegral<std::uint8_t>();
  const Bytes wire = make_wire(input, limits);
  const Outcome truth = expected(wire, limits);
  require(read_all(wire, limits, wire.size() + 1, seed) == truth, "all at once");
  require(read_all(wire, limits, 1, seed + 1U) == truth, "byte by byte");
  require(read_all(wire, limits, 1 + seed, seed + 2U) == truth, "cut anywhere");
  return 0;
}
