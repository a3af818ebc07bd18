#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a benchmark at 2 and 3 ranks and checks its rows: exact keys, plausible numbers, nothing wrong, all peers there.

smoke.py PROGRAM [options of the program]
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile

here = os.path.dirname(os.path.abspath(__file__))
spec = importlib.util.spec_from_file_location("table", os.path.join(here, "..", "..", "benchmarks", "table.py"))
table = importlib.util.module_from_spec(spec)
spec.loader.exec_module(table)


def rows_of(program, ranks, options, folder):
    path = os.path.join(folder, f"rows{ranks}.json")
    subprocess.run([program, "--ranks", str(ranks), "--json", path, *options], check=True, stdout=subprocess.DEVNULL)
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def check_collectives(rows, ranks):
    cases = {}
    for row in rows:
        assert list(row) == table.COLLECTIVE_KEYS, f"keys are {list(row)}"
        assert row["ranks"] == ranks and row["wrong"] == 0, f"wrong: {row}"
        assert 0 < row["median_us"] <= row["p99_us"] and row["ratio"] > 0, f"times: {row}"
        if row["verb"] != "barrier":
            assert row["algbw_gbs"] > 0 and row["busbw_gbs"] > 0 and row["bound_percent"] > 0, f"rates: {row}"
        cases.setdefault((row["verb"], row["dtype"], row["bytes"], row["registered"]), set()).add(row["peer"])
    verbs = {case[0] for case in cases}
    expected = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier"} | ({"send"} if ranks % 2 == 0 else set())
    assert verbs == expected, f"verbs are {sorted(verbs)}"
    for case, peers in cases.items():
        assert {"tandem", "gloo"} <= peers, f"{case} has only {sorted(peers)}"
        if case[:2] == ("all_reduce", "float32"):
            assert "prototype" in peers, f"{case} has no prototype"


def check_step(rows, ranks):
    cases = {}
    for row in rows:
        assert list(row) == table.STEP_KEYS, f"keys are {list(row)}"
        assert row["ranks"] == ranks and row["weights_differing"] == 0, f"weights differ: {row}"
        assert 0 < row["median_ms"] <= row["p99_ms"] and row["ratio"] > 0, f"times: {row}"
        cases.setdefault(row["model"], set()).add(row["peer"])
    assert cases and all(peers == {"tandem", "c10d", "alone"} for peers in cases.values()), f"peers are {cases}"


def main():
    program, options = sys.argv[1], sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (2, 3):
            # Another dtype at 3 ranks: each side of the harness once, in half the time.
            dtype = ["--dtypes", "bfloat16"] if ranks == 3 and program.endswith("collectives") else []
            rows = rows_of(program, ranks, options + dtype, folder)
            (check_collectives if "verb" in rows[0] else check_step)(rows, ranks)
            path = os.path.join(folder, f"rows{ranks}.json")
            made = subprocess.run([sys.executable, table.__file__, path], check=True, capture_output=True, text=True).stdout
            assert made.count("|") > 20, "no table came out"
    return 0


if __name__ == "__main__":
    sys.exit(main())
