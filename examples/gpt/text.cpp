// SPDX-License-Identifier: Apache-2.0
// Decoding, numbering and cutting a text; see text.hpp.
#include "gpt/text.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

namespace gpt {
namespace {

[[noreturn]] void not_utf8(std::size_t offset) {
  throw InputError("the byte at offset " + std::to_string(offset) + " is not UTF-8; convert the file first");
}

}  // namespace

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code ignored;  // a folder can be opened on Linux, but not read
  if (!file || std::filesystem::is_directory(path, ignored)) throw InputError("cannot read the file " + path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::u32string decode_utf8(std::string_view bytes) {
  std::u32string characters;
  characters.reserve(bytes.size());
  for (std::size_t at = 0; at < bytes.size();) {
    const auto lead = static_cast<unsigned char>(bytes[at]);
    const std::size_t length = lead < 0x80   ? 1
                               : lead < 0xC2 ? 0
                               : lead < 0xE0 ? 2
                               : lead < 0xF0 ? 3
                               : lead < 0xF5 ? 4
                                             : 0;
    if (length == 0 || at + length > bytes.size()) not_utf8(at);
    char32_t character = length == 1 ? lead : lead & (0xFFU >> (length + 1));
    for (std::size_t i = 1; i < length; ++i) {
      const auto next = static_cast<unsigned char>(bytes[at + i]);
      if ((next & 0xC0U) != 0x80U) not_utf8(at);
      character = character << 6 | (next & 0x3FU);
    }
    // Longer than need be, half of a UTF-16 pair, or beyond Unicode: these would not survive encode_utf8().
    if ((length == 3 && character < 0x800) || (length == 4 && character < 0x10000) || character > 0x10FFFF ||
        (character >= 0xD800 && character < 0xE000)) {
      not_utf8(at);
    }
    characters.push_back(character);
    at += length;
  }
  return characters;
}

std::string encode_utf8(std::u32string_view characters) {
  std::string bytes;
  for (const char32_t c : characters) {
    const auto tail = [&](int shift) { bytes.push_back(static_cast<char>(0x80U | (c >> shift & 0x3FU))); };
    if (c < 0x80) {
      bytes.push_back(static_cast<char>(c));
    } else if (c < 0x800) {
      bytes.push_back(static_cast<char>(0xC0U | c >> 6));
      tail(0);
    } else if (c < 0x10000) {
      bytes.push_back(static_cast<char>(0xE0U | c >> 12));
      tail(6), tail(0);
    } else {
      bytes.push_back(static_cast<char>(0xF0U | c >> 18));
      tail(12), tail(6), tail(0);
    }
  }
  return bytes;
}

Vocabulary::Vocabulary(std::u32string_view text) : characters_(text) {
  std::sort(characters_.begin(), characters_.end());
  characters_.erase(std::unique(characters_.begin(), characters_.end()), characters_.end());
  characters_.shrink_to_fit();
}

std::vector<std::int32_t> Vocabulary::encode(std::u32string_view text) const {
  std::vector<std::int32_t> numbers;
  numbers.reserve(text.size());
  for (const char32_t c : text) {
    const auto place = std::lower_bound(characters_.begin(), characters_.end(), c);
    if (place == characters_.end() || *place != c) {
      throw InputError("the character " + encode_utf8({&c, 1}) + " is not in the vocabulary");
    }
    numbers.push_back(static_cast<std::int32_t>(place - characters_.begin()));
  }
  return numbers;
}

std::string Vocabulary::decode(std::span<const std::int64_t> numbers) const {
  std::u32string text;
  for (const std::int64_t number : numbers) text.push_back(characters_.at(static_cast<std::size_t>(number)));
  return encode_utf8(text);
}

Corpus prepare(std::string_view utf8, std::int64_t context, const std::string& name) {
  std::u32string text;
  try {
    text = decode_utf8(utf8);
  } catch (const InputError& error) {
    throw InputError(name + ": " + error.what());
  }
  if (text.empty()) throw InputError(name + " is empty; give a text to train on");
  // One window is `context` characters and the one that follows them; the held-out tenth must have one as well.
  const std::size_t window = static_cast<std::size_t>(context) + 1;
  const std::size_t held_out = text.size() / 10;
  if (held_out < window) {
    throw InputError(name + " has " + std::to_string(text.size()) + " characters; a context of " +
                     std::to_string(context) + " needs at least " + std::to_string(10 * window));
  }
  Vocabulary vocabulary(text);
  const std::vector<std::int32_t> numbers = vocabulary.encode(text);
  const auto cut = numbers.end() - static_cast<std::ptrdiff_t>(held_out);
  return {std::move(vocabulary), {numbers.begin(), cut}, {cut, numbers.end()}};
}

}  // namespace gpt
