// SPDX-License-Identifier: Apache-2.0
// The ring of slots: bytes come out as they went in, whatever the cuts, the wrap-around and the counters' start.
#include "tandem/transport/detail/spsc_ring.hpp"
#include "tandem/core/stream.hpp"

#include <doctest/doctest.h>
#include <sched.h>

#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "support/full.hpp"

using namespace tandem;
using namespace tandem::detail;

namespace {

struct Memory {
  explicit Memory(std::size_t slot_bytes, std::uint64_t start = 0)
      : bytes(ring_footprint(slot_bytes) + 64),
        storage(new (std::align_val_t{128}) std::byte[bytes]),
        slot(slot_bytes) {
    std::memset(storage, 0, bytes);
    std::memset(storage + ring_footprint(slot_bytes), 0x5a, 64);
    auto* const control = new (storage) RingControl;
    control->head.store(start, std::memory_order_relaxed);
    control->tail.store(start, std::memory_order_relaxed);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    for (std::size_t i = ring_footprint(slot); i < bytes; ++i) CHECK(storage[i] == std::byte{0x5a});
    ::operator delete[](storage, std::align_val_t{128});
  }
  RingControl& control() { return *reinterpret_cast<RingControl*>(storage); }
  std::size_t bytes;
  std::byte* storage;
  std::size_t slot;
};

std::byte pattern(std::uint64_t at) { return static_cast<std::byte>(at * 31 + (at >> 8) * 7); }

/// One thread writes messages of `length` bytes, or of random sizes up to three times the ring's capacity; another
/// reads them in other cuts and looks at every byte.
void stream(std::size_t slot_bytes, std::uint64_t start, int messages, std::uint32_t seed,
            std::optional<std::size_t> length = {}) {
  Memory memory(slot_bytes, start);
  const std::size_t capacity = ring_slots * slot_bytes;
  const auto next_length = [&](std::mt19937& sizes) { return length ? *length : sizes() % (3 * capacity + 1); };
  std::uint64_t total = 0;
  {
    std::mt19937 sizes(seed);
    for (int i = 0; i < messages; ++i) total += next_length(sizes);
  }
  std::thread writing([&] {
    RingWriter writer(memory.storage, slot_bytes, start);
    std::mt19937 sizes(seed);
    std::uint64_t at = 0;
    std::vector<std::byte> message;
    for (int i = 0; i < messages; ++i) {
      message.resize(next_length(sizes));
      for (auto& byte : message) byte = pattern(at++);
      std::span<const std::byte> left(message);
      while (!left.empty()) {
        const std::size_t part = write_some(writer, left);
        left = left.subspan(part);
        if (part == 0) sched_yield();
      }
    }
  });
  RingReader reader(memory.storage, slot_bytes, start);
  std::mt19937 cuts(seed + 1);
  std::uint64_t at = 0;
  std::uint64_t wrong = 0;
  std::vector<std::byte> piece;
  while (at < total) {
    if (cuts() % 2 == 0) {
      piece.resize(1 + cuts() % (2 * slot_bytes));
      const std::size_t part = read_some(reader, piece);
      for (std::size_t i = 0; i < part; ++i) wrong += piece[i] != pattern(at++) ? 1 : 0;
      if (part == 0) sched_yield();
    } else {
      const auto seen = reader.peek();
      const std::size_t part = seen.empty() ? 0 : 1 + cuts() % seen.size();
      for (std::size_t i = 0; i < part; ++i) wrong += seen[i] != pattern(at++) ? 1 : 0;
      if (part != 0)
        reader.consume(part);
      else
        sched_yield();
    }
  }
  writing.join();
  CHECK(wrong == 0);
  CHECK(reader.peek().empty());
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int many = 10000;
#else
constexpr int many = 100000;
#endif

}  // namespace

TEST_CASE("a ring's capacity is its slots, and a full one takes nothing") {
  Memory memory(64);
  RingWriter writer(memory.storage, 64);
  RingReader reader(memory.storage, 64);
  std::vector<std::byte> in(10 * 8 * 64 + 3);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = pattern(i);
  CHECK(write_some(writer, in) == 8 * 64);
  CHECK(write_some(writer, std::span(in).subspan(512)) == 0);
  CHECK(writer.reserve().empty());
  std::vector<std::byte> out(in.size());
  CHECK(read_some(reader, std::span(out).first(63)) == 63);
  CHECK(writer.reserve().empty());  // a slot is free only when all of it was read
  CHECK(read_some(reader, std::span(out).subspan(63, 1)) == 1);
  CHECK(writer.reserve().size() == 64);
  std::size_t written = 512;
  std::size_t read = 64;
  while (read < in.size()) {
    written += write_some(writer, std::span(in).subspan(written));
    read += read_some(reader, std::span(out).subspan(read));
  }
  CHECK(out == in);
  CHECK(reader.peek().empty());
}

TEST_CASE("C030: messages of one less, exactly and one more than the capacity, and ten times it") {
  for (const std::size_t length : {511, 512, 513, 1024, 5123}) {
    Memory memory(64);
    RingWriter writer(memory.storage, 64);
    RingReader reader(memory.storage, 64);
    for (int turn = 0; turn < 20; ++turn) {
      std::vector<std::byte> in(length);
      for (std::size_t i = 0; i < length; ++i) in[i] = pattern(i + static_cast<std::size_t>(turn));
      std::vector<std::byte> out(length);
      std::size_t written = 0;
      std::size_t read = 0;
      while (read < length) {
        written += write_some(writer, std::span<const std::byte>(in).subspan(written));
        read += read_some(reader, std::span(out).subspan(read));
      }
      REQUIRE(out == in);
    }
  }
}

TEST_CASE("pieces arrive as they were committed") {
  Memory memory(256);
  RingWriter writer(memory.storage, 256);
  RingReader reader(memory.storage, 256);
  for (const std::size_t length : {12, 256, 1, 204}) {
    const auto slot = writer.reserve();
    REQUIRE(slot.size() == 256);
    std::memset(slot.data(), static_cast<int>(length % 251), length);
    writer.commit(length);
  }
  for (const std::size_t length : {12, 256, 1, 204}) {
    const auto seen = reader.peek();
    REQUIRE(seen.size() == length);
    CHECK(seen[length - 1] == static_cast<std::byte>(length % 251));
    reader.consume(length);
  }
}

TEST_CASE("C030: 100,000 messages of random sizes through a ring of 512 bytes") { stream(64, 0, many, 1); }
TEST_CASE("C031: a million messages of 100 bytes, of which every byte is looked at") {
  stream(64, 0, tandem::test::in_full(many, 1'000'000), 5, 100);
}
TEST_CASE("C030: counters that pass 2^32") { stream(16, (std::uint64_t{1} << 32) - 1000, many / 10, 2); }
TEST_CASE("C030: counters that pass 2^64") { stream(16, ~std::uint64_t{0} - 1000, many / 10, 3); }
TEST_CASE("slots of one byte") { stream(1, 0, many / 10, 4); }

// A peer that scribbles over its window can spoil data, not make the reader leave the slot.
TEST_CASE("a length larger than the slot is not believed") {
  Memory memory(64);
  RingWriter writer(memory.storage, 64);
  RingReader reader(memory.storage, 64);
  writer.reserve();
  writer.commit(10);
  memory.control().lengths[0] = 0xffffffff;
  CHECK(reader.peek().size() == 64);
  reader.consume(10);
  memory.control().lengths[0] = 3;  // and it shrinks below what was read already
  CHECK(reader.peek().empty());
}
