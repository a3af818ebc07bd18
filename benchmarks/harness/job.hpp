// SPDX-License-Identifier: Apache-2.0
// A program that runs beside the benchmark until it is told to end: started, watched, ended and reaped here. Knows not
// what it does.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace tandem::bench {

/// The process ends with this one, whatever ends this one. What it prints goes to stderr.
class Job {
 public:
  explicit Job(std::vector<std::string> command) {
    const pid_t parent = getpid();
    std::fflush(nullptr);
    process_ = fork();
    if (process_ < 0) throw std::system_error(errno, std::generic_category(), "benchmark: cannot start " + command[0]);
    if (process_ == 0) become(parent, command);
    ended_ = static_cast<int>(syscall(SYS_pidfd_open, process_, 0));
    if (ended_ < 0) {
      kill(process_, SIGKILL);
      waitpid(process_, nullptr, 0);
      throw std::system_error(errno, std::generic_category(), "benchmark: cannot watch " + command[0]);
    }
  }
  Job(Job&& other) noexcept
      : process_(std::exchange(other.process_, -1)),
        ended_(std::exchange(other.ended_, -1)),
        owner_(std::exchange(other.owner_, -1)) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  /// Ends it if it still runs: asked first, so that a launcher ends what it has started.
  ~Job() {
    if (ended_ >= 0) close(ended_);
    if (process_ < 0 || getpid() != owner_) return;  // a copy in a forked rank
    kill(process_, SIGTERM);
    for (int tenths = 0; tenths < 50; ++tenths) {
      if (reaped()) return;
      usleep(100'000);
    }
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }

  /// Readable once the process has ended, also in processes forked after this one's start.
  int ended() const noexcept { return ended_; }

  /// Waits for an end that is expected: false when it does not come within ten seconds, or with another status than 0.
  bool finish() {
    pollfd end{ended_, POLLIN, 0};
    while (poll(&end, 1, 10'000) < 0 && errno == EINTR) {
    }
    return reaped() && status_ == 0;
  }

 private:
  [[noreturn]] static void become(pid_t parent, std::vector<std::string>& command) noexcept {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing >= 0) dup2(nothing, 0);
    dup2(2, 1);
    std::vector<char*> arguments;
    for (auto& argument : command) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    execv(arguments[0], arguments.data());
    std::perror(arguments[0]);
    _exit(127);
  }
  bool reaped() noexcept {
    if (process_ > 0 && waitpid(process_, &status_, WNOHANG) == process_) process_ = -1;
    return process_ < 0;
  }

  pid_t process_ = -1;
  int ended_ = -1;
  pid_t owner_ = getpid();
  int status_ = -1;
};

}  // namespace tandem::bench
