// SPDX-License-Identifier: Apache-2.0
// One MPI as a peer: a rank that sleeps until the benchmark gives it a round, and times its calls as the benchmark's
// own ranks do. Built once with each MPI that is installed; also starts itself under that MPI's launcher.
//
//   bench_mpi_X --version
//   bench_mpi_X --launch TEAM GROUP RANKS PIN    (by the benchmark)
//   bench_mpi_X TEAM GROUP RANKS PIN             (by the launcher)
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "harness/case.hpp"
#include "harness/contest.hpp"
#include "harness/pattern.hpp"
#include "harness/team.hpp"
#include "harness/visit.hpp"

namespace tandem::bench {
namespace {

using Words = std::vector<std::string>;

bool is_crowded(int ranks) {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_COUNT(&allowed) < ranks;
}

// The launcher's options and variables: no binding of its own (ranks bind themselves, as the benchmark's do), root
// allowed as in a container, and where ranks outnumber processors what its documentation says of that. Nothing else.
Words launcher_options(int ranks) {
  const bool crowded = is_crowded(ranks);
#if defined(OPEN_MPI)
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  Words options = {"--oversubscribe", "--bind-to", "none"};
  if (crowded) options.insert(options.end(), {"--mca", "mpi_yield_when_idle", "1"});
  return options;
#elif defined(I_MPI_VERSION)
  setenv("I_MPI_ROOT", BENCH_MPI_ROOT, 1);
  setenv("I_MPI_PIN", "0", 1);
  if (crowded) {
    setenv("I_MPI_WAIT_MODE", "1", 1);
    setenv("I_MPI_THREAD_YIELD", "2", 1);
  }
  return {};
#else
  if (crowded) setenv("MPIR_CVAR_POLLS_BEFORE_YIELD", "1", 1);
  return {"-bind-to", "none"};
#endif
}

int launch(int argc, char** argv) {
  Words words = {BENCH_MPI_LAUNCHER};
  const std::string ranks = argv[4];
  for (const auto& option : launcher_options(std::stoi(ranks))) words.push_back(option);
  words.insert(words.end(), {"-n", ranks, argv[0]});
  for (int i = 2; i < argc; ++i) words.emplace_back(argv[i]);
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv(arguments[0], arguments.data());
  std::perror(arguments[0]);
  return 127;
}

template <Element T>
MPI_Datatype type_of() {
  if constexpr (std::is_same_v<T, float>) return MPI_FLOAT;
  if constexpr (std::is_same_v<T, double>) return MPI_DOUBLE;
  if constexpr (std::is_same_v<T, std::int8_t>) return MPI_INT8_T;
  if constexpr (std::is_same_v<T, std::uint8_t>) return MPI_UINT8_T;
  if constexpr (std::is_same_v<T, std::int32_t>) return MPI_INT32_T;
  if constexpr (std::is_same_v<T, std::int64_t>) return MPI_INT64_T;
  return MPI_BYTE;  // half-precision numbers are only moved
}

template <Element T>
std::function<void()> operation(const Case& which, int rank, std::byte* in, std::byte* out) {
  const MPI_Datatype type = type_of<T>();
  const std::size_t each = type == MPI_BYTE ? sizeof(T) : 1;
  const int count = static_cast<int>(which.count * each);
  const int slice = static_cast<int>(which.count / static_cast<std::size_t>(which.ranks) * each);
  switch (which.verb) {
    case Verb::all_reduce:
      return [=] { MPI_Allreduce(MPI_IN_PLACE, in, count, type, MPI_SUM, MPI_COMM_WORLD); };
    case Verb::reduce_scatter:
      return [=] { MPI_Reduce_scatter_block(in, out, slice, type, MPI_SUM, MPI_COMM_WORLD); };
    case Verb::all_gather:
      return [=] { MPI_Allgather(in, slice, type, out, slice, type, MPI_COMM_WORLD); };
    case Verb::broadcast:
      return [=] { MPI_Bcast(in, count, type, 0, MPI_COMM_WORLD); };
    case Verb::all_to_all:
      return [=] { MPI_Alltoall(in, slice, type, out, slice, type, MPI_COMM_WORLD); };
    case Verb::send:
      return [=] {
        if (rank % 2 == 0)
          MPI_Send(in, count, type, rank + 1, 0, MPI_COMM_WORLD);
        else
          MPI_Recv(in, count, type, rank - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      };
    case Verb::barrier:
      return [] { MPI_Barrier(MPI_COMM_WORLD); };
  }
  return {};
}

/// Serves the benchmark until it needs nothing more.
void serve(Team& team) {
  Guest guest(team);
  std::vector<std::byte> input;
  std::vector<std::byte> output;
  std::uint64_t turns = 0;
  for (Errand errand = guest.next(); !errand.last; errand = guest.next()) {
    if (errand.room > input.size()) {
      input.resize(errand.room);
      output.resize(errand.room);
    }
    const Case& which = errand.which;
    const std::uint64_t wrong = visit_number(which.dtype, [&]<class T>(T) {
      static Pattern<T> pattern;
      Entry entry;
      entry.input = which.verb == Verb::barrier ? nullptr : input.data();
      entry.output = works_in_place(which.verb) ? input.data() : output.data();
      entry.operate = operation<T>(which, team.rank(), input.data(), output.data());
      return run_block<T>(team, pattern, which, entry, errand.calls, errand.warm_up, errand.place, turns);
    });
    guest.answer(errand, wrong);
  }
}

int print_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);  // allowed before MPI_Init
  std::string version(text.data());  // a line or more, with build options behind a comma, or a tab after a label
  version.resize(std::min(version.find_first_of(",\n"), version.size()));
  std::replace(version.begin(), version.end(), '\t', ' ');
  std::printf("%s\n", version.c_str());
  return 0;
}

int serve_as_rank(char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // of the launcher's process here
  MPI_Init(nullptr, nullptr);
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  try {
    if (ranks != std::stoi(argv[3]))
      throw std::runtime_error("the launcher started " + std::to_string(ranks) + " ranks");
    Team team(argv[1], std::stoi(argv[2]), ranks);
    team.enter(rank);
    if (std::string_view(argv[4]) == "1") team.pin();
    serve(team);
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "%s: %s\n", argv[0], fault.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (argc == 2 && first == "--version") return tandem::bench::print_version();
  if (argc == 6 && first == "--launch") return tandem::bench::launch(argc, argv);
  if (argc == 5) return tandem::bench::serve_as_rank(argv);
  std::fprintf(stderr, "%s: for bench_collectives, which starts it\n", argv[0]);
  return 2;
}
