// SPDX-License-Identifier: Apache-2.0
// Starts the ranks of a program on this host without a launcher: fork, watch, end, reap. Must not know what ranks do.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tandem/comm/detail/line_relay.hpp"
#include "tandem/comm/detail/thread_count.hpp"
#include "tandem/comm/identity.hpp"
#include "tandem/core/deadline.hpp"
#include "tandem/core/error.hpp"
#include "tandem/transport/detail/descriptor.hpp"

namespace tandem {

struct SpawnOptions {
  /// Every line that a rank prints begins with "[rank 1] "; lines of several ranks never mix.
  bool prefix_output = false;
  /// After the first failure: how long the other ranks may take to notice it themselves and say so in their own words.
  std::chrono::milliseconds farewell{500};
  /// How long a rank may take to end after SIGTERM (or after the signal that this process was sent), before SIGKILL.
  std::chrono::milliseconds grace{2000};
  /// Receives the signal by which this process was asked to end all ranks, or 0: what spawn returns does not tell it
  /// from the end of a rank that was sent the same signal.
  int* interrupted_by = nullptr;
  /// Told once per event what a user should know ("rank 1 was killed by signal 9 (Killed)"); the library prints
  /// nothing.
  std::function<void(const std::string&)> notice;
};

namespace detail {

/// Runs in the parent only. Whatever ends its life, the children end before it does.
class Supervisor {
 public:
  Supervisor(int ranks, const SpawnOptions& options) : options_(options), ranks_(static_cast<std::size_t>(ranks)) {
    if (options_.interrupted_by != nullptr) *options_.interrupted_by = 0;
    // A signal that is ignored (nohup, a shell's background job) stays ignored; a blocked one would be queued.
    sigemptyset(&handled_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
      struct sigaction current {};
      if (::sigaction(signal, nullptr, &current) == 0 && current.sa_handler != SIG_IGN) sigaddset(&handled_, signal);
    }
    signals_ = Descriptor(::signalfd(-1, &handled_, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_) throw system_failure("spawn: cannot watch for signals");
    // Blocked and read from a descriptor: the program's own handlers are never touched, only held off until spawn
    // returns.
    ::sigprocmask(SIG_BLOCK, &handled_, &old_mask_);
    struct sigaction plain {};
    plain.sa_handler = SIG_DFL;  // with SIG_IGN the kernel would throw the children's statuses away
    ::sigaction(SIGCHLD, &plain, &old_child_action_);
  }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;
  ~Supervisor() {
    send(SIGKILL);
    for (Rank& rank : ranks_) {
      while (rank.process > 0 && ::waitpid(rank.process, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
    signalfd_siginfo unread{};
    while (::read(signals_.get(), &unread, sizeof(unread)) > 0) {
    }
    ::sigaction(SIGCHLD, &old_child_action_, nullptr);
    ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
  }

  int run(const std::function<int()>& main) {
    const std::string rendezvous = unique_name();
    std::cout.flush();
    std::clog.flush();
    std::fflush(nullptr);  // else every child would print again what waits in the buffers
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) start(rank, rendezvous, main);
    while (std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.process > 0; })) turn();
    for (Rank& rank : ranks_) {
      for (std::size_t i = 0; i < 2; ++i) {
        if (!rank.output[i].open()) continue;
        rank.output[i].relay_some(
            outlets_[i]);  // a whole pipe at once; what a process left behind adds is its own affair
        rank.output[i].finish(outlets_[i]);
      }
    }
    // A reader that has stopped reading holds the end up, as it would for any program; but not against a signal.
    deadline_ = interrupted_ != 0 ? Deadline::after(options_.farewell) : Deadline::never();
    for (const int before = interrupted_; outlets_[0].waiting() || outlets_[1].waiting();) {
      wait();
      if (interrupted_ != before || urgent_ || deadline_.expired()) break;
    }
    return interrupted_ != 0 ? 128 + interrupted_ : status_;
  }

 private:
  struct Rank {
    pid_t process = 0;
    Descriptor ended;   // a pidfd: readable when the process has ended
    Descriptor report;  // what() of an exception that left main
    std::array<LineRelay, 2> output;
  };

  static std::string unique_name() {
    std::array<unsigned char, 16> random{};
    if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
      throw system_failure("spawn: no random bytes for the rendezvous");
    }
    std::string name = "spawn:" + std::to_string(::getpid()) + ":";
    for (const unsigned char byte : random) {
      name += "0123456789abcdef"[byte >> 4];
      name += "0123456789abcdef"[byte & 15];
    }
    return name;
  }

  void start(std::size_t rank, const std::string& rendezvous, const std::function<int()>& main) {
    Rank& here = ranks_[rank];
    Pipe report = Pipe::open();
    std::array<Pipe, 2> streams;
    if (options_.prefix_output) streams = {Pipe::open(), Pipe::open()};
    const pid_t parent = ::getpid();
    const pid_t child = ::fork();
    if (child < 0) {
      throw system_failure("spawn: cannot start rank " + std::to_string(rank) + " of " + std::to_string(ranks_.size()));
    }
    if (child == 0) {
      become(rank, parent, rendezvous, streams);
      for (Pipe& stream : streams) stream = {};
      report.read.reset();
      perform(main, report.write);
    }
    here.process = child;
    here.report = std::move(report.read);
    here.ended = Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
    if (!here.ended) throw system_failure("spawn: cannot watch rank " + std::to_string(rank));
    for (std::size_t i = 0; i < 2 && options_.prefix_output; ++i) {
      here.output[i] = LineRelay(std::move(streams[i].read), "[rank " + std::to_string(rank) + "] ");
    }
  }

  /// In the child: makes it look like a process that a launcher started.
  void become(std::size_t rank, pid_t parent, const std::string& rendezvous, std::array<Pipe, 2>& streams) noexcept {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);  // it died before the line above could count
    signals_.reset();
    ranks_.clear();  // the other ranks' pipes: held open here they would outlive their readers
    reset_signals();
    ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
    for (int stream = 0; stream < 2 && options_.prefix_output; ++stream) {
      ::dup2(streams[static_cast<std::size_t>(stream)].write.get(), stream + 1);
    }
    if (options_.prefix_output) {
      // With a buffer of its own, because glibc goes on buffering whole blocks when stdout had been used before.
      static std::array<char, 4096> buffer;
      std::setvbuf(stdout, buffer.data(), _IOLBF, buffer.size());
    }
    if (rank > 0) {  // input goes to rank 0, as with mpirun: shared by all it would be dealt out at random
      const Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (nothing) ::dup2(nothing.get(), 0);
    }
    for (const LauncherVariables& one : launchers) {
      if (std::strcmp(one.launcher, "Slurm") == 0) continue;
      for (const char* const name : {one.rank, one.size, one.local_rank, one.local_size}) ::unsetenv(name);
    }
    ::unsetenv("SLURM_STEP_ID");  // the mark by which identity_from_environment takes Slurm's variables
    for (const char* const name : {"TANDEM_RANK", "TANDEM_LOCAL_RANK"}) {
      ::setenv(name, std::to_string(rank).c_str(), 1);
    }
    for (const char* const name : {"TANDEM_SIZE", "TANDEM_LOCAL_SIZE"}) ::setenv(name, size_text_.c_str(), 1);
    ::setenv("TANDEM_RENDEZVOUS", rendezvous.c_str(), 1);
  }

  /// The parent's handlers must not run in a rank. What is ignored stays ignored, as after exec.
  static void reset_signals() noexcept {
    for (int signal = 1; signal < NSIG; ++signal) {
      const bool fault = signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE || signal == SIGILL;
      if (fault && (address_sanitized || thread_sanitized)) continue;  // their report is wanted in a rank too
      struct sigaction action {};
      if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
      if (action.sa_handler == SIG_DFL) continue;
      action = {};
      action.sa_handler = SIG_DFL;
      ::sigaction(signal, &action, nullptr);
    }
  }

  /// In the child: runs main and ends as the program would have ended under a launcher, with exit(): static objects
  /// made in main are destroyed, files are flushed. (_exit would lose what they hold.)
  [[noreturn]] static void perform(const std::function<int()>& main, const Descriptor& report) {
    int status = 1;
    try {
      status = main();
      if ((status & 0xff) == 0 && status != 0) status = 1;  // the kernel keeps eight bits: 256 would count as success
    } catch (const std::exception& cause) {
      tell(report, cause.what());
    } catch (...) {
      tell(report, "not a std::exception");
    }
    std::exit(status);
  }
  static void tell(const Descriptor& report, const char* text) noexcept {
    const std::size_t length = std::min<std::size_t>(std::strlen(text), 4096);  // PIPE_BUF: never blocks, never split
    [[maybe_unused]] const ssize_t written = ::write(report.get(), text, length);
  }

  void turn() {
    if (deadline_.expired()) escalate();
    wait();
    // Ranks that end because another one died often end in the same moment: a death by signal is the first cause then.
    std::optional<std::pair<std::size_t, int>> blame;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      Rank& here = ranks_[rank];
      int status = 0;
      if (here.process <= 0) continue;
      const pid_t waited = ::waitpid(here.process, &status, WNOHANG);
      if (waited == 0) continue;
      if (waited < 0) status = W_EXITCODE(1, 0);  // somebody else waited for it: not known to have gone well
      here.process = 0;
      here.ended.reset();
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
      if (!blame || (WIFSIGNALED(status) && !WIFSIGNALED(blame->second))) blame = {rank, status};
    }
    if (blame && status_ == 0) {
      status_ = WIFSIGNALED(blame->second) ? 128 + WTERMSIG(blame->second) : WEXITSTATUS(blame->second);
      if (interrupted_ == 0) fail(blame->first, blame->second);
    }
  }

  void fail(std::size_t rank, int status) {
    deadline_ = Deadline::after(options_.farewell);
    std::string text = "rank " + std::to_string(rank);
    std::array<char, 4096> cause{};
    const ssize_t length = ::read(ranks_[rank].report.get(), cause.data(), cause.size());
    if (WIFSIGNALED(status)) {
      text += " was killed by signal " + signal_text(WTERMSIG(status));
    } else if (length > 0) {
      text += " ended by an exception: " + std::string(cause.data(), static_cast<std::size_t>(length));
    } else {
      text += " ended with status " + std::to_string(WEXITSTATUS(status));
    }
    const bool others = std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& other) { return other.process > 0; });
    notice(text + (others ? "; the other ranks are ended" : ""));
  }

  void escalate() {
    if (!urgent_ && !asked_) {
      asked_ = true;
      send(SIGTERM);
      deadline_ = Deadline::after(options_.grace);
      return;
    }
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].process > 0) {
        notice("rank " + std::to_string(rank) + " did not end when asked to, and was killed");
      }
    }
    send(SIGKILL);
    deadline_ = Deadline::never();
  }

  void interrupt(const signalfd_siginfo& signal) {
    if (interrupted_ != 0) {  // asked twice: at once
      urgent_ = true;
      send(SIGKILL);
      return;
    }
    interrupted_ = static_cast<int>(signal.ssi_signo);
    if (options_.interrupted_by != nullptr) *options_.interrupted_by = interrupted_;
    asked_ = true;
    deadline_ = Deadline::after(options_.grace);
    // The terminal sends Ctrl-C to the whole process group, so the ranks have it already: twice would mean "at once".
    if (signal.ssi_code != SI_KERNEL) send(interrupted_);
    notice("interrupted by signal " + signal_text(interrupted_) + "; all ranks are ended");
  }

  /// Waits for whatever comes next: an end, a signal, output, the deadline.
  void wait() {
    std::vector<pollfd> polls{{signals_.get(), POLLIN, 0}};
    for (Outlet& outlet : outlets_) {
      polls.push_back({outlet.waiting() ? outlet.stream() : -1, POLLOUT, 0});
    }
    for (const Rank& rank : ranks_) {
      polls.push_back({rank.ended.get(), POLLIN, 0});
      for (std::size_t i = 0; i < 2; ++i) {
        polls.push_back({outlets_[i].full() ? -1 : rank.output[i].source(), POLLIN, 0});
      }
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        std::min<std::chrono::nanoseconds>(deadline_.remaining(), std::chrono::hours(1)));
    if (::poll(polls.data(), polls.size(), static_cast<int>(left.count())) < 0) {
      if (errno == EINTR || errno == EAGAIN) return;
      throw system_failure("spawn: poll failed");
    }
    signalfd_siginfo signal{};
    while (::read(signals_.get(), &signal, sizeof(signal)) == static_cast<ssize_t>(sizeof(signal))) interrupt(signal);
    for (std::size_t i = 0; i < 2; ++i) {
      if (polls[1 + i].revents != 0) outlets_[i].write_some();
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        if (polls[3 + 3 * rank + 1 + i].revents != 0) ranks_[rank].output[i].relay_some(outlets_[i]);
      }
    }
  }

  void send(int signal) noexcept {
    // A process that has ended keeps its number until it is waited for, so this reaches no stranger.
    for (const Rank& rank : ranks_) {
      if (rank.process > 0) ::kill(rank.process, signal);
    }
  }
  static std::string signal_text(int signal) {
    const char* const name = ::strsignal(signal);
    return std::to_string(signal) + " (" + (name != nullptr ? name : "unknown") + ")";
  }
  void notice(const std::string& text) const {
    if (options_.notice) options_.notice(text);
  }

  const SpawnOptions& options_;
  std::vector<Rank> ranks_;
  const std::string size_text_ = std::to_string(ranks_.size());
  std::array<Outlet, 2> outlets_{Outlet(STDOUT_FILENO), Outlet(STDERR_FILENO)};
  sigset_t handled_{};
  sigset_t old_mask_{};
  struct sigaction old_child_action_ {};
  Descriptor signals_;
  Deadline deadline_ = Deadline::never();
  int status_ = 0;
  int interrupted_ = 0;
  bool asked_ = false;   // SIGTERM has been sent
  bool urgent_ = false;  // a second signal came
};

}  // namespace detail

/// Forks `ranks` children that each run `main` as one rank (TANDEM_RANK and its kin are set for join), waits for all of
/// them, and returns what main() should return: 0, or the status of the first rank that failed (128 + signal when it
/// was killed, 1 when an exception left main), or 128 + the signal that this process was sent. When a rank fails the
/// others are ended; nothing is left behind, even when this process is killed. A child ends with exit(), so that static
/// objects from before the call are destroyed in it too. Call it before libtorch computes or any thread starts: a fork
/// copies only the calling thread, so with others running it throws Error(environment).
inline int spawn(int ranks, const std::function<int()>& main, const SpawnOptions& options = {}) {
  if (ranks < 1 || ranks > 1024 || !main) {
    throw Error(ErrorKind::argument,
                !main ? "tandem: spawn: no main to run"
                      : "tandem: spawn: " + std::to_string(ranks) + " ranks cannot be; one host takes from 1 to 1024");
  }
  if (const int others = detail::other_threads(); others > 0) {
    throw Error(ErrorKind::environment, "tandem: spawn: this process already runs " + std::to_string(others) +
                                            (others == 1 ? " other thread" : " other threads") +
                                            ", and a fork copies only the calling one; call spawn first, before "
                                            "libtorch computes anything or any thread starts");
  }
  return detail::Supervisor(ranks, options).run(main);
}

}  // namespace tandem
