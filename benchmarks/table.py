#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns the rows of scripts/bench into Markdown tables, and writes down the circumstances of a run."""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bars  # noqa: E402
import step_bars  # noqa: E402

COLLECTIVE_KEYS = ["peer", "transport", "verb", "dtype", "ranks", "bytes", "registered", "median_us", "p99_us",
                   "algbw_gbs", "busbw_gbs", "bound_percent", "wrong", "ratio"]
STEP_KEYS = ["mode", "model", "parameters", "batch", "ranks", "median_ms", "p99_ms", "exposed_ms", "exposed_share",
             "rate", "weights_differing"]
MEMORY_KEYS = ["mode", "parameters", "ranks", "parameter_bytes", "gradient_bytes", "optimizer_bytes", "room_bytes",
               "under_way_bytes", "predicted_bytes", "measured_bytes", "anonymous_bytes", "shared_bytes", "malloc_bytes", "peak_bytes",
               "first_peak_bytes"]


def size(count):
    for unit, name in ((1 << 20, "MB"), (1 << 10, "KB")):
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} B"


def number(value):
    """Three digits that mean something."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join(["---:"] * len(head)) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


TRANSPORTS = {"shm": "ShmRing", "tcp": "Tcp"}
MPIS = {"openmpi": "Open MPI", "mpich": "MPICH", "intelmpi": "Intel MPI"}
OTHERS = {"prototype": "prototype", "gloo": "gloo"}


def collectives(rows):
    """One table per (transport, verb, dtype, ranks): a line per size and kind of buffer, a column per peer."""
    parts = []
    groups = {}
    for row in rows:
        groups.setdefault((row["transport"], row["verb"], row["dtype"], row["ranks"]), []).append(row)
    for (transport, verb, dtype, ranks), group in groups.items():
        cases = {}
        for row in group:
            cases.setdefault((row["bytes"], row["registered"]), {})[row["peer"]] = row
        here = {row["peer"] for row in group}
        mpis = {peer: name for peer, name in MPIS.items() if peer in here}
        others = {peer: name for peer, name in OTHERS.items() if peer in here}
        kinds = transport == "shm" and verb != "barrier"
        bound = "copy" in here
        head = ["bytes"] + ["buffers"] * kinds + ["tandem, us", "p99", "GB/s bus"] + ["% of bound"] * bound
        head += [f"{name}, us" for name in [*mpis.values(), *others.values()]]
        head += ["x best MPI"] * bool(mpis) + [f"x {name}" for name in others.values()]
        lines = []
        for (count, registered), found in sorted(cases.items(), key=lambda case: (case[0][0], not case[0][1])):
            own = found.get("tandem")
            if own is None:
                continue
            line = [size(count)] + ["arena" if registered else "any"] * kinds
            line += [number(own["median_us"]), number(own["p99_us"]), number(own["busbw_gbs"])]
            line += [f"{own['bound_percent']:.0f}"] * bound
            line += [number(found[peer]["median_us"]) if peer in found else "-" for peer in [*mpis, *others]]
            if mpis:
                line.append(number(min((found[peer]["ratio"] for peer in mpis if peer in found), default=0)))
            line += [number(found[peer]["ratio"]) if peer in found else "-" for peer in others]
            lines.append(line)
        wrong = sum(row["wrong"] for row in group)
        parts.append(f"**{verb} over {TRANSPORTS[transport]}, {dtype}, {ranks} ranks** (wrong elements: {wrong})\n\n"
                     f"{table(head, lines)}")
    return parts


def mode_name(mode):
    """"zero2-shared" as people write it."""
    strategy, _, how = mode.partition("-")
    if strategy == "c10d":
        return "c10d + gloo"
    if strategy == "fsdp2":
        return "`Zero<3, reference::fsdp2>`"
    name = strategy if strategy == "alone" else "`Ddp<>`" if strategy == "ddp" else f"`Zero<{strategy[-1]}>`"
    return name + {"shared": ", shared", "apart": ", apart", "tcp": ", Tcp"}.get(how, "")


def steps(rows):
    """One table per (model, batch, ranks): a line per mode."""
    groups = {}
    for row in rows:
        groups.setdefault((row["model"], row["parameters"], row["batch"], row["ranks"]), []).append(row)
    head = ["mode", "median, ms", "p99, ms", "exposed, ms", "% of c10d's exposed", "x c10d's rate", "weights differing"]
    parts = []
    for (model, parameters, batch, ranks), group in groups.items():
        lines = []
        for row in group:
            share = row["exposed_share"]
            lines.append([mode_name(row["mode"]), number(row["median_ms"]), number(row["p99_ms"]),
                          f"{row['exposed_ms']:.2f}", "-" if share is None else f"{100 * share:.0f}",
                          number(row["rate"]), "-" if row["weights_differing"] is None else str(row["weights_differing"])])
        parts.append(f"**{model}, {parameters:,} parameters, batch {batch} per rank, {ranks} ranks**\n\n"
                     f"{table(head, lines)}")
    return parts


def memory(rows):
    """One table per (parameters, ranks): a line per mode, all in bytes per parameter and rank."""
    groups = {}
    for row in rows:
        groups.setdefault((row["parameters"], row["ranks"]), []).append(row)
    head = ["mode", "parameters", "gradients", "optimizer", "room", "predicted", "measured", "off, %",
            "under way", "free in malloc", "most in the first backward", "most in a later one"]
    parts = []
    for (parameters, ranks), group in groups.items():
        lines = []
        for row in group:
            each = {key: f"{row[key] / parameters:.2f}" for key in MEMORY_KEYS if key.endswith("_bytes")}
            lines.append([mode_name(row["mode"]), each["parameter_bytes"], each["gradient_bytes"],
                          each["optimizer_bytes"], each["room_bytes"], each["predicted_bytes"],
                          each["measured_bytes"], f"{100 * (row['measured_bytes'] / row['predicted_bytes'] - 1):+.1f}",
                          each["under_way_bytes"], each["malloc_bytes"], each["first_peak_bytes"], each["peak_bytes"]])
        parts.append(f"**{parameters:,} parameters, {ranks} ranks, bytes per parameter and rank**\n\n"
                     f"{table(head, lines)}")
    return parts


def summary(rows):
    """What a README has room for: one dtype, 2 ranks, a handful of sizes, fp32 all-reduce."""
    find = {(row["bytes"], row["registered"], row["peer"]): row for row in rows
            if (row["transport"], row["verb"], row["dtype"], row["ranks"]) == ("shm", "all_reduce", "float32", 2)}
    lines = []
    for count in (8, 1 << 10, 16 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20):
        found = [find.get((count, kind, peer)) for kind, peer in
                 ((True, "gloo"), (True, "tandem"), (False, "gloo"), (False, "tandem"))]
        if None in found:
            continue
        gloo, registered, gloo_again, private = found
        line = [size(count)]
        for own, peer in ((private, gloo_again), (registered, gloo)):
            ratio = peer["ratio"]
            line += [f"{number(own['median_us'])} us", f"{number(peer['median_us'])} us",
                     f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.1f}x"]
        lines.append(line)
    head = ["all_reduce, fp32, 2 ranks", "tandem, any buffer", "gloo beside it", "ratio",
            "tandem, arena buffer", "gloo beside it", "ratio"]
    return [table(head, lines)] if lines else []


def replace_in(path, name, text):
    """Puts `text` between <!-- begin NAME --> and <!-- end NAME -->; says whether the page has such a place."""
    with open(path, encoding="utf-8") as file:
        page = file.read()
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    if begin not in page or end not in page:
        return False
    head, rest = page.split(begin, 1)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{head}{begin}\n{text}\n{end}{rest.split(end, 1)[1]}")
    return True


def read(paths):
    rows = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.strip():
                    rows.append(json.loads(line))
    return rows


def describe(arguments):
    cpu = platform.machine()
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        found = re.search(r"^model name\s*:\s*(.*)$", file.read(), re.M)
    if found:
        cpu = found.group(1)
    compiler = subprocess.run([arguments.compiler, "--version"], capture_output=True, text=True, check=False)
    version = "unknown"
    for header in ("include/torch/headeronly/version.h", "include/torch/csrc/api/include/torch/version.h"):
        path = os.path.join(arguments.libtorch, header)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                numbers = re.findall(r"^#define TORCH_VERSION_(?:MAJOR|MINOR|PATCH) +(\d+)", file.read(), re.M)
            if len(numbers) == 3:
                version = ".".join(numbers)
                break
    with open("/proc/loadavg", encoding="utf-8") as file:
        load_after = file.read().split()[0]
    versions = "".join(f"{version}; " for version in arguments.peer)
    return (f"{time.strftime('%Y-%m-%d')}; {cpu}, {len(os.sched_getaffinity(0))} processors; Linux {platform.release()}; "
            f"{(compiler.stdout.splitlines() or ['unknown compiler'])[0]}; libtorch {version}; {versions}"
            f"load {arguments.load_before} before, {load_after} after")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help="files of rows, one JSON object per line")
    parser.add_argument("--circumstances", help="file whose text goes below the tables")
    parser.add_argument("--into", action="append", default=[], metavar="PAGE",
                        help="put the tables into this page, between its <!-- begin NAME --> and <!-- end NAME -->: "
                             "summary, ranges, bars, all_reduce, verbs, tcp, step, memory")
    parser.add_argument("--check", action="store_true", help="only check keys and results; for tests")
    parser.add_argument("--describe", action="store_true", help="only print the circumstances")
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--libtorch", default="")
    parser.add_argument("--peer", action="append", default=[], help="name and version of what else was compared with")
    parser.add_argument("--load-before", default="?")
    arguments = parser.parse_args()
    if arguments.describe:
        print(describe(arguments))
        return 0
    try:
        rows = read(arguments.rows)
    except (OSError, json.JSONDecodeError) as fault:
        print(f"table: {fault}", file=sys.stderr)
        return 2
    if not rows:
        print("table: no rows", file=sys.stderr)
        return 2
    for row in rows:
        if list(row) not in (COLLECTIVE_KEYS, STEP_KEYS, MEMORY_KEYS):
            print(f"table: a row has other keys: {list(row)}", file=sys.stderr)
            return 2
    bad = [row for row in rows if row.get("wrong", 0) or row.get("weights_differing", 0)]
    if arguments.check:
        for row in bad:
            print(f"table: wrong: {row}", file=sys.stderr)
        return 1 if bad else 0
    calls = [row for row in rows if "verb" in row]
    training = [row for row in rows if "model" in row]
    held = [row for row in rows if "measured_bytes" in row]
    notes = []
    if arguments.circumstances:
        with open(arguments.circumstances, encoding="utf-8") as file:
            notes = [file.read().strip()]
    if arguments.into:
        shm = [row for row in calls if row["transport"] == "shm"]
        tables = {"summary": summary(calls),
                  "ranges": bars.ranges(calls, table),
                  "bars": bars.aims(calls, table, size),
                  "all_reduce": collectives([row for row in shm if row["verb"] == "all_reduce"]),
                  "verbs": collectives([row for row in shm if row["verb"] != "all_reduce"]),
                  "tcp": collectives([row for row in calls if row["transport"] == "tcp"]),
                  "step": step_bars.aims(training, table, step_bars.of_steps) + steps(training),
                  "memory": step_bars.aims(held, table, step_bars.of_memory) + memory(held)}
        for page in arguments.into:
            done = [name for name, parts in tables.items()
                    if parts and replace_in(page, name, "\n\n".join(parts + notes))]
            print(f"{page}: {', '.join(done) or 'nothing'} replaced")
        return 0
    parts = bars.aims(calls, table, size) + collectives(calls)
    parts += step_bars.aims(training, table, step_bars.of_steps) + steps(training)
    parts += step_bars.aims(held, table, step_bars.of_memory) + memory(held) + notes
    print("\n\n".join(parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
