// SPDX-License-Identifier: Apache-2.0
// A program that calls spawn, run as a process of its own, so that a test can kill it, signal it and read what it
// printed.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <new>
#include <set>
#include <string>
#include <thread>

#include "support/ranks.hpp"
#include "tandem/comm/spawn.hpp"
#include "tandem/core/clock.hpp"

namespace tandem::test {

inline void pause_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

 private:
  Clock::time_point begin_ = Clock::now();
};

/// What ranks tell the test, in memory that all of them share.
struct Notes {
  std::atomic<int> process[8];
  std::atomic<int> count[8];
  std::atomic<int> ready{0};
};

class SharedNotes {
 public:
  SharedNotes()
      : notes_(new (::mmap(nullptr, sizeof(Notes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Notes) {}
  ~SharedNotes() { ::munmap(notes_, sizeof(Notes)); }
  SharedNotes(const SharedNotes&) = delete;
  SharedNotes& operator=(const SharedNotes&) = delete;
  Notes* operator->() const { return notes_; }

  void arrive(int rank) const {
    notes_->process[rank] = ::getpid();
    ++notes_->ready;
  }
  void wait_for(int count) const {
    for (int i = 0; i < 10'000 && notes_->ready < count; ++i) pause_for(0.001);
    REQUIRE(notes_->ready >= count);
  }

 private:
  Notes* notes_;
};

/// True when the process has ended; one that its new parent has not yet waited for counts as ended.
inline bool ended(int process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t at = text.rfind(')');
  return at == std::string::npos || text[at + 2] == 'Z' || text[at + 2] == 'X';
}
inline bool all_end(const SharedNotes& notes, int count, double seconds) {
  Stopwatch watch;
  for (int rank = 0; rank < count; ++rank) {
    while (notes->process[rank] > 0 && !ended(notes->process[rank])) {
      if (watch.seconds() > seconds) return false;
      pause_for(0.002);
    }
  }
  return true;
}

struct Outcome {
  int status = 0;  // as $? says it
  std::string out;
  std::string err;
  double seconds = 0;
};

class Program {
 public:
  explicit Program(const std::function<int()>& main) {
    for (int& file : files_) {
      file = ::memfd_create("tandem-test", MFD_CLOEXEC);
      ::fcntl(file, F_SETFL, O_APPEND);  // without it two ranks that write at the same moment overwrite each other
    }
    std::fflush(nullptr);
    process_ = ::fork();
    REQUIRE(process_ >= 0);
    if (process_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::setpgid(0, 0);
      ::signal(SIGINT, SIG_DFL);
      ::signal(SIGTERM, SIG_DFL);
      ::dup2(files_[0], 1);
      ::dup2(files_[1], 2);
      int status = 99;
      try {
        status = main();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "threw: %s\n", error.what());
      }
      std::fflush(nullptr);
      ::_exit(status);
    }
    ::setpgid(process_, process_);  // by both, so that it holds whoever runs first
  }
  ~Program() {
    if (process_ > 0) finish(0);
    for (const int file : files_) ::close(file);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t process() const { return process_; }

  /// Waits, kills it at the limit (status 137 then, and a failed test by any reasonable expectation).
  Outcome finish(double limit = 20) {
    int status = 0;
    bool killed = false;
    while (::waitpid(process_, &status, WNOHANG) == 0) {
      if (!killed && watch_.seconds() > limit) {
        ::kill(process_, SIGKILL);
        killed = true;
      }
      pause_for(0.001);
    }
    process_ = 0;
    Outcome outcome;
    outcome.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    outcome.seconds = watch_.seconds();
    outcome.out = content(files_[0]);
    outcome.err = content(files_[1]);
    return outcome;
  }

 private:
  static std::string content(int file) {
    std::string text(static_cast<std::size_t>(::lseek(file, 0, SEEK_END)), '\0');
    [[maybe_unused]] const ssize_t length = ::pread(file, text.data(), text.size(), 0);
    return text;
  }

  int files_[2];
  pid_t process_ = 0;
  Stopwatch watch_;
};

inline Outcome run(const std::function<int()>& main) { return Program(main).finish(); }

/// Notices go to stderr, which the Outcome holds.
inline SpawnOptions noticing(SpawnOptions options = {}) {
  options.notice = [](const std::string& text) { std::fprintf(stderr, "notice: %s\n", text.c_str()); };
  return options;
}

inline int rank_here() { return identity_from_environment().rank; }

[[noreturn]] inline void wait_for_ever() {
  for (;;) ::pause();
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline std::set<std::string> shared_memory_files() {
  std::set<std::string> names;
  std::error_code fault;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", fault)) names.insert(entry.path().string());
  return names;
}

}  // namespace tandem::test
