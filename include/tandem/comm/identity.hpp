// SPDX-License-Identifier: Apache-2.0
// Which rank of which job this process is, read from the variables that launchers set. Connects to nobody.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "tandem/core/env.hpp"
#include "tandem/core/error.hpp"

namespace tandem {

/// This process's place in its job.
struct Identity {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  ///< among the ranks of this host
  int local_size = 1;
  std::string rendezvous;        ///< the same text on all ranks of the job, different in any other job on the host
  std::string source = "alone";  ///< the launcher whose variables were read
  bool local_size_known = true;  ///< false: nobody said, and local_size is size
};

namespace detail {

/// The variables of one launcher, in the order in which launchers are asked for the job's name.
struct LauncherVariables {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};
inline constexpr std::array<LauncherVariables, 5> launchers{{
    {"TANDEM_RANK", "TANDEM_RANK", "TANDEM_SIZE", "TANDEM_LOCAL_RANK", "TANDEM_LOCAL_SIZE"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr},
}};

/// Slurm counts only inside a step that srun started: a batch script has SLURM_PROCID too, as have the programs that
/// mpirun, mpiexec and torchrun start there (they use srun for their daemons, one a host, and its variables are left
/// over). These are known by a mark of their own.
inline bool inside_srun() {
  const auto step = environment("SLURM_STEP_ID");
  std::uint64_t number = 0;
  if (!step || std::from_chars(step->data(), step->data() + step->size(), number).ec != std::errc()) return false;
  if (number >= 0xffff'fff0) return false;  // Slurm's numbers for batch scripts and interactive steps
  if (environment("TORCHELASTIC_RUN_ID") || environment("HYDI_CONTROL_FD")) return false;
  const auto space = environment("PMIX_NAMESPACE");  // srun's own PMIx plugin calls it slurm.*
  return !(environment("OMPI_COMM_WORLD_RANK") && space && !space->starts_with("slurm"));
}

inline bool present(const LauncherVariables& one) {
  if (std::string_view(one.launcher) == "Slurm") return inside_srun();
  return environment(one.rank) || environment(one.size);
}

/// "12@5678 pid:[4026531836]": a process, the moment it started, the namespace that numbers it. Each alone repeats:
/// numbers are used again, and containers that share a network count from 1 and start in the same hundredth of a
/// second.
inline std::string process_key(pid_t process) {
  std::string key = std::to_string(process);
  std::ifstream file("/proc/" + key + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::size_t at = text.rfind(')');  // the program's name before it may hold spaces
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = text.find(' ', at + 1);
  if (at != std::string::npos) key += "@" + text.substr(at + 1, text.find(' ', at + 1) - at - 1);
  std::array<char, 64> space{};
  if (::readlink("/proc/self/ns/pid", space.data(), space.size() - 1) > 0) key += " " + std::string(space.data());
  return key;
}

/// What is the same for all ranks that one launcher process started, even through a wrapper script: the process at the
/// other end of Hydra's control socket; else the parent.
inline std::string parent_key() {
  if (const auto socket = environment_integer("PMI_FD", 0, 1 << 20)) {
    ucred owner{};
    socklen_t length = sizeof(owner);
    if (::getsockopt(static_cast<int>(*socket), SOL_SOCKET, SO_PEERCRED, &owner, &length) == 0 && owner.pid > 0) {
      return process_key(owner.pid);
    }
  }
  return process_key(::getppid());
}

inline std::string job_name(const LauncherVariables& one) {
  const std::string_view launcher = one.launcher;
  if (launcher == "torchrun" && environment("MASTER_PORT")) {
    std::string name = "torchrun";
    for (const char* const part : {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}) {
      name += ':';  // not ":" + ..., of which g++ 12 warns falsely at -O3 (-Wrestrict)
      name += environment(part).value_or("");
    }
    return name;
  }
  if (launcher == "Open MPI") {
    for (const char* const part : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
      if (const auto value = environment(part)) return "openmpi:" + *value;
    }
  }
  if (launcher == "MPICH") {
    if (const auto value = environment("PMI_JOBID")) return "pmi:" + *value;
  }
  if (launcher == "Slurm") {
    return "slurm:" + environment("SLURM_JOB_ID").value_or("") + "." + environment("SLURM_STEP_ID").value_or("");
  }
  return "started by " + parent_key();
}

/// This host's entry of Slurm's list of tasks per host, "2(x3),1".
inline std::optional<std::int64_t> slurm_local_size() {
  auto list = environment("SLURM_STEP_TASKS_PER_NODE");
  if (!list) list = environment("SLURM_TASKS_PER_NODE");
  if (!list) return std::nullopt;
  std::int64_t host = environment_integer("SLURM_NODEID", 0, 1 << 20).value_or(0);
  const char* at = list->data();
  const char* const end = at + list->size();
  while (at < end) {
    std::int64_t tasks = 0;
    std::int64_t repeats = 1;
    auto parsed = std::from_chars(at, end, tasks);
    if (parsed.ec != std::errc()) return std::nullopt;
    at = parsed.ptr;
    if (end - at > 2 && at[0] == '(' && at[1] == 'x') {
      parsed = std::from_chars(at + 2, end, repeats);
      if (parsed.ec != std::errc() || parsed.ptr == end || *parsed.ptr != ')') return std::nullopt;
      at = parsed.ptr + 1;
    }
    if (host < repeats) return tasks;
    host -= repeats;
    if (at < end && *at++ != ',') return std::nullopt;
  }
  return std::nullopt;
}

/// One number and the variable that gave it; a second source must agree.
class AgreedNumber {
 public:
  explicit AgreedNumber(const char* meaning) : meaning_(meaning) {}

  void read(const char* variable, std::int64_t least, std::int64_t most) {
    const auto value = environment_integer(variable, least, most);
    if (!value) return;
    if (variable_ == nullptr) {
      variable_ = variable;
      value_ = *value;
    } else if (*value != value_) {
      throw Error(ErrorKind::environment, "tandem: " + text() + " but " + variable + "=" + std::to_string(*value) +
                                              ": two launchers disagree about the " + meaning_ +
                                              "; unset the variables of the one that did not start this process");
    }
  }
  bool known() const noexcept { return variable_ != nullptr; }
  int value_or(int other) const noexcept { return known() ? static_cast<int>(value_) : other; }
  std::string text() const { return std::string(variable_) + "=" + std::to_string(value_); }

 private:
  const char* meaning_;
  const char* variable_ = nullptr;
  std::int64_t value_ = 0;
};

inline void require_below(const AgreedNumber& rank, const AgreedNumber& size) {
  if (!rank.known() || !size.known() || rank.value_or(0) < size.value_or(0)) return;
  throw Error(ErrorKind::environment,
              "tandem: " + rank.text() + " is not below " + size.text() + "; ranks count from 0");
}

}  // namespace detail

/// True when a launcher started this process: then the program joins, else it may spawn() its own ranks.
inline bool launched() {
  for (const auto& one : detail::launchers) {
    if (detail::present(one)) return true;
  }
  return false;
}

/// Reads TANDEM_*, torchrun's, Open MPI's, MPICH's (also Intel's) and, inside srun, Slurm's variables; without any of
/// them this process is alone. Throws Error(environment) for values that cannot be, for half an answer, and for two
/// launchers that disagree (naming both variables and values).
inline Identity identity_from_environment() {
  constexpr std::int64_t most = 1'000'000;
  Identity result;
  detail::AgreedNumber rank("rank");
  detail::AgreedNumber size("number of ranks");
  detail::AgreedNumber local_rank("rank on this host");
  detail::AgreedNumber local_size("number of ranks on this host");
  std::string name;
  for (const auto& one : detail::launchers) {
    if (!detail::present(one)) continue;
    const bool slurm = std::string_view(one.launcher) == "Slurm";
    // srun --preserve-env leaves the allocation's SLURM_NTASKS in place, while the step's own number is always right.
    const char* const size_variable = slurm && environment("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : one.size;
    for (const auto& [given, missing] : {std::pair(one.rank, size_variable), std::pair(size_variable, one.rank)}) {
      if (environment(missing)) continue;
      throw Error(ErrorKind::environment,
                  "tandem: " + std::string(missing) + " is not set, but " +
                      (environment(given) ? std::string(given) + "=" + *environment(given)
                                          : "SLURM_STEP_ID=" + environment("SLURM_STEP_ID").value_or("")) +
                      " is: set both, or neither to run alone");
    }
    rank.read(one.rank, 0, most - 1);
    size.read(size_variable, 1, most);
    local_rank.read(one.local_rank, 0, most - 1);
    if (one.local_size != nullptr) local_size.read(one.local_size, 1, most);
    if (result.source == "alone") result.source = one.launcher;
    // Ranks that a launcher started and that also have TANDEM_RANK are best named by the launcher.
    if (name.empty() || name.starts_with("started by")) name = detail::job_name(one);
  }
  detail::require_below(rank, size);
  detail::require_below(local_rank, local_size);
  detail::require_below(local_rank, size);
  result.rank = rank.value_or(0);
  result.size = size.value_or(1);
  result.local_rank = local_rank.value_or(result.rank);
  const auto slurm_here = detail::inside_srun() ? detail::slurm_local_size() : std::nullopt;
  result.local_size = local_size.value_or(static_cast<int>(slurm_here.value_or(result.size)));
  result.local_size_known = local_size.known() || slurm_here.has_value() || result.source == "alone";
  if (result.local_size > result.size || result.local_rank >= result.local_size) {
    throw Error(ErrorKind::environment, "tandem: rank " + std::to_string(result.local_rank) + " of " +
                                            std::to_string(result.local_size) + " on this host does not fit rank " +
                                            std::to_string(result.rank) + " of " + std::to_string(result.size) +
                                            " (variables of " + result.source + ")");
  }
  result.rendezvous = environment("TANDEM_RENDEZVOUS").value_or(name.empty() ? "alone" : name);
  return result;
}

}  // namespace tandem
