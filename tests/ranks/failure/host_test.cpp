// SPDX-License-Identifier: Apache-2.0
// What the library takes from the host: no descriptor, process or file is left behind, and /dev/shm is not needed.
#include <dirent.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <set>
#include <string>

#include "support/ranks.hpp"
#include "support/traffic.hpp"

using namespace tandem;
using namespace tandem::test;

namespace {

std::set<std::string> entries(const char* folder) {
  std::set<std::string> names;
  if (DIR* const directory = ::opendir(folder)) {
    while (const dirent* const entry = ::readdir(directory)) names.insert(entry->d_name);
    ::closedir(directory);
  }
  return names;
}
/// Lines of /proc/self/maps that are windows of this library.
int windows_mapped() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:tandem") != std::string::npos ? 1 : 0;
  return count;
}

}  // namespace

TEST_CASE("fifty joins leave no descriptor, no mapping, no name") {
  const auto shared_memory = entries("/dev/shm");
  on_ranks(
      2,
      [](int rank) {
        const std::string name = "fifty-" + std::to_string(::getppid()) + "-";
        std::set<std::string> before;
        for (int turn = 0; turn < 50; ++turn) {
          World world = join_again(name + std::to_string(turn), rank, 2);
          World part = world.split(0, 0);
          std::vector<float> data(20000, 1.0F);
          all_reduce(part, std::span(data), Sum{});
          if (data[0] != 2.0F) FAIL_CHECK("turn " << turn);
          if (turn == 1) before = entries("/proc/self/fd");
        }
        // One world was open when the first look was taken: its memory and its peer's process; all are gone now.
        CHECK(entries("/proc/self/fd").size() <= before.size());
        CHECK(windows_mapped() == 0);
      },
      std::chrono::seconds(60));
  CHECK(entries("/dev/shm") == shared_memory);
}

TEST_CASE("arena memory outlives its communicator and is unmapped with the last of it") {
  on_ranks(2, [](int rank) {
    std::shared_ptr<Arena> arena;
    {
      World world = join<TestTransport>();
      arena = world.arena();
      barrier(world);
    }
    {
      ArenaArray<int> array(arena, 100000);
      for (std::size_t i = 0; i < array.size(); ++i) array[i] = rank;
      CHECK(array[99999] == rank);
    }
    arena.reset();
    CHECK(windows_mapped() == 0);
  });
}

namespace {

/// Runs two ranks in a mount namespace of their own in which `prepare` has changed /dev/shm. False: not allowed here.
template <class Prepare>
bool with_own_dev_shm(Prepare prepare) {
  const auto endings = run_ranks(1, [&](int) {
    const auto user = ::geteuid();
    if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ::_exit(77);
    if (user != 0) {
      std::ofstream("/proc/self/uid_map") << "0 " << user << " 1";
    }
    if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 || !prepare()) ::_exit(77);
    on_ranks(2, [](int rank) {
      World world = join<TestTransport>();
      ArenaArray<float> registered(world.arena(), 4 << 20);  // 16 MiB: more than there is in /dev/shm
      for (float& it : registered) it = static_cast<float>(rank + 1);
      all_reduce(world, std::span(registered.data(), registered.size()), Sum{});
      CHECK(registered[(4 << 20) - 1] == 3.0F);
      std::vector<float> data(300000, 1.0F);
      all_reduce(world, std::span(data), Sum{});
      CHECK(data[299999] == 2.0F);
    });
  });
  if (endings[0].code == 77) return false;
  CHECK(endings[0].clean());
  return true;
}

}  // namespace

// C021, C032: shared memory is a memfd, which does not count against /dev/shm.
TEST_CASE("a /dev/shm of 256 KiB, one that is read-only, and none") {
  const bool tiny = with_own_dev_shm([] { return ::mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=256k") == 0; });
  const bool read_only =
      with_own_dev_shm([] { return ::mount("tmpfs", "/dev/shm", "tmpfs", MS_RDONLY, "size=1k") == 0; });
  const bool none = with_own_dev_shm([] {
    ::umount2("/dev/shm", MNT_DETACH);
    return ::mount("tmpfs", "/dev", "tmpfs", 0, "size=1k") == 0;  // no shm in it at all
  });
  if (!tiny || !read_only || !none) MESSAGE("not all of it could be tried here: no right to mount");
}

TEST_CASE("a rank with another arena size is an error on every rank, whatever its number") {
  for (int odd = 0; odd < 4; ++odd) {
    on_ranks(4, [&](int rank) {
      JoinOptions options;
      options.arena_bytes = rank == odd ? std::size_t{1} << 20 : std::size_t{2} << 20;
      try {
        const World world = join<TestTransport>(options);
        FAIL_CHECK("rank " << rank << " joined");
      } catch (const Error& error) {
        CAPTURE(std::string(error.what()));
        CHECK(error.kind() == ErrorKind::environment);
        CHECK(std::string(error.what()).find("asks for an arena of") != std::string::npos);
      }
    });
  }
}

TEST_CASE("ranks on several hosts are refused at once, not at the deadline") {
  JoinOptions options;
  options.identity = Identity{.rank = 0, .size = 4, .local_rank = 0, .local_size = 2, .rendezvous = "two hosts"};
  try {
    const World world = join<TestTransport>(options);
    FAIL_CHECK("joined");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::environment);
    CHECK(std::string(error.what()).find("only 2 of 4") != std::string::npos);
  }
}
