// SPDX-License-Identifier: Apache-2.0
// The MPIs as peers, seen from the benchmark: which there are, which of their programs were built, what they can do.
// Each MPI's own ways are in mpi.cpp.
#pragma once

#include <filesystem>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "harness/case.hpp"
#include "harness/job.hpp"
#include "harness/team.hpp"

namespace tandem::bench {

struct Mpi {
  const char* peer;
  const char* name;
  bool glacial_when_crowded;  ///< does not give a processor away, so that each call takes several time slices
};
constexpr Mpi all_mpis[] = {{"openmpi", "Open MPI", false}, {"mpich", "MPICH", true}, {"intelmpi", "Intel MPI", false}};
static_assert(std::size(all_mpis) < Team::most_groups);

/// No MPI here knows half-precision numbers: they can be moved, as bytes, but not added.
constexpr bool mpi_has(const Case& which) noexcept {
  return !reduces(which.verb) || (which.dtype != Dtype::float16 && which.dtype != Dtype::bfloat16);
}

/// The program built with this MPI, which lies beside this one; empty where the MPI was not found.
inline std::string program_of(const Mpi& mpi) {
  std::error_code fault;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", fault);
  const auto program = self.parent_path() / (std::string("bench_mpi_") + mpi.peer);
  return std::filesystem::exists(program, fault) ? program.string() : std::string();
}

/// Starts its ranks as a group of guests of the team.
inline Job start_mpi(const std::string& program, const Team& team, int group, bool pin) {
  return Job({program, "--launch", team.path(), std::to_string(group), std::to_string(team.ranks()), pin ? "1" : "0"});
}

}  // namespace tandem::bench
