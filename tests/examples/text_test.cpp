// SPDX-License-Identifier: Apache-2.0
#include "gpt/text.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using gpt::InputError;

TEST_CASE("UTF-8 of every length survives the way there and back") {
  const std::string text =
      "plain, caf\xC3\xA9, \xE2\x82\xAC, \xF0\x9F\x8E\xAD, \xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF";
  const std::u32string characters = gpt::decode_utf8(text);
  CHECK(characters.size() == 22);
  CHECK(characters[10] == 0xE9);
  CHECK(characters[13] == 0x20AC);
  CHECK(characters[16] == 0x1F3AD);
  CHECK(gpt::encode_utf8(characters) == text);
}

TEST_CASE("what is not UTF-8 is refused with its offset") {
  const std::vector<std::string> wrong = {
      "\x80",              // a continuation without a beginning
      "\xC3",              // cut short
      "\xC3(",             // not continued
      "\xC0\xAF",          // "/" written too long, in two bytes
      "\xE0\x80\xAF",      // in three
      "\xF0\x80\x80\xAF",  // in four
      "\xED\xA0\x80",      // half of a UTF-16 pair
      "\xF4\x90\x80\x80",  // beyond Unicode
      "\xFF",              //
      "\xE2\x82",          //
  };
  for (const std::string& bytes : wrong) {
    CAPTURE(bytes.size());
    CHECK_THROWS_WITH_AS(gpt::decode_utf8("ab" + bytes), doctest::Contains("offset 2 "), InputError);
  }
}

TEST_CASE("a vocabulary has each character once, in order") {
  const gpt::Vocabulary vocabulary(U"banana\n");
  CHECK(vocabulary.size() == 4);  // \n a b n
  CHECK(vocabulary.encode(U"nab\n") == std::vector<std::int32_t>{3, 1, 2, 0});
  CHECK(vocabulary.decode(std::vector<std::int64_t>{2, 1, 3}) == "ban");
  CHECK_THROWS_AS(vocabulary.encode(U"x"), InputError);
}

TEST_CASE("the last tenth is held out") {
  std::string text;
  for (int i = 0; i < 90; ++i) text += "ab";
  for (int i = 0; i < 10; ++i) text += "yz";
  const gpt::Corpus corpus = gpt::prepare(text, 8, "it");
  CHECK(corpus.training.size() == 180);
  CHECK(corpus.held_out.size() == 20);
  CHECK(corpus.vocabulary.size() == 4);  // of the whole text, so that nothing held out is unknown
  CHECK(corpus.training.back() == 1);
  CHECK(corpus.held_out.front() == 2);
}

TEST_CASE("a text must have a window in both parts") {
  CHECK_THROWS_WITH_AS(gpt::prepare("", 8, "it"), doctest::Contains("it is empty"), InputError);
  CHECK_THROWS_WITH_AS(gpt::prepare(std::string(89, 'a'), 8, "it"), doctest::Contains("needs at least 90"), InputError);
  CHECK(gpt::prepare(std::string(90, 'a'), 8, "it").held_out.size() == 9);
  CHECK_THROWS_WITH_AS(gpt::prepare("a\xFF", 8, "it"), doctest::Contains("it: the byte at offset 1"), InputError);
}

TEST_CASE("a file that cannot be read is named") {
  CHECK_THROWS_WITH_AS(gpt::read_file("/no/such/file"), doctest::Contains("/no/such/file"), InputError);
  CHECK_THROWS_WITH_AS(gpt::read_file("/"), doctest::Contains("cannot read the file /"), InputError);
}
