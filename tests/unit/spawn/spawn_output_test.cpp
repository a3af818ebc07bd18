// SPDX-License-Identifier: Apache-2.0
// What ranks print, with each line marked by its rank: whole lines, nothing lost, nobody held up.
#include <map>
#include <sstream>

#include "program.hpp"

using namespace tandem;
using namespace tandem::test;

namespace {

SpawnOptions prefixed() {
  SpawnOptions options;
  options.prefix_output = true;
  return options;
}

/// The lines of each rank, in order; fails when a line has no rank.
std::map<int, std::vector<std::string>> lines_by_rank(const std::string& text) {
  std::map<int, std::vector<std::string>> result;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    int rank = -1;
    int length = 0;
    REQUIRE(std::sscanf(line.c_str(), "[rank %d] %n", &rank, &length) == 1);
    result[rank].push_back(line.substr(static_cast<std::size_t>(length)));
  }
  return result;
}

void put(int stream, const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t length = ::write(stream, text.data() + at, text.size() - at);
    if (length > 0) at += static_cast<std::size_t>(length);
  }
}

}  // namespace

TEST_CASE("lines of several ranks never mix, whatever the pieces in which they are written") {
  const Outcome outcome = run([] {
    return spawn(
        4,
        [] {
          const int rank = rank_here();
          for (int i = 0; i < 500; ++i) {
            const std::string line = std::to_string(i) + ":" +
                                     std::string(static_cast<std::size_t>(i % 90), static_cast<char>('a' + rank)) +
                                     "\n";
            const std::size_t cut = static_cast<std::size_t>(i * 7 + rank) % line.size();
            put(1, line.substr(0, cut));
            put(1, line.substr(cut));
          }
          return 0;
        },
        prefixed());
  });
  CHECK(outcome.status == 0);
  const auto lines = lines_by_rank(outcome.out);
  REQUIRE(lines.size() == 4);
  for (const auto& [rank, own] : lines) {
    REQUIRE(own.size() == 500);
    for (int i = 0; i < 500; ++i) {
      REQUIRE(own[static_cast<std::size_t>(i)] ==
              std::to_string(i) + ":" + std::string(static_cast<std::size_t>(i % 90), static_cast<char>('a' + rank)));
    }
  }
}

TEST_CASE("stdout and stderr stay apart, lines come as they are printed, a last line without an end is whole") {
  const Outcome outcome = run([] {
    return spawn(
        2,
        [] {
          std::printf("to out\n\nunfinished");
          std::fprintf(stderr, "to err\n");
          return 0;
        },
        prefixed());
  });
  CHECK(outcome.status == 0);
  for (const auto& [rank, own] : lines_by_rank(outcome.out)) {
    CHECK(own == std::vector<std::string>{"to out", "", "unfinished"});
  }
  CHECK(lines_by_rank(outcome.out).size() == 2);
  for (const auto& [rank, own] : lines_by_rank(outcome.err)) CHECK(own == std::vector<std::string>{"to err"});
}

TEST_CASE("printed lines are seen while the rank still runs") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  Program program([&] {
    ::dup2(ends[1], 1);
    ::close(ends[0]);
    ::close(ends[1]);
    return spawn(
        1,
        []() -> int {
          std::printf("now\n");
          wait_for_ever();
        },
        prefixed());
  });
  ::close(ends[1]);
  char text[64] = {};
  CHECK(::read(ends[0], text, sizeof(text) - 1) == 13);
  CHECK(std::string(text) == "[rank 0] now\n");
  ::kill(program.process(), SIGTERM);
  CHECK(program.finish().status == 128 + SIGTERM);
  ::close(ends[0]);
}

TEST_CASE("much output, very long lines and bytes of any value come through") {
  const Outcome outcome = run([] {
    return spawn(
        2,
        [] {
          put(1, std::string(200'000, 'x') + "\n");
          std::string all;
          for (int value = 0; value < 256; ++value) {
            if (value != '\n') all += static_cast<char>(value);
          }
          for (int i = 0; i < 2000; ++i) put(1, all + "\n");
          return 0;
        },
        prefixed());
  });
  CHECK(outcome.status == 0);
  CHECK(std::count(outcome.out.begin(), outcome.out.end(), 'x') == 2 * (200'000 + 2000));
  CHECK(outcome.out.size() > 2 * (200'000 + 2000 * 256));
  const auto lines = lines_by_rank(outcome.out);
  CHECK(lines.at(0).back().size() == 255);
}

TEST_CASE("a process that a rank leaves behind with the pipe holds nobody up") {
  const SharedNotes notes;
  const Outcome outcome = run([&] {
    return spawn(
        2,
        [&] {
          const pid_t child = ::fork();
          if (child == 0) {
            ::prctl(PR_SET_PDEATHSIG, 0);
            notes->process[rank_here()] = ::getpid();
            pause_for(30);
            ::_exit(0);
          }
          put(1, "done\n");
          return 0;
        },
        prefixed());
  });
  CHECK(outcome.status == 0);
  CHECK(outcome.seconds < 8);
  CHECK(lines_by_rank(outcome.out).size() == 2);
  for (int rank = 0; rank < 2; ++rank) {
    if (notes->process[rank] > 0) ::kill(notes->process[rank], SIGKILL);
  }
}

TEST_CASE("Ctrl-C works when nobody reads what the ranks print") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const SharedNotes notes;
  Program program([&] {
    ::dup2(ends[1], 1);
    ::close(ends[0]);
    ::close(ends[1]);
    return spawn(
        2,
        [&]() -> int {
          notes.arrive(rank_here());
          for (;;) put(1, std::string(1000, 'y') + "\n");
        },
        prefixed());
  });
  ::close(ends[1]);
  notes.wait_for(2);
  pause_for(0.3);  // by now all buffers are full
  ::kill(program.process(), SIGINT);
  const Outcome outcome = program.finish(10);
  CHECK(outcome.seconds < 8);
  CHECK(outcome.status == 128 + SIGINT);
  CHECK(all_end(notes, 2, 0));
  ::close(ends[0]);
}

TEST_CASE("C037: a reader that goes away does not end the ranks when SIGPIPE is ignored") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const SharedNotes notes;
  Program program([&] {
    ::signal(SIGPIPE, SIG_IGN);
    ::dup2(ends[1], 1);
    ::close(ends[0]);
    ::close(ends[1]);
    return spawn(
        2,
        [&] {
          notes.arrive(rank_here());
          notes.wait_for(3);
          for (int i = 0; i < 1000; ++i) put(1, "line\n");
          ++notes->count[rank_here()];
          return 0;
        },
        prefixed());
  });
  ::close(ends[1]);
  notes.wait_for(2);
  ::close(ends[0]);
  ++notes->ready;
  CHECK(program.finish().status == 0);
  CHECK(notes->count[0] == 1);
  CHECK(notes->count[1] == 1);
}
