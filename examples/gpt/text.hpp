// SPDX-License-Identifier: Apache-2.0
// Turns a UTF-8 file into numbered characters, cut into a part to train on and a part held out. Knows nothing of
// tensors, so that it compiles and is tested in a second.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace gpt {

/// What the user gave cannot be trained on, or cannot be written to. One sentence; the program exits with status 2.
struct InputError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The bytes of a file. Throws InputError, naming the file, when it cannot be read.
std::string read_file(const std::string& path);

/// The characters (code points) of a text. Throws InputError with the offset of the first byte that is not UTF-8.
std::u32string decode_utf8(std::string_view bytes);
std::string encode_utf8(std::u32string_view characters);

/// The distinct characters of a text in ascending order; a character's number is its place in that order, so equal
/// texts give equal numbers on every rank.
class Vocabulary {
 public:
  explicit Vocabulary(std::u32string_view text);

  std::int64_t size() const { return static_cast<std::int64_t>(characters_.size()); }
  std::vector<std::int32_t> encode(std::u32string_view text) const;
  /// The UTF-8 text of character numbers; every number is below size().
  std::string decode(std::span<const std::int64_t> numbers) const;

 private:
  std::u32string characters_;
};

/// A text ready to train on: the last tenth is held out and never trained on.
struct Corpus {
  Vocabulary vocabulary;
  std::vector<std::int32_t> training;
  std::vector<std::int32_t> held_out;
};

/// Cuts a text for a model that looks at `context` characters. Throws InputError, naming `name`, when the text is
/// empty or when one of the parts is too short for a single window.
Corpus prepare(std::string_view utf8, std::int64_t context, const std::string& name);

}  // namespace gpt
