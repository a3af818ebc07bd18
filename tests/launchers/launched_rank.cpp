// SPDX-License-Identifier: Apache-2.0
// One rank of a job that some launcher started: finds out who it is, meets the others, checks what they say of
// themselves, prints one line. `launched_rank spawn N` starts N of its kind itself.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#include "tandem/comm/identity.hpp"
#include "tandem/comm/spawn.hpp"
#include "tandem/transport/rendezvous.hpp"

namespace {

struct Card {
  int rank;
  int local_rank;
  int size;
  char job[32];
};

int run_rank() {
  const tandem::Identity me = tandem::identity_from_environment();
  Card mine{me.rank, me.local_rank, me.size, {}};
  if (const char* const job = std::getenv("TEST_JOB")) std::snprintf(mine.job, sizeof(mine.job), "%s", job);
  tandem::Introduction introduction;
  const auto* const bytes = reinterpret_cast<const std::byte*>(&mine);
  introduction.data.assign(bytes, bytes + sizeof(mine));
  introduction.descriptors.emplace_back(::dup(STDIN_FILENO));
  const auto all = tandem::meet(me.rendezvous, me.rank, me.size, std::move(introduction),
                                tandem::Deadline::after(std::chrono::seconds(30)));
  for (int rank = 0; rank < me.size; ++rank) {
    Card theirs{};
    std::memcpy(&theirs, all[static_cast<std::size_t>(rank)].data.data(), sizeof(theirs));
    if (theirs.rank != rank || theirs.local_rank != rank || theirs.size != me.size ||
        std::strcmp(theirs.job, mine.job) != 0) {
      std::fprintf(stderr, "rank %d says it is rank %d of %d of job %s\n", rank, theirs.rank, theirs.size, theirs.job);
      return 1;
    }
  }
  // One write, so that the lines of ranks that share a pipe stay whole.
  const std::string line =
      "met " + std::to_string(me.rank) + " of " + std::to_string(me.size) + " by " + me.source + "\n";
  return ::write(STDOUT_FILENO, line.data(), line.size()) == static_cast<ssize_t>(line.size()) ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  try {
    if (count == 3 && std::strcmp(words[1], "spawn") == 0) return tandem::spawn(std::atoi(words[2]), run_rank);
    return run_rank();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
