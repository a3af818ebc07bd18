// SPDX-License-Identifier: Apache-2.0
// Who a process is, for the variables of every launcher and for their mixtures; what real launchers set is tested in
// tests/launchers.
#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "support/ranks.hpp"
#include "tandem/comm/identity.hpp"

using namespace tandem;

namespace {

/// Exactly these variables, of all that identity.hpp may read, while it lives; the test may itself run under a
/// launcher.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& wanted) {
    for (char** one = environ; *one != nullptr; ++one) {
      const std::string text = *one;
      const std::string name = text.substr(0, text.find('='));
      for (const char* const prefix : {"TANDEM_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "OMPI_",
                                       "PMIX_", "PMI_", "MPI_", "HYDI_", "SLURM_"}) {
        if (name.starts_with(prefix)) saved_.emplace_back(name, text.substr(name.size() + 1));
      }
    }
    for (const auto& [name, value] : saved_) ::unsetenv(name.c_str());
    for (const auto& [name, value] : wanted) {
      ::setenv(name.c_str(), value.c_str(), 1);
      set_.push_back(name);
    }
  }
  ~Environment() {
    for (const std::string& name : set_) ::unsetenv(name.c_str());
    for (const auto& [name, value] : saved_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::vector<std::pair<std::string, std::string>> saved_;
  std::vector<std::string> set_;
};

using Variables = std::map<std::string, std::string>;

Identity identity_for(const Variables& variables) {
  const Environment environment(variables);
  CHECK(launched() == !variables.empty());
  return identity_from_environment();
}

std::string refusal_for(const Variables& variables) {
  const Environment environment(variables);
  try {
    identity_from_environment();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::environment);
    return error.what();
  }
  return "nothing was thrown";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void check_place(const Identity& identity, int rank, int size, int local_rank, int local_size,
                 const std::string& source) {
  CHECK(identity.rank == rank);
  CHECK(identity.size == size);
  CHECK(identity.local_rank == local_rank);
  CHECK(identity.local_size == local_size);
  CHECK(identity.source == source);
}

const Variables torchrun{{"RANK", "5"},
                         {"WORLD_SIZE", "8"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "4"},
                         {"MASTER_ADDR", "node0"},
                         {"MASTER_PORT", "29500"},
                         {"TORCHELASTIC_RUN_ID", "none"},
                         {"TORCHELASTIC_RESTART_COUNT", "0"}};
const Variables open_mpi{{"OMPI_COMM_WORLD_RANK", "2"},       {"OMPI_COMM_WORLD_SIZE", "3"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                         {"PMIX_NAMESPACE", "1899036673"},    {"OMPI_MCA_ess_base_jobid", "1899036673"}};
const Variables mpich{{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Variables slurm{{"SLURM_PROCID", "5"},
                      {"SLURM_NTASKS", "7"},
                      {"SLURM_LOCALID", "1"},
                      {"SLURM_STEP_ID", "0"},
                      {"SLURM_JOB_ID", "42"},
                      {"SLURM_NODEID", "2"},
                      {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"}};
const Variables by_hand{{"TANDEM_RANK", "1"}, {"TANDEM_SIZE", "2"}};

Variables operator+(Variables left, const Variables& right) {
  for (const auto& [name, value] : right) left[name] = value;
  return left;
}

}  // namespace

TEST_CASE("without a launcher a process is alone") { check_place(identity_for({}), 0, 1, 0, 1, "alone"); }

TEST_CASE("each launcher's variables say who a process is") {
  check_place(identity_for(torchrun), 5, 8, 1, 4, "torchrun");
  check_place(identity_for(open_mpi), 2, 3, 2, 3, "Open MPI");
  check_place(identity_for(mpich), 1, 4, 1, 2, "MPICH");
  check_place(identity_for(slurm), 5, 7, 1, 2, "Slurm");
  check_place(identity_for(by_hand), 1, 2, 1, 2, "TANDEM_RANK");
  check_place(identity_for(by_hand + Variables{{"TANDEM_LOCAL_RANK", "0"}, {"TANDEM_LOCAL_SIZE", "1"}}), 1, 2, 0, 1,
              "TANDEM_RANK");
}

TEST_CASE("Slurm's list of tasks per host") {
  const auto here = [](const std::string& list, const std::string& host, const std::string& local_rank) {
    return identity_for(slurm + Variables{{"SLURM_STEP_TASKS_PER_NODE", list},
                                          {"SLURM_NODEID", host},
                                          {"SLURM_LOCALID", local_rank}})
        .local_size;
  };
  CHECK(here("7", "0", "5") == 7);
  CHECK(here("2(x3),1", "0", "1") == 2);
  CHECK(here("2(x3),1", "3", "0") == 1);
  CHECK(here("1,2,3,1", "2", "1") == 3);
  CHECK(here("1(x2),5", "2", "4") == 5);
  for (const char* const odd : {"x", "2(", "2(x", "2(x3", "2(xx)", ",", "1;2", "1(x2)3"}) {
    CAPTURE(odd);
    CHECK(here(odd, "3", "1") == 7);  // unknown: taken to be all
  }
}

TEST_CASE("Slurm counts only inside srun") {
  Variables batch = slurm;  // what a batch script sees
  batch.erase("SLURM_STEP_ID");
  {
    const Environment environment(batch);
    CHECK(!launched());
    CHECK(identity_from_environment().size == 1);
  }
  batch["SLURM_STEP_ID"] = "4294967291";
  {
    const Environment environment(batch);
    CHECK(!launched());
  }
  // srun --preserve-env: the allocation's size stays, the step's own is right.
  CHECK(identity_for(slurm + Variables{{"SLURM_NTASKS", "64"}, {"SLURM_STEP_NUM_TASKS", "7"}}).size == 7);
}

TEST_CASE("launchers that Slurm started leave its variables over, which then count for nothing") {
  const Variables outer{{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_ID", "42"}};
  check_place(identity_for(outer + torchrun), 5, 8, 1, 4, "torchrun");
  check_place(identity_for(outer + open_mpi), 2, 3, 2, 3, "Open MPI");
  check_place(identity_for(outer + mpich + Variables{{"HYDI_CONTROL_FD", "7"}}), 1, 4, 1, 2, "MPICH");
}

TEST_CASE("launchers that agree are fine") {
  // srun with the PMI-2 and PMIx plugins, and a wrapper that sets TANDEM_* from what it finds.
  check_place(identity_for(slurm + Variables{{"PMI_RANK", "5"}, {"PMI_SIZE", "7"}, {"PMI_JOBID", "42.0"}}), 5, 7, 1, 2,
              "MPICH");
  const Identity both = identity_for(open_mpi + Variables{{"TANDEM_RANK", "2"}, {"TANDEM_SIZE", "3"}});
  check_place(both, 2, 3, 2, 3, "TANDEM_RANK");
  CHECK(both.rendezvous == identity_for(open_mpi).rendezvous);
}

TEST_CASE("launchers that disagree are both named, with both values") {
  const std::string ranks = refusal_for(torchrun + Variables{{"TANDEM_RANK", "4"}, {"TANDEM_SIZE", "8"}});
  CHECK(contains(ranks, "TANDEM_RANK=4"));
  CHECK(contains(ranks, "RANK=5"));
  CHECK(contains(ranks, "disagree about the rank"));
  const std::string sizes = refusal_for(open_mpi + Variables{{"RANK", "2"}, {"WORLD_SIZE", "4"}});
  CHECK(contains(sizes, "WORLD_SIZE=4"));
  CHECK(contains(sizes, "OMPI_COMM_WORLD_SIZE=3"));
  CHECK(contains(sizes, "number of ranks"));
  const std::string local = refusal_for(open_mpi + Variables{{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"LOCAL_RANK", "1"}});
  CHECK(contains(local, "LOCAL_RANK=1"));
  CHECK(contains(local, "OMPI_COMM_WORLD_LOCAL_RANK=2"));
  const std::string with_slurm = refusal_for(slurm + Variables{{"RANK", "5"}, {"WORLD_SIZE", "8"}});
  CHECK(contains(with_slurm, "WORLD_SIZE=8"));
  CHECK(contains(with_slurm, "SLURM_NTASKS=7"));
  CHECK(contains(refusal_for(mpich + by_hand), "TANDEM_SIZE=2"));
}

TEST_CASE("half an answer names what is missing") {
  CHECK(contains(refusal_for({{"TANDEM_RANK", "1"}}), "TANDEM_SIZE is not set, but TANDEM_RANK=1 is"));
  CHECK(contains(refusal_for({{"TANDEM_SIZE", "2"}}), "TANDEM_RANK is not set, but TANDEM_SIZE=2 is"));
  CHECK(contains(refusal_for({{"WORLD_SIZE", "2"}}), "RANK is not set"));
  CHECK(contains(refusal_for({{"OMPI_COMM_WORLD_RANK", "0"}}), "OMPI_COMM_WORLD_SIZE is not set"));
  CHECK(contains(refusal_for({{"PMI_SIZE", "2"}}), "PMI_RANK is not set"));
  CHECK(contains(refusal_for({{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}}), "SLURM_NTASKS is not set"));
  CHECK(contains(refusal_for({{"TANDEM_RANK", "1"}, {"TANDEM_SIZE", ""}}), "TANDEM_SIZE is not set"));
}

TEST_CASE("values that cannot be are quoted") {
  for (const char* const bad : {"x", "-1", "1.5", " 1", "1 ", "0x1", "99999999999999999999", "1000000"}) {
    CAPTURE(bad);
    const std::string text = refusal_for({{"TANDEM_RANK", bad}, {"TANDEM_SIZE", "2"}});
    CHECK(contains(text, "TANDEM_RANK=\"" + std::string(bad) + "\""));
  }
  for (const char* const bad : {"0", "-2", "two", "1000001"}) {
    CAPTURE(bad);
    CHECK(contains(refusal_for({{"RANK", "0"}, {"WORLD_SIZE", bad}}), "WORLD_SIZE=\"" + std::string(bad) + "\""));
  }
  CHECK(
      contains(refusal_for({{"TANDEM_RANK", "2"}, {"TANDEM_SIZE", "2"}}), "TANDEM_RANK=2 is not below TANDEM_SIZE=2"));
  CHECK(contains(refusal_for(by_hand + Variables{{"TANDEM_LOCAL_RANK", "3"}, {"TANDEM_LOCAL_SIZE", "2"}}),
                 "TANDEM_LOCAL_RANK=3 is not below TANDEM_LOCAL_SIZE=2"));
  CHECK(contains(refusal_for(by_hand + Variables{{"TANDEM_LOCAL_SIZE", "4"}}), "does not fit"));
}

TEST_CASE("TANDEM_RENDEZVOUS is taken as it is, whoever says the rank") {
  for (const Variables& launcher : {torchrun, open_mpi, mpich, slurm, by_hand}) {
    CHECK(identity_for(launcher + Variables{{"TANDEM_RENDEZVOUS", "a name / of 世界"}}).rendezvous ==
          "a name / of 世界");
  }
}

TEST_CASE("ranks of one job share the rendezvous, jobs on one host do not") {
  const auto place = [](const Variables& base, const Variables& change) {
    return identity_for(base + change).rendezvous;
  };
  CHECK(place(torchrun, {{"RANK", "4"}, {"LOCAL_RANK", "0"}}) == place(torchrun, {}));
  CHECK(place(torchrun, {{"MASTER_PORT", "29501"}}) != place(torchrun, {}));
  CHECK(place(torchrun, {{"TORCHELASTIC_RUN_ID", "job2"}}) != place(torchrun, {}));
  CHECK(place(torchrun, {{"TORCHELASTIC_RESTART_COUNT", "1"}}) != place(torchrun, {}));
  CHECK(place(open_mpi, {{"OMPI_COMM_WORLD_RANK", "0"}}) == place(open_mpi, {}));
  CHECK(place(open_mpi, {{"PMIX_NAMESPACE", "7"}}) != place(open_mpi, {}));
  CHECK(place(slurm, {{"SLURM_PROCID", "4"}}) == place(slurm, {}));
  CHECK(place(slurm, {{"SLURM_STEP_ID", "1"}}) != place(slurm, {}));
  CHECK(place(slurm, {{"SLURM_JOB_ID", "43"}}) != place(slurm, {}));
  CHECK(place(mpich, {{"PMI_RANK", "0"}}) == place(mpich, {}));
  CHECK(place(by_hand, {{"TANDEM_RANK", "0"}}) == place(by_hand, {}));

  Variables without_job = open_mpi;
  without_job.erase("PMIX_NAMESPACE");
  CHECK(place(without_job, {}) == place(open_mpi, {}));
}

TEST_CASE("without a job number, ranks with one parent meet") {
  // What a loop in a shell, or a test's harness, starts: the parent is all that they share.
  const std::string here = identity_for(by_hand).rendezvous;
  std::array<int, 2> pipe{};
  REQUIRE(::pipe(pipe.data()) == 0);
  test::on_ranks(2, [&](int) {
    const std::string name = identity_for(by_hand).rendezvous;
    CHECK(::write(pipe[1], name.data(), name.size()) == static_cast<ssize_t>(name.size()));
  });
  std::array<char, 512> text{};
  const ssize_t length = ::read(pipe[0], text.data(), text.size());
  ::close(pipe[0]);
  ::close(pipe[1]);
  REQUIRE(length > 0);
  REQUIRE(length % 2 == 0);
  const std::string both(text.data(), static_cast<std::size_t>(length));
  CHECK(both.substr(0, both.size() / 2) == both.substr(both.size() / 2));
  CHECK(both.substr(0, both.size() / 2) != here);  // this process has another parent
}

TEST_CASE("C028: process numbers alone are never a key") {
  const std::string own = detail::process_key(::getpid());
  CHECK(contains(own, std::to_string(::getpid()) + "@"));
  CHECK(own == detail::process_key(::getpid()));
  CHECK(contains(own, " pid:["));
  CHECK(contains(detail::process_key(1 << 30), std::to_string(1 << 30)));  // no such process: still a text
}

TEST_CASE("Hydra's control socket names the process at its other end") {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0);
  CHECK(contains(identity_for(mpich + Variables{{"PMI_FD", std::to_string(ends[0])}}).rendezvous,
                 detail::process_key(::getpid())));
  ::close(ends[0]);
  ::close(ends[1]);
  // A number that is no socket any more, as in a program that a rank started: the parent.
  CHECK(contains(identity_for(mpich + Variables{{"PMI_FD", std::to_string(ends[0])}}).rendezvous,
                 detail::process_key(::getppid())));
}
