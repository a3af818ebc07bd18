// SPDX-License-Identifier: Apache-2.0
// What the host may refuse: shared memory's folder, address space, file sizes, small socket buffers. An error in words
// before the first touch, or no difference at all; never a signal.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "support/errors.hpp"
#include "support/full.hpp"
#include "support/process_state.hpp"
#include "support/ranks.hpp"
#include "support/samples.hpp"
#include "support/worlds.hpp"
#include "tandem/collective/all_gather.hpp"
#include "tandem/collective/all_reduce.hpp"
#include "tandem/collective/barrier.hpp"
#include "tandem/collective/send_recv.hpp"

using namespace tandem;
using namespace tandem::test;
using namespace std::chrono_literals;

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
    CHECK(mappings().windows == 0);
  });
}

namespace {

/// Works with registered and private memory, the former more than some tests leave in /dev/shm.
void work_in(World& world) {
  const std::size_t count = 20 << 20;
  ArenaArray<float> registered(world.arena(), count);  // 80 MiB
  for (float& it : registered) it = static_cast<float>(world.rank() + 1);
  all_reduce(world, std::span(registered.data(), registered.size()), Sum{});
  CHECK(registered[count - 1] == 3.0F);
  std::vector<float> data(300000, 1.0F);
  all_reduce(world, std::span(data), Sum{});
  CHECK(data[299999] == 2.0F);
}

/// Runs `body` in a process with namespaces of its own, of the kinds given, in which `prepare` has changed the host.
/// False: not allowed here.
template <class Prepare, class Body>
bool on_a_host_of_its_own(int kinds, Prepare prepare, Body body) {
  const std::chrono::seconds limit(in_full(40, 300));
  const auto enter = [&](int) {
    const auto user = ::geteuid();
    if (::unshare(kinds) != 0 && ::unshare(CLONE_NEWUSER | kinds) != 0) ::_exit(77);
    if (user != 0) {
      std::ofstream("/proc/self/uid_map") << "0 " << user << " 1";
    }
    if ((kinds & CLONE_NEWNS) != 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) ::_exit(77);
    if (!prepare()) ::_exit(77);
    on_ranks(2, body, limit);
  };
  const auto endings = run_ranks(1, enter, limit);
  if (endings[0].code == 77) return false;
  CHECK(endings[0].clean());
  return true;
}
bool mount_shm(unsigned long flags, const char* size) {
  return ::mount("tmpfs", "/dev/shm", "tmpfs", flags, size) == 0;
}
void join_and_work(int) {
  World world = join<TestTransport>();
  work_in(world);
}

}  // namespace

// Shared memory is a memfd, which does not count against /dev/shm.
TEST_CASE("C021 C032: a /dev/shm of 64 MB, of 256 KiB, one that is read-only, and none") {
  bool all = true;
  for (const char* const size : {"size=64m", "size=256k"}) {
    all = on_a_host_of_its_own(
              CLONE_NEWNS, [&] { return mount_shm(0, size); }, join_and_work) &&
          all;
  }
  all = on_a_host_of_its_own(
            CLONE_NEWNS, [] { return mount_shm(MS_RDONLY, "size=1k"); }, join_and_work) &&
        all;
  const auto without = [] {
    ::umount2("/dev/shm", MNT_DETACH);
    return ::mount("tmpfs", "/dev", "tmpfs", 0, "size=1k") == 0;  // no shm in it at all
  };
  all = on_a_host_of_its_own(CLONE_NEWNS, without, join_and_work) && all;
  if (!all) MESSAGE("left out here: parts of it, for no right to mount");
}

TEST_CASE("C021: /dev/shm is filled by others after the ranks have joined") {
  const bool tried = on_a_host_of_its_own(
      CLONE_NEWNS, [] { return mount_shm(0, "size=1m"); },
      [](int rank) {
        World world = join<TestTransport>();
        if (rank == 0) {
          std::ofstream filler("/dev/shm/filler");
          filler << std::string(2 << 20, 'x') << std::flush;
          CHECK_FALSE(filler.good());
        }
        barrier(world);
        work_in(world);
      });
  if (!tried) MESSAGE("left out here: no right to mount");
}

namespace {

/// Lets this process have `bytes` more address space than now. False under AddressSanitizer, which takes terabytes.
bool limit_address_space(std::size_t bytes) {
  const std::size_t used = mappings().pages * page_bytes;
  if (used > std::size_t{1} << 38) return false;
  const rlimit limit{used + bytes, used + bytes};
  return ::setrlimit(RLIMIT_AS, &limit) == 0;
}
/// The error of a join with an arena of that size, in words.
std::string refused_arena(std::size_t bytes, ErrorKind kind) {
  JoinOptions options;
  options.arena_bytes = bytes;
  options.timeout = 2s;
  try {
    const World world = join<TestTransport>(options);
    FAIL_CHECK("joined");
    return {};
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
}

}  // namespace

TEST_CASE("little address space: the arena is as large as fits, and what does not fit in it is an error") {
  on_ranks(2, [](int) {
    if (!limit_address_space(std::size_t{512} << 20)) return;
    World world = join<TestTransport>();
    std::vector<ArenaArray<std::byte>> taken;
    std::string what;
    while (what.empty()) {
      try {
        taken.emplace_back(world.arena(), std::size_t{8} << 20);
        for (std::size_t i = 0; i < taken.back().size(); i += page_bytes) taken.back()[i] = std::byte{1};
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::system);
        what = error.what();
      }
    }
    CAPTURE(what);
    CHECK(what.find("has no room for another 8") != std::string::npos);
    CHECK(taken.size() >= 4);
    taken.clear();
    ArenaArray<float> registered(world.arena(), 1000000);
    for (float& it : registered) it = 1.0F;
    all_reduce(world, std::span(registered.data(), registered.size()), Sum{});
    CHECK(registered[999999] == 2.0F);
  });
}

TEST_CASE("an arena that is larger than the address space is refused by name, on one rank or on all") {
  for (const bool all : {true, false}) {
    on_ranks(2, [&](int rank) {
      const bool limited = all || rank == 1;
      if (limited && !limit_address_space(std::size_t{512} << 20)) return;
      const std::string what = refused_arena(std::size_t{1} << 30, limited ? ErrorKind::system : ErrorKind::timeout);
      CAPTURE(what);
      CHECK(what.find(limited ? "1" : "rank 1") != std::string::npos);
    });
  }
}

#if !defined(TANDEM_TEST_TRANSPORT_TCP)
namespace {

/// A control group around this process with a limit of memory, gone with this object; to be joined by processes.
class LimitedGroup {
 public:
  explicit LimitedGroup(std::size_t bytes) {
    for (const auto& parent : detail::memory_groups()) {
      folder_ = parent.folder + "/tandem_test_" + std::to_string(::getpid());
      std::ofstream(parent.folder + "/cgroup.subtree_control") << "+memory";  // where there is such a file
      if (::mkdir(folder_.c_str(), 0755) != 0) continue;
      std::ofstream limit(folder_ + "/" + parent.limit);
      if (limit << bytes << std::flush) return;
      ::rmdir(folder_.c_str());
    }
    folder_.clear();
  }
  LimitedGroup(const LimitedGroup&) = delete;
  LimitedGroup& operator=(const LimitedGroup&) = delete;
  ~LimitedGroup() {
    if (!folder_.empty()) ::rmdir(folder_.c_str());
  }
  bool exists() const { return !folder_.empty(); }
  bool join() const {
    std::ofstream members(folder_ + "/cgroup.procs");
    return static_cast<bool>(members << ::getpid() << std::flush);
  }

 private:
  std::string folder_;
};

}  // namespace

// The kernel charges a memfd's pages to the group, and kills whoever goes beyond its limit.
TEST_CASE("a container's limit of memory is an error before the first touch, not SIGKILL") {
  if (!TestTransport::has_windows) return;
  const LimitedGroup group(std::size_t{256} << 20);
  if (!group.exists()) {
    MESSAGE("left out here: no right to make a control group");
    return;
  }
  on_ranks(2, [&](int rank) {
    if (rank == 1) REQUIRE(group.join());
    JoinOptions options;
    options.arena_bytes = std::size_t{2} << 30;
    World world = join<TestTransport>(options);
    if (rank == 1) {
      const auto error = error_of([&] { ArenaArray<char>(world.arena(), std::size_t{1} << 30); });
      REQUIRE(error);
      CAPTURE(error->what());
      CHECK(error->kind() == ErrorKind::system);
      CHECK(says(*error, "no memory for another 1.00 GiB"));
      CHECK(says(*error, "control group (container) of this process may take"));
    }
    work_in(world);  // the arena goes on with what there is
  });
}

namespace {

/// This process gives up the right to read processes that do not want to be read. (Users but root have none.)
void drop_right_to_trace() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  REQUIRE(::syscall(SYS_capget, &header, data) == 0);
  data[0].effective &= ~(1U << CAP_SYS_PTRACE);
  REQUIRE(::syscall(SYS_capset, &header, data) == 0);
}

}  // namespace

TEST_CASE("ranks that may not read each other's memory stream what is not registered") {
  if constexpr (TestTransport::has_windows) {
    for (const bool both : {false, true}) {
      on_ranks(2, [&](int rank) {
        drop_right_to_trace();
        if (rank == 0 || both) REQUIRE(::prctl(PR_SET_DUMPABLE, 0) == 0);
        World world = join<TestTransport>();
        if (rank == 1 || both) CHECK_FALSE(world.protocol().buffers().reads_others());
        work_in(world);
        std::vector<float> whole(200000);
        const std::vector<float> own(100000, static_cast<float>(rank + 1));
        all_gather(world, own, std::span(whole));
        CHECK(whole[99999] == 1.0F);
        CHECK(whole[100000] == 2.0F);
        CHECK(world.ledger().balanced());
      });
    }
  }
}

TEST_CASE("a rank that forbids reading after it has joined is named on all ranks") {
  if constexpr (TestTransport::has_windows) {
    on_ranks(2, [](int rank) {
      drop_right_to_trace();
      World world = join<TestTransport>();
      if (!world.protocol().buffers().reads_others()) {
        MESSAGE("left out here: the host lets nobody read");
        return;
      }
      barrier(world);
      if (rank == 0) REQUIRE(::prctl(PR_SET_DUMPABLE, 0) == 0);
      barrier(world);
      std::vector<float> whole(200000);
      const std::vector<float> own(100000, 1.0F);
      const auto error = error_of([&] { all_gather(world, own, std::span(whole)); });
      REQUIRE(error);
      CAPTURE(error->what());
      CHECK(error->kind() == ErrorKind::system);
      CHECK(error->peer() == 0);
      CHECK(says(*error, "the memory of rank 0 cannot be read: Operation not permitted"));
    });
  }
}

// A memfd beyond that limit would be answered with SIGXFSZ.
TEST_CASE("a limit of file sizes is an error that names it, not a signal") {
  on_ranks(2, [](int) {
    const rlimit limit{128 << 20, 128 << 20};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
    const std::string what = refused_arena(std::size_t{1} << 30, ErrorKind::environment);
    CAPTURE(what);
    CHECK(what.find("ulimit -f") != std::string::npos);
    JoinOptions options;
    options.arena_bytes = std::size_t{32} << 20;
    World world = join<TestTransport>(options);
    barrier(world);
  });
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
#else

// Every buffer of the kernel holds a page, so that each send and receive is cut short. A rank that ends after its last
// send leaves most of that message behind it; the other used to be told that it had left.
TEST_CASE(
    "C034 C036: sockets that hold 4 KiB, a signal every 200 us, and a rank that leaves while its message is under "
    "way") {
  const auto prepare = [] {
    Descriptor socket(::socket(AF_INET, SOCK_DGRAM, 0));
    ifreq loopback{};
    loopback.ifr_name[0] = 'l';
    loopback.ifr_name[1] = 'o';
    loopback.ifr_flags = IFF_UP;
    if (::ioctl(socket.get(), SIOCSIFFLAGS, &loopback) != 0) return false;
    for (const char* const setting : {"/proc/sys/net/ipv4/tcp_wmem", "/proc/sys/net/ipv4/tcp_rmem"}) {
      std::ofstream file(setting);
      file << "4096 4096 4096" << std::flush;
      if (!file) return false;
    }
    return true;
  };
  const bool tried = on_a_host_of_its_own(CLONE_NEWNET, prepare, [](int rank) {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    REQUIRE(::sigaction(SIGALRM, &action, nullptr) == 0);
    const itimerval often{{0, 200}, {0, 200}};
    REQUIRE(::setitimer(ITIMER_REAL, &often, nullptr) == 0);
    World world = join<TestTransport>();
    std::vector<float> data(2 << 20);
    std::vector<float> expected(data.size());
    for (std::size_t i = 0; i < data.size(); ++i) expected[i] = static_cast<float>(i % 97 + (i + 1) % 97);
    for (int turn = 0; turn < in_full(2, 100); ++turn) {
      for (std::size_t i = 0; i < data.size(); ++i)
        data[i] = static_cast<float>((i + static_cast<std::size_t>(rank)) % 97);
      all_reduce<Ring>(world, std::span(data), Sum{});
      CHECK(data == expected);
    }
    std::vector<float> theirs(data.size());  // both send first
    send(world, std::span<const float>(data), 1 - rank);
    recv(world, std::span(theirs), 1 - rank);
    CHECK(theirs == expected);
  });
  if (!tried) MESSAGE("left out here: no right to a network of one's own");
}
#endif
