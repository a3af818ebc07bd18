// SPDX-License-Identifier: Apache-2.0
// Counts that do not fit into 31 bits, on every way there is: 64 bits all the way down.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "support/ranks.hpp"
#include "support/worlds.hpp"
#include "tandem/collective/all_gather.hpp"
#include "tandem/collective/all_reduce.hpp"
#include "tandem/collective/all_to_all.hpp"
#include "tandem/collective/broadcast.hpp"
#include "tandem/collective/gather.hpp"
#include "tandem/collective/reduce_scatter.hpp"
#include "tandem/collective/scatter.hpp"
#include "tandem/collective/send_recv.hpp"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr std::size_t count = (std::size_t{1} << 31) + 5;
constexpr std::size_t block = std::size_t{1} << 20;
constexpr std::size_t probes[] = {0, (std::size_t{1} << 31) - 1, std::size_t{1} << 31, count - 1};

/// Byte i of a rank, cheap to write and to compare where nothing is optimized: one value for each block, and others at
/// the probes.
std::uint8_t value_of(std::size_t i, int rank) {
  const bool probe = std::find(std::begin(probes), std::end(probes), i) != std::end(probes);
  return static_cast<std::uint8_t>(((i / block) * 31 + (probe ? 7 : 0)) % 251 + static_cast<std::size_t>(rank));
}
/// Writes, or compares and counts the blocks that differ, `factor` times the value plus `offset`.
struct Expected {
  std::size_t from;
  std::size_t to;
  unsigned factor;
  unsigned offset;

  std::uint8_t at(std::size_t i) const { return static_cast<std::uint8_t>(factor * value_of(i, 0) + offset); }
  std::size_t differing_blocks(std::span<const std::uint8_t> whole) const {
    std::size_t differing = 0;
    std::vector<std::uint8_t> right(block);
    for (std::size_t begin = from; begin < to;) {
      const std::size_t end = std::min(to, (begin / block + 1) * block);
      make(begin, std::span(right).first(end - begin));
      differing += std::memcmp(whole.data() + begin, right.data(), end - begin) != 0;
      begin = end;
    }
    return differing;
  }
  void write(std::span<std::uint8_t> whole) const {
    for (std::size_t begin = from; begin < to;) {
      const std::size_t end = std::min(to, (begin / block + 1) * block);
      make(begin, whole.subspan(begin, end - begin));
      begin = end;
    }
  }

 private:
  /// `bytes` lie in one block.
  void make(std::size_t begin, std::span<std::uint8_t> bytes) const {
    const std::size_t inside = begin / block * block + 1;  // not a probe
    std::memset(bytes.data(), at(inside), bytes.size());
    for (const std::size_t probe : probes) {
      if (probe >= begin && probe < begin + bytes.size()) bytes[probe - begin] = at(probe);
    }
  }
};

/// What could be taken, the page cache included (which sysconf leaves out).
std::size_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("MemAvailable:")) return std::stoull(line.substr(13)) << 10;
  }
  return 0;
}
bool memory_suffices() {
  if (available_memory() > 3 * count) return true;
  MESSAGE("left out here: less than 6 GiB of memory are available");
  return false;
}

/// The ways that take buffers as they are: of the arena where there are windows, or private.
void collectives(World& world, std::span<std::uint8_t> data) {
  const auto rank = static_cast<unsigned>(world.rank());
  const auto n = static_cast<unsigned>(world.size());
  const Expected mine{0, count, 1, rank};
  mine.write(data);
  all_reduce(world, data, Sum{});
  CHECK(Expected{0, count, n, n * (n - 1) / 2}.differing_blocks(data) == 0);

  mine.write(data);
  broadcast(world, data, world.size() - 1);
  CHECK(Expected{0, count, 1, n - 1}.differing_blocks(data) == 0);

  const Range own = slice_of(count, world.size(), world.rank());
  std::memset(data.data(), 0, data.size());
  Expected{own.begin, own.end, 1, rank}.write(data);
  all_gather(world, std::span<const std::uint8_t>(data).subspan(own.begin, own.size()), data);
  for (int member = 0; member < world.size(); ++member) {
    const Range slice = slice_of(count, world.size(), member);
    CHECK(Expected{slice.begin, slice.end, 1, static_cast<unsigned>(member)}.differing_blocks(data) == 0);
  }
}

/// The verbs by counts, in place, where rank 0's run alone has more than 2^31 elements.
void by_counts(World& world, std::span<std::uint8_t> data) {
  const auto rank = static_cast<unsigned>(world.rank());
  const std::vector<std::size_t> counts{count - 7, 7};
  const Range runs[] = {{0, count - 7}, {count - 7, count}};
  const Range own = runs[rank];
  const std::span<std::uint8_t> run = data.subspan(own.begin, own.size());
  const Expected mine{0, count, 1, rank};

  mine.write(data);
  reduce_scatter_v(world, std::span<const std::uint8_t>(data), run, counts, Sum{});
  CHECK(Expected{own.begin, own.end, 2, 1}.differing_blocks(data) == 0);

  mine.write(data);
  all_gather_v(world, std::span<const std::uint8_t>(run), data, counts);
  for (unsigned member : {0U, 1U}) {
    CHECK(Expected{runs[member].begin, runs[member].end, 1, member}.differing_blocks(data) == 0);
  }

  mine.write(data);
  if (rank == 0)
    gather_v(world, std::span<const std::uint8_t>(run), std::span<std::uint8_t>(), counts, 1);
  else
    gather_v(world, std::span<const std::uint8_t>(run), data, counts, 1);
  if (rank == 1) {
    for (unsigned member : {0U, 1U}) {
      CHECK(Expected{runs[member].begin, runs[member].end, 1, member}.differing_blocks(data) == 0);
    }
  }

  mine.write(data);
  scatter_v(world, rank == 1 ? std::span<const std::uint8_t>(data) : std::span<const std::uint8_t>(), run, counts, 1);
  CHECK(Expected{own.begin, own.end, 1, 1}.differing_blocks(data) == 0);

  mine.write(data);
  const std::vector<std::size_t> exchanged =
      rank == 0 ? std::vector<std::size_t>{0, count} : std::vector<std::size_t>{count, 0};
  all_to_all_v(world, std::span<const std::uint8_t>(data), exchanged, data, exchanged);
  CHECK(Expected{0, count, 1, 1 - rank}.differing_blocks(data) == 0);
}

constexpr auto limit = std::chrono::seconds(280);

void collectives_on_private_buffers(bool fetched) {
  on_ranks(
      2,
      [fetched](int) {
        World world = join<TestTransport>();
        CHECK(world.protocol().buffers().reads_others() == fetched);
        std::vector<std::uint8_t> data(count);
        collectives(world, data);
        by_counts(world, data);
      },
      limit);
}

}  // namespace

TEST_CASE("C035: a message of more than 2^31 bytes") {
  if (!memory_suffices()) return;
  on_ranks(
      2,
      [](int rank) {
        World world = join<TestTransport>();
        std::vector<std::uint8_t> data(count);
        if (rank == 0) {
          Expected{0, count, 1, 0}.write(data);
          send(world, std::span(data), 1);
        } else {
          recv(world, std::span(data), 0);
          CHECK(Expected{0, count, 1, 0}.differing_blocks(data) == 0);
        }
      },
      limit);
}

TEST_CASE("C035: collectives on more than 2^31 elements by channels") {
  if (!memory_suffices()) return;
  const NothingIsFetched by_channels;
  collectives_on_private_buffers(false);
}

TEST_CASE("C035: collectives on more than 2^31 elements, fetched") {
  if (TestTransport::has_windows && memory_suffices()) collectives_on_private_buffers(true);
}

TEST_CASE("C035: collectives on more than 2^31 elements of the arena") {
  if (!TestTransport::has_windows || !memory_suffices()) return;
  on_ranks(
      2,
      [](int) {
        World world = join<TestTransport>();
        ArenaArray<std::uint8_t> data(world.arena(), count);
        collectives(world, {data.data(), data.size()});
        by_counts(world, {data.data(), data.size()});
      },
      limit);
}
