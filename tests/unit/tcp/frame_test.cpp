// SPDX-License-Identifier: Apache-2.0
// Frames from bytes: however the bytes are cut, the same frames; and nothing but a sentence for bytes that are none.
#include "tandem/transport/detail/tcp_frame.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

using namespace tandem;
using namespace tandem::detail;

namespace {

constexpr FrameLimits limits{4096, {128, 128 + 65536}, false};
constexpr FrameLimits with_checksums{4096, {128, 128 + 65536}, true};

struct Sent {
  FrameKind kind;
  std::uint64_t position;
  std::vector<std::byte> payload;
};

std::vector<std::byte> random_bytes(std::mt19937& random, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

std::vector<std::byte> on_the_wire(const Sent& sent, bool checked) {
  FrameHeader header{};
  header.length = static_cast<std::uint32_t>(sent.payload.size());
  header.mark = frame_mark;
  header.kind = sent.kind;
  header.checked = checked ? 1 : 0;
  header.position = sent.position;
  if (checked) header.crc = frame_checksum(header, sent.payload);
  std::vector<std::byte> bytes(frame_bytes(sent.payload.size()));
  std::memcpy(bytes.data(), &header, sizeof header);
  if (!sent.payload.empty()) std::memcpy(bytes.data() + sizeof header, sent.payload.data(), sent.payload.size());
  return bytes;
}

std::vector<Sent> some_frames(std::mt19937& random, std::size_t count) {
  std::vector<Sent> frames;
  std::uint64_t streamed = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const bool stream = random() % 2 == 0;
    auto payload = random_bytes(random, 1 + random() % (random() % 4 == 0 ? 4096 : 200));
    const std::uint64_t position = stream ? streamed : 128 + random() % (65536 - payload.size());
    if (stream) streamed += payload.size();
    frames.push_back({stream ? FrameKind::stream : FrameKind::publication, position, std::move(payload)});
  }
  frames.push_back({FrameKind::goodbye, 0, {}});
  return frames;
}

/// Feeds at most `most` bytes at a time; checks every frame; returns how many came.
std::size_t feed(FrameReader& reader, std::span<const std::byte> bytes, const std::vector<Sent>& expected,
                 std::mt19937& random, std::size_t most) {
  std::size_t seen = 0;
  while (true) {
    const auto room = reader.room();
    const std::size_t part = std::min({room.size(), bytes.size(), 1 + random() % most});
    if (part != 0) std::memcpy(room.data(), bytes.data(), part);
    reader.received(part);
    bytes = bytes.subspan(part);
    bool any = false;
    while (const auto frame = reader.next()) {
      any = true;
      REQUIRE(seen < expected.size());
      CHECK(frame->header.kind == expected[seen].kind);
      CHECK(frame->header.position == expected[seen].position);
      REQUIRE(frame->payload.size() == expected[seen].payload.size());
      if (!frame->payload.empty()) {
        CHECK(std::memcmp(frame->payload.data(), expected[seen].payload.data(), frame->payload.size()) == 0);
        CHECK(reinterpret_cast<std::uintptr_t>(frame->payload.data()) % frame_alignment == 0);
      }
      ++seen;
      reader.drop();
    }
    if (part == 0 && !any) return seen;
  }
}

std::string fault_of(const std::vector<std::byte>& bytes, const FrameLimits& under = limits) {
  FrameReader reader(under);
  const auto room = reader.room();
  REQUIRE(bytes.size() <= room.size());
  std::memcpy(room.data(), bytes.data(), bytes.size());
  reader.received(bytes.size());
  CHECK_FALSE(reader.next());
  CHECK((reader.fault().empty() || reader.room().empty()));  // nothing more is taken after a fault
  return reader.fault();
}

}  // namespace

TEST_CASE("frames are the same however their bytes are cut, one at a time too") {
  std::mt19937 random(7);
  for (const auto& under : {limits, with_checksums}) {
    for (const std::size_t most : {std::size_t{1}, std::size_t{7}, std::size_t{300}, std::size_t{100000}}) {
      const auto frames = some_frames(random, 60);
      std::vector<std::byte> bytes;
      for (const Sent& frame : frames) {
        const auto wire = on_the_wire(frame, under.checked);
        bytes.insert(bytes.end(), wire.begin(), wire.end());
      }
      FrameReader reader(under);
      CHECK(feed(reader, bytes, frames, random, most) == frames.size());
      CHECK(reader.fault() == "");
      CHECK(reader.unfinished() == 0);
    }
  }
}

TEST_CASE("a frame that has not been dropped stays where it is while more arrives") {
  std::mt19937 random(8);
  const Sent first{FrameKind::stream, 0, random_bytes(random, 4096)};
  FrameReader reader(limits);
  const auto wire = on_the_wire(first, false);
  for (std::size_t turn = 0; turn < 2; ++turn) {  // the second turn begins in the middle of the memory
    auto frame = first;
    frame.position = turn * 4096;
    const auto bytes = on_the_wire(frame, false);
    std::memcpy(reader.room().data(), bytes.data(), bytes.size());
    reader.received(bytes.size());
    const auto shown = reader.next();
    REQUIRE(shown);
    const auto room = reader.room();
    REQUIRE_FALSE(room.empty());
    std::memset(room.data(), 0, room.size());
    CHECK(reader.next()->payload.data() == shown->payload.data());
    CHECK(std::memcmp(shown->payload.data(), frame.payload.data(), 4096) == 0);
    reader.drop();
  }
}

TEST_CASE("what is no frame is refused with a sentence, before anything is stored for it") {
  std::mt19937 random(9);
  const Sent good{FrameKind::stream, 0, random_bytes(random, 100)};
  const auto changed = [&](auto change) {
    auto bytes = on_the_wire(good, false);
    FrameHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    change(header);
    std::memcpy(bytes.data(), &header, sizeof header);
    return fault_of(bytes);
  };
  CHECK(changed([](FrameHeader& it) { it.mark = 0; }) == "bytes arrived that begin no frame");
  CHECK(
      changed([](FrameHeader& it) { it.length = 0xffffffff; }).starts_with("a frame that announces 4294967295 bytes"));
  CHECK(changed([](FrameHeader& it) { it.length = 4097; }).starts_with("a frame that announces 4097 bytes"));
  CHECK(changed([](FrameHeader& it) { it.length = 0; }).starts_with("a frame that announces 0 bytes"));
  CHECK(changed([](FrameHeader& it) { it.position = 1; }) ==
        "a frame at byte 1 of the stream arrived where byte 0 was due");
  CHECK(changed([](FrameHeader& it) { it.kind = static_cast<FrameKind>(9); }) ==
        "a frame of an unknown kind (9) arrived");
  CHECK(changed([](FrameHeader& it) { it.kind = FrameKind::goodbye; }).starts_with("a frame that announces 100 bytes"));
  for (const std::uint64_t position : {std::uint64_t{0}, std::uint64_t{127}, std::uint64_t{128 + 65536 - 99},
                                       std::uint64_t{1} << 60, ~std::uint64_t{0}, ~std::uint64_t{0} - 50}) {
    CAPTURE(position);
    CHECK(changed([&](FrameHeader& it) {
            it.kind = FrameKind::publication;
            it.position = position;
          }).starts_with("a frame that announces 100 bytes at " + std::to_string(position)));
  }
  CHECK(fault_of(on_the_wire(good, false), with_checksums) == "a frame arrived without the checksum that was agreed");
}

TEST_CASE("with checksums every flipped bit of a frame is found") {
  std::mt19937 random(10);
  const Sent good{FrameKind::publication, 256, random_bytes(random, 37)};
  const auto bytes = on_the_wire(good, true);
  for (std::size_t bit = 0; bit < 8 * (sizeof(FrameHeader) + 37); ++bit) {
    auto flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    FrameReader reader(with_checksums);
    std::memcpy(reader.room().data(), flipped.data(), flipped.size());
    reader.received(flipped.size());
    CAPTURE(bit);
    // A longer length waits for bytes that do not come; everything else is refused at once.
    if (reader.next()) FAIL_CHECK("a flipped bit went unnoticed");
    CHECK((!reader.fault().empty() || bit < 32));
  }
}

TEST_CASE(
    "random bytes, and random changes of frames, are taken or refused, and never more memory than the reader has") {
  std::mt19937 random(11);
  for (int turn = 0; turn < 3000; ++turn) {
    FrameReader reader(turn % 2 == 0 ? limits : with_checksums);
    std::vector<std::byte> bytes;
    if (turn % 3 == 0) {
      bytes = random_bytes(random, random() % 3000);
    } else {
      for (const Sent& frame : some_frames(random, 5)) {
        const auto wire = on_the_wire(frame, turn % 2 != 0);
        bytes.insert(bytes.end(), wire.begin(), wire.end());
      }
      for (int change = 0; change < 3; ++change) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    std::span<const std::byte> left = bytes;
    std::size_t frames = 0;
    while (!left.empty()) {
      const auto room = reader.room();
      const std::size_t part = std::min({room.size(), left.size(), 1 + random() % 500});
      if (part == 0) break;
      std::memcpy(room.data(), left.data(), part);
      reader.received(part);
      left = left.subspan(part);
      while (const auto frame = reader.next()) {
        CHECK(frame->payload.size() <= 4096);
        if (frame->header.kind == FrameKind::publication) {
          CHECK(frame->header.position >= 128);
          CHECK(frame->header.position + frame->payload.size() <= 128 + 65536);
        }
        ++frames;
        reader.drop();
      }
    }
    CHECK(frames <= bytes.size() / sizeof(FrameHeader));
  }
}
