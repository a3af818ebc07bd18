#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""launch.py LAUNCHER PROGRAM: ranks under a launcher find each other, jobs side by side do not, a dead rank ends a job."""
import os
import shutil
import signal
import subprocess
import sys

LIMIT = 60
KNOWN = ("TANDEM_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "OMPI_", "PMIX_", "PMI_", "MPI_",
         "HYDI_", "SLURM_")


def skip(reason):
    print("skipped: " + reason)
    sys.exit(77)


def clean_environment(**more):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(KNOWN)}
    environment.update(more)
    return environment


def start(command, **more):
    return subprocess.Popen(command, env=clean_environment(**more), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, start_new_session=True)


def finish(process):
    try:
        out, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        sys.exit("did not end in %d s: %s\n%s%s" % (LIMIT, process.args, out, err))
    return process.returncode, out, err


def check_job(process, ranks, source):
    status, out, err = finish(process)
    lines = sorted(line for line in out.splitlines() if line.startswith("met "))
    expected = sorted("met %d of %d by %s" % (rank, ranks, source) for rank in range(ranks))
    if status != 0 or lines != expected:
        sys.exit("%s\nended with %d and said\n%s%sexpected\n%s" % (process.args, status, out, err, "\n".join(expected)))


def check_launcher(command_for, source, program, **more):
    """command_for(ranks, words) is the launcher's command line."""
    for ranks in (1, 2, 3):
        check_job(start(command_for(ranks, [program]), **more), ranks, source)
    # Through a shell, as scripts do: the launcher is then no longer the parent of the rank.
    check_job(start(command_for(2, ["sh", "-c", '"$0"; exit $?', program]), **more), 2, source)
    jobs = [start(command_for(3, [program]), TEST_JOB="job%d" % job, **more) for job in range(2)]
    for job in jobs:
        check_job(job, 3, source)


def find(*names):
    for name in names:
        if shutil.which(name):
            return name
    skip("no " + " or ".join(names) + " in PATH")
    return None


def openmpi(program):
    launcher = find("mpirun.openmpi")
    command = [launcher, "--oversubscribe"]
    check_launcher(lambda ranks, words: command + ["-np", str(ranks)] + words, "Open MPI", program,
                   OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")


def mpich(program):
    launcher = find("mpiexec.hydra", "mpiexec.mpich")
    check_launcher(lambda ranks, words: [launcher, "-np", str(ranks)] + words, "MPICH", program)


def slurm(program):
    launcher = find("srun")
    probe = finish(start([launcher, "--immediate=5", "-n", "1", "true"]))
    if probe[0] != 0:
        skip("srun is installed but cannot run a job: " + probe[2].strip())
    check_launcher(lambda ranks, words: [launcher, "--overcommit", "-n", str(ranks)] + words, "Slurm", program)


def torchrun(program):
    """torchrun itself needs a Python torch; what it sets is taken from its documentation."""
    def job(port, name, ranks):
        return [start([program], RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank),
                      LOCAL_WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GROUP_RANK="0",
                      TORCHELASTIC_RUN_ID="none", TORCHELASTIC_RESTART_COUNT="0", TEST_JOB=name)
                for rank in range(ranks)]

    jobs = [job(29500, "first", 3), job(29501, "second", 2)]
    for processes in jobs:
        for rank, process in enumerate(processes):
            status, out, err = finish(process)
            if status != 0 or out != "met %d of %d by torchrun\n" % (rank, len(processes)):
                sys.exit("rank %d ended with %d and said\n%s%s" % (rank, status, out, err))


def containers(program):
    """C028: two jobs in process namespaces of their own have the same process numbers, and share the network."""
    launcher = find("unshare")
    command = [launcher, "-Urpf", "--mount-proc"]
    status, _, err = finish(start(command + ["true"]))
    if status != 0:
        skip("no permission for a process namespace: " + err.strip())
    jobs = [start(command + [program, "spawn", "3"], TEST_JOB="job%d" % job) for job in range(4)]
    for job in jobs:
        check_job(job, 3, "TANDEM_RANK")
    # By hand, from a shell that is process 1 in each, mostly started in the same clock tick.
    by_hand = "for rank in 0 1 2; do TANDEM_RANK=$rank TANDEM_SIZE=3 \"$0\" & done; wait"
    jobs = [start(command + ["sh", "-c", by_hand, program], TEST_JOB="job%d" % job) for job in range(2)]
    for job in jobs:
        check_job(job, 3, "TANDEM_RANK")


if __name__ == "__main__":
    {"openmpi": openmpi, "mpich": mpich, "slurm": slurm, "torchrun": torchrun, "containers": containers}[sys.argv[1]](
        os.path.abspath(sys.argv[2]))
