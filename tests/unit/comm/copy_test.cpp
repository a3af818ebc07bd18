// SPDX-License-Identifier: Apache-2.0
// The library's own copies: exact at every length and alignment, nothing beside the destination touched.
#include "tandem/core/copy.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace {

template <class Copy>
void copies_exactly(Copy copy) {
  std::vector<unsigned char> from(6000);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 131 + (i >> 8) + 1);
  for (const std::size_t length : {0, 1, 15, 16, 63, 64, 65, 511, 512, 513, 1023, 1024, 1025, 1088, 4097}) {
    for (std::size_t to_shift = 0; to_shift < 20; ++to_shift) {
      for (const std::size_t from_shift : {0, 1, 2, 4, 8, 13}) {
        std::vector<unsigned char> to(6000, 0xee);
        copy(to.data() + 64 + to_shift, from.data() + from_shift, length);
        bool right = true;
        for (std::size_t i = 0; i < to.size(); ++i) {
          const bool inside = i >= 64 + to_shift && i < 64 + to_shift + length;
          right = right && to[i] == (inside ? from[i - 64 - to_shift + from_shift] : 0xee);
        }
        if (!right) FAIL_CHECK("length " << length << ", shifts " << to_shift << " and " << from_shift);
      }
    }
  }
}

}  // namespace

// g++ 12 took `auto*` for a pointer to aligned vectors, so a copy above 1 KB to an unaligned place faulted.
TEST_CASE("copy_bytes to and from unaligned places") {
  copies_exactly([](void* to, const void* from, std::size_t bytes) { tandem::copy_bytes(to, from, bytes); });
}
TEST_CASE("copy_result of any length, at and around the one from which it goes past the caches") {
  copies_exactly([](void* to, const void* from, std::size_t bytes) { tandem::copy_result(to, from, bytes); });
  const std::size_t most = (std::size_t{4} << 20) + 200;
  std::vector<unsigned char> from(most + 64);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 131 + (i >> 8) + 1);
  for (const std::size_t length : {most - 201, most - 200, most - 199, most - 137, most}) {
    for (const std::size_t shift : {0, 1, 8, 15, 16}) {
      std::vector<unsigned char> to(most + 128, 0xee);
      tandem::copy_result(to.data() + 64 + shift, from.data() + 3, length);
      CAPTURE(length);
      CAPTURE(shift);
      CHECK(std::equal(from.begin() + 3, from.begin() + 3 + static_cast<std::ptrdiff_t>(length),
                       to.begin() + 64 + static_cast<std::ptrdiff_t>(shift)));
      CHECK(std::count(to.begin(), to.begin() + 64 + static_cast<std::ptrdiff_t>(shift), 0xee) ==
            static_cast<std::ptrdiff_t>(64 + shift));
      CHECK(std::all_of(to.begin() + static_cast<std::ptrdiff_t>(64 + shift + length), to.end(),
                        [](unsigned char byte) { return byte == 0xee; }));
    }
  }
}
TEST_CASE("take_lines stores to each line that begins in the bytes, and to nothing else") {
  alignas(64) unsigned char memory[64 * 6];
  for (const std::size_t begin : {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{64}, std::size_t{100}}) {
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{64}, std::size_t{200}}) {
      std::memset(memory, 7, sizeof memory);
      tandem::take_lines(memory + begin, bytes);
      for (std::size_t at = 0; at < sizeof memory; ++at) {
        CAPTURE(begin);
        CAPTURE(bytes);
        CAPTURE(at);
        CHECK(int{memory[at]} == (at % 64 == 0 && at >= begin && at < begin + bytes ? 0 : 7));
      }
    }
  }
}
