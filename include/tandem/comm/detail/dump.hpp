// SPDX-License-Identifier: Apache-2.0
// Writes the flight recorders of this process into a file, on SIGUSR1 or when an operation failed, for somebody who
// looks at a stuck job from outside (scripts/recorder). Does nothing unless asked; changes nothing it looks at.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>

#include "tandem/comm/detail/json_file.hpp"
#include "tandem/comm/detail/recorder_list.hpp"
#include "tandem/comm/fingerprint.hpp"
#include "tandem/core/clock.hpp"
#include "tandem/core/error.hpp"

namespace tandem::detail {

/// Where this process's dump goes and what it says of the process. Written before the handler is installed, and later
/// only by who holds the list's `walked`.
struct DumpTarget {
  std::array<char, PATH_MAX + 32> path{};
  std::array<char, PATH_MAX + 32> part{};  // written first, then renamed: a reader finds a whole file or none
  std::array<char, 256> host{};
  int rank = 0;
  std::uint64_t tick = 0;  // the counter and the clock at one moment; two of these tell the counter's unit
  Clock::time_point moment{};
  struct sigaction before {};  // the program's own handler
  bool installed = false;
  std::atomic<pid_t> asked_by{0};  // the process that asked: a forked child has a copy of all this
};
inline DumpTarget dump_target;

/// Microseconds since a record's ticks(), as the clock has gone since dumps were asked for.
class Ages {
 public:
  Ages() noexcept
      : now_(ticks()),
        rate_(static_cast<double>(now_ - dump_target.tick) /
              std::chrono::duration<double, std::micro>(Clock::now() - dump_target.moment).count()) {}
  std::uint64_t of(std::uint64_t tick) const noexcept {
    return tick < now_ && rate_ > 0 ? static_cast<std::uint64_t>(static_cast<double>(now_ - tick) / rate_) : 0;
  }

 private:
  std::uint64_t now_;
  double rate_;
};

inline void write_record(JsonFile& out, const Record& record, const Ages& ages) noexcept {
  const auto number_or_null = [&](const char* key, int value) {
    out.raw(key);
    value < 0 ? out.raw("null") : out.number(value);
  };
  const Call& call = record.call;
  const bool message = call.verb == Verb::send || call.verb == Verb::recv || call.verb == Verb::send_recv;
  out.raw("{\"sequence\": ").number(record.sequence).raw(", \"verb\": ").text(name_of(call.verb));
  out.raw(", \"dtype\": ").text(name_of(call.dtype)).raw(", \"element_bytes\": ").number(call.element_bytes);
  out.raw(", \"count\": ").number(call.count).raw(", \"reduction\": ");
  if (call.reduction == 0) {
    out.raw("null");
  } else {
    out.raw("\"");
    spell_reduction(call.reduction, [&](std::string_view part) { out.escaped(part); });
    out.raw("\"");
  }
  number_or_null(message ? ", \"peer\": " : ", \"root\": ", call.root);
  out.raw(", \"algorithm\": ");
  if (call.algorithm == 0) {
    out.raw("null");
  } else if (call.algorithm < algorithm_names.size()) {
    out.text(algorithm_names[call.algorithm]);
  } else {
    out.number(call.algorithm);
  }
  out.raw(", \"layout\": ").number(call.layout).raw(", \"site\": \"").escaped(call.site.file).raw(":");
  out.number(call.site.line).raw(" (").escaped(call.site.function).raw(")\", \"state\": ");
  out.text(record.progress == Progress::begun      ? "begun"
           : record.progress == Progress::finished ? "finished"
                                                   : "failed");
  out.raw(", \"age\": ").seconds(ages.of(record.begun_at));
  number_or_null(", \"waits_for\": ", record.waits_for);
  out.raw("}");
}

inline void write_communicator(JsonFile& out, const ListedRecorder& it, const Ages& ages) noexcept {
  out.raw("{\"id\": ").number(it.id).raw(", \"rank\": ").number(it.rank).raw(", \"members\": [");
  for (std::size_t i = 0; i < it.members.size(); ++i) out.raw(i == 0 ? "" : ", ").number(it.members[i]);
  out.raw("], \"failure\": ");
  it.poison.is_set() ? out.text(it.poison.cause().what()) : out.raw("null");
  const std::uint64_t end = it.recorder.count();
  out.raw(", \"begun\": ").number(end).raw(", \"records\": [");
  const char* separator = "\n  ";
  for (std::uint64_t i = end > Recorder::capacity ? end - Recorder::capacity : 0; i < end; ++i) {
    // One that is being overwritten while this looks at it is left out: the communicator is not stuck.
    if (const auto record = it.recorder.at(i)) {
      out.raw(separator);
      write_record(out, *record, ages);
      separator = ",\n  ";
    }
  }
  out.raw("]}");
}

/// With the list's `walked` held. Async-signal-safe.
inline void write_dump(const char* reason) noexcept {
  const int file = ::open(dump_target.part.data(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return;
  const Ages ages;
  timespec wall{};
  ::clock_gettime(CLOCK_REALTIME, &wall);
  JsonFile out(file);
  out.raw("{\"tandem_recorder\": 1, \"rank\": ").number(dump_target.rank).raw(", \"process\": ").number(::getpid());
  out.raw(", \"host\": ").text(dump_target.host.data()).raw(", \"time\": ");
  out.seconds(static_cast<std::uint64_t>(wall.tv_sec) * 1'000'000 + static_cast<std::uint64_t>(wall.tv_nsec) / 1000);
  out.raw(", \"reason\": ").text(reason).raw(", \"communicators\": [");
  const char* separator = "\n ";
  for (const ListedRecorder* it = recorder_list.first.load(); it != nullptr; it = it->next.load()) {
    out.raw(separator);
    write_communicator(out, *it, ages);
    separator = ",\n ";
  }
  const bool whole = out.raw("\n]}\n").flush();
  ::close(file);
  if (!whole || ::rename(dump_target.part.data(), dump_target.path.data()) != 0) ::unlink(dump_target.part.data());
}

/// SIGUSR1. A second one while a dump is under way adds nothing. The program's own handler runs as if it were alone.
inline void on_dump_signal(int number, siginfo_t* info, void* context) noexcept {
  const int code = errno;
  if (dump_target.asked_by.load() == ::getpid() && !recorder_list.walked.exchange(true)) {
    write_dump("signal");
    recorder_list.walked.store(false);
  }
  errno = code;
  const struct sigaction& before = dump_target.before;
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(number, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(number);
  }
}

/// After a failure, if anybody asked for dumps.
inline void dump_after_failure() noexcept {
  if (dump_target.asked_by.load() != ::getpid()) return;
  while (recorder_list.walked.exchange(true)) ::sched_yield();
  write_dump("failure");
  recorder_list.walked.store(false);
}

/// From now on this process writes <folder>/rank<rank>.json. The folder is made if it is not there. The handler is
/// installed once and stays. Throws Error(environment).
inline void ask_for_dumps(const std::string& folder, int rank) {
  std::array<char, PATH_MAX> path{};  // whole: the program may go elsewhere
  if ((::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) || ::realpath(folder.c_str(), path.data()) == nullptr ||
      ::access(path.data(), W_OK | X_OK) != 0) {
    const std::string why = std::generic_category().message(errno);
    throw Error(ErrorKind::environment,
                "tandem: flight recorders cannot be written into the folder \"" + folder + "\" (TANDEM_DUMP): " + why,
                rank);
  }
  const std::string file = std::string(path.data()) + "/rank" + std::to_string(rank) + ".json";
  const std::string part = file + ".part";
  const std::lock_guard lock(recorder_list.changing);
  recorder_list.take_over();
  while (recorder_list.walked.exchange(true)) ::sched_yield();
  std::memcpy(dump_target.path.data(), file.c_str(), file.size() + 1);
  std::memcpy(dump_target.part.data(), part.c_str(), part.size() + 1);
  ::gethostname(dump_target.host.data(), dump_target.host.size() - 1);
  dump_target.rank = rank;
  if (dump_target.tick == 0) {
    dump_target.tick = ticks();
    dump_target.moment = Clock::now();
  }
  dump_target.asked_by.store(::getpid());
  recorder_list.walked.store(false);
  if (dump_target.installed) return;
  ::sigaction(SIGUSR1, nullptr, &dump_target.before);
  struct sigaction ours = dump_target.before;
  ours.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  ours.sa_sigaction = on_dump_signal;
  ::sigaction(SIGUSR1, &ours, nullptr);
  dump_target.installed = true;
}

}  // namespace tandem::detail
