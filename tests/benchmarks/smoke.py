#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a benchmark at 2 and 3 ranks and checks its rows: exact keys, plausible numbers, nothing wrong, all peers there.
Of the MPIs those whose programs were built must be there; one of them that is killed must end the benchmark.

smoke.py PROGRAM [options of the program]
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

here = os.path.dirname(os.path.abspath(__file__))
spec = importlib.util.spec_from_file_location("table", os.path.join(here, "..", "..", "benchmarks", "table.py"))
table = importlib.util.module_from_spec(spec)
spec.loader.exec_module(table)


def rows_of(program, ranks, options, folder):
    path = os.path.join(folder, f"rows{ranks}.json")
    subprocess.run([program, "--ranks", str(ranks), "--json", path, *options], check=True, stdout=subprocess.DEVNULL)
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def mpis_beside(program):
    return {peer for peer in table.MPIS if os.path.exists(mpi_program(program, peer))}


def mpi_program(program, peer):
    return os.path.join(os.path.dirname(program), f"bench_mpi_{peer}")


def check_collectives(rows, ranks, mpis):
    cases = {}
    for row in rows:
        assert list(row) == table.COLLECTIVE_KEYS, f"keys are {list(row)}"
        assert row["ranks"] == ranks and row["wrong"] == 0, f"wrong: {row}"
        assert 0 < row["median_us"] <= row["p99_us"] and row["ratio"] > 0, f"times: {row}"
        if row["verb"] != "barrier":
            assert row["algbw_gbs"] > 0 and row["busbw_gbs"] > 0, f"rates: {row}"
            assert (row["bound_percent"] > 0) == (row["transport"] == "shm"), f"bound: {row}"
        case = (row["transport"], row["verb"], row["dtype"], row["bytes"], row["registered"])
        cases.setdefault(case, set()).add(row["peer"])
    expected = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "barrier"}
    expected |= {"send"} if ranks % 2 == 0 else set()
    for transport in table.TRANSPORTS:
        verbs = {case[1] for case in cases if case[0] == transport}
        assert verbs == expected, f"verbs over {transport} are {sorted(verbs)}"
    for case, peers in cases.items():
        transport, verb, dtype = case[:3]
        wanted = {"tandem", "gloo"}
        if transport == "shm":
            wanted |= {"copy"} if verb != "barrier" else set()
            wanted |= {"prototype"} if (verb, dtype) == ("all_reduce", "float32") else set()
            wanted |= mpis if dtype == "float32" or verb not in ("all_reduce", "reduce_scatter") else set()
        assert peers == wanted, f"{case} has {sorted(peers)}, not {sorted(wanted)}"


def processes_of(path):
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{process}/exe") == os.path.realpath(path):
                found.append(int(process))
        except OSError:
            pass  # ended, or somebody else's
    return found


def check_killed_guest(program, peer, folder):
    """A rank of an MPI is killed in the middle of a run that would last for minutes."""
    guests = mpi_program(program, peer)
    path = os.path.join(folder, f"{peer}.json")
    benchmark = subprocess.Popen([program, "--verbs", "barrier", "--transports", "shm", "--patience", "0.01", "--peers",
                                  peer, "--json", path, "--benchmark_repetitions=1000000"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not os.path.exists(path) or os.path.getsize(path) == 0:  # all are there and at work
            assert time.monotonic() < deadline and benchmark.poll() is None, f"no row with {peer}"
            time.sleep(0.05)
        os.kill(processes_of(guests)[-1], signal.SIGKILL)
        assert benchmark.wait(timeout=60) != 0, f"{peer} was killed, and the benchmark succeeded"
    finally:
        benchmark.kill()
        benchmark.wait()
    deadline = time.monotonic() + 20
    while left := processes_of(guests):
        assert time.monotonic() < deadline, f"left running: {left}"
        time.sleep(0.1)


def check_step(rows, ranks, _):
    cases = {}
    for row in rows:
        assert list(row) == table.STEP_KEYS, f"keys are {list(row)}"
        compared = row["mode"] not in ("fsdp2", "alone")
        assert row["ranks"] == ranks and row["weights_differing"] == (0 if compared else None), f"weights differ: {row}"
        assert 0 < row["median_ms"] <= row["p99_ms"] and row["rate"] > 0, f"times: {row}"
        cases.setdefault(row["model"], []).append(row)
    expected = {"ddp", "zero1", "zero1-shared", "zero2", "zero2-shared", "zero3", "zero3-apart", "fsdp2"}
    expected |= {"ddp-tcp", "zero2-tcp", "zero3-tcp", "c10d", "alone"}
    assert cases, "no rows"
    for model, group in cases.items():
        times = {row["mode"]: row["median_ms"] for row in group}
        assert set(times) == expected, f"modes of {model} are {sorted(times)}"
        for row in group:
            exposed = row["median_ms"] - times["alone"]
            assert abs(row["exposed_ms"] - exposed) < 1e-9, f"exposed: {row}"
            assert (row["exposed_share"] is None) == (times["c10d"] <= times["alone"]), f"share: {row}"


def check_memory(rows, ranks, _):
    assert {row["mode"] for row in rows} == {"zero2", "zero3", "zero3-apart", "fsdp2", "c10d", "alone"}, "modes that were asked for"
    for row in rows:
        assert list(row) == table.MEMORY_KEYS, f"keys are {list(row)}"
        parts = sum(row[f"{part}_bytes"] for part in ("parameter", "gradient", "optimizer", "room"))
        assert row["ranks"] == ranks and abs(parts - row["predicted_bytes"]) < 1, f"parts: {row}"
        # 8 MB of other things; what step 1 needs and later ones do not would be 40 MB.
        off = abs(row["measured_bytes"] - row["predicted_bytes"])
        assert off < 0.05 * row["predicted_bytes"] + (8 << 20), f"measured is not what is predicted: {row}"
        assert min(row["peak_bytes"], row["first_peak_bytes"]) > row["parameter_bytes"], f"peaks: {row}"


def main():
    program, options = sys.argv[1], sys.argv[2:]
    collectives = program.endswith("collectives")
    mpis = mpis_beside(program) if collectives else set()
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (2, 3):
            # Another dtype at 3 ranks: each side of the harness once, in half the time.
            dtype = ["--dtypes", "bfloat16" if ranks == 3 else "float32"] if collectives else []
            rows = rows_of(program, ranks, options + dtype, folder)
            check = check_collectives if collectives else check_memory if "--memory" in options else check_step
            check(rows, ranks, mpis)
            path = os.path.join(folder, f"rows{ranks}.json")
            made = subprocess.run([sys.executable, table.__file__, path], check=True, capture_output=True, text=True).stdout
            assert made.count("|") > 20, "no table came out"
            for peer in mpis:
                assert table.MPIS[peer] in made, f"{peer} is missing in the table"
        for peer in sorted(mpis):
            check_killed_guest(program, peer, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
