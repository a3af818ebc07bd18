# SPDX-License-Identifier: Apache-2.0
"""What tandem's collectives aim at beside their peers, and how much of it a run reached. Imported by table.py."""

MPIS = ("openmpi", "mpich", "intelmpi")
KB, MB = 1 << 10, 1 << 20
ALL_VERBS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "barrier")
MOST = 1 << 40
DTYPES = ("float32", "bfloat16")

# Words, transport, ranks, registered (None: there is one kind), verbs, sizes from and to, least ratio. "Within 10 %" of a
# peer is a ratio of 1 / 1.1.
BARS = (
    ("2 ranks, arena, every verb and size", "shm", 2, True, ALL_VERBS, 0, MOST, 1.0),
    ("2 ranks, arena, all_reduce and reduce_scatter, 1 to 64 KB", "shm", 2, True, ALL_VERBS[:2], KB, 64 * KB, 2.0),
    ("the same, from 1 MB", "shm", 2, True, ALL_VERBS[:2], MB, MOST, 3.0),
    ("2 ranks, arena, all_gather and broadcast from 16 KB", "shm", 2, True, ALL_VERBS[2:4], 16 * KB, MOST, 1.5),
    ("2 ranks, any, every verb and size", "shm", 2, False, ALL_VERBS, 0, MOST, 1 / 1.1),
    ("2 ranks, any, up to 64 KB", "shm", 2, False, ALL_VERBS, 0, 64 * KB, 1.5),
    ("4 ranks, arena, every verb and size", "shm", 4, True, ALL_VERBS, 0, MOST, 1.0),
    ("4 ranks, any, every verb and size", "shm", 4, False, ALL_VERBS, 0, MOST, 1.0),
    ("Tcp, up to 16 KB", "tcp", None, None, ALL_VERBS, 0, 16 * KB, 5.0),
    ("Tcp, 64 KB", "tcp", None, None, ALL_VERBS, 64 * KB, 64 * KB, 2.5),
    ("Tcp, 1 MB", "tcp", None, None, ALL_VERBS, MB, MB, 1.5),
    ("Tcp, from 16 MB", "tcp", None, None, ALL_VERBS, 16 * MB, MOST, 1.0),
)


def cases(rows, dtype):
    """{(transport, verb, ranks, bytes, registered): the fastest peer's time in tandem's}; the peers are the MPIs over
    shared memory and gloo over Tcp. (The MPIs do not add bfloat16: there are no such cases.)"""
    found = {}
    for row in rows:
        if row["dtype"] != dtype:
            continue
        if row["peer"] in (MPIS if row["transport"] == "shm" else ("gloo",)):
            key = (row["transport"], row["verb"], row["ranks"], row["bytes"], row["registered"])
            found[key] = min(found.get(key, row["ratio"]), row["ratio"])
    return found


def matches(bar, case):
    _, transport, ranks, registered, verbs, least, most, _ = bar
    kind = registered is None or case[4] == registered
    if case[1] == "barrier":  # has no buffers; it counts once, among the registered
        kind = registered is not False
    return (case[0] == transport and ranks in (None, case[2]) and kind and case[1] in verbs
            and least <= case[3] <= most)


def short_of(bar, found, size):
    """"all_gather 16 KB 1.09, 64 KB 1.12; broadcast 8 B 0.57", in the order of verbs and sizes."""
    parts = []
    for verb in ALL_VERBS:
        for ranks in sorted({case[2] for case in found}):
            missed = [(case[3], ratio) for case, ratio in found.items()
                      if case[1] == verb and case[2] == ranks and ratio < bar[7]]
            if missed:
                where = f"{verb}, {ranks} ranks" if bar[2] is None else verb
                parts.append(f"{where} " + ", ".join(("" if verb == "barrier" else f"{size(count)} ") + f"{ratio:.2f}"
                                                     for count, ratio in sorted(missed)))
    return "; ".join(parts)


def peers_of(bar, rows):
    """The MPIs that a bar was judged by; the fastest of three is more than the fastest of one."""
    here = {row["peer"] for row in rows if row["transport"] == bar[1] == "shm" and bar[2] in (None, row["ranks"])}
    return [peer for peer in MPIS if peer in here]


def aims(rows, table, size):
    """The table of bars for each dtype: words, aim, how many cases reached it, which did not."""
    lines = []
    for dtype in DTYPES:
        every = cases(rows, dtype)
        for bar in BARS if every else ():
            found = {case: ratio for case, ratio in every.items() if matches(bar, case)}
            reached = sum(ratio >= bar[7] for ratio in found.values())
            absent = [peer for peer in MPIS if bar[1] == "shm" and peer not in peers_of(bar, rows)]
            words = short_of(bar, found, size) if found else "not measured"
            if found and absent:
                words += ("; " if words else "") + "not compared with " + ", ".join(absent)
            lines.append([dtype, bar[0], f"{bar[7]:.3g}", f"{reached} of {len(found)}", words])
    return [table(["dtype", "case", "aim", "reached", "short of it"], lines)] if lines else []


def ranges(rows, table):
    """Lowest and highest ratio over all sizes, a line per verb, float32."""
    every = cases(rows, "float32")
    columns = [("shm", ranks, kind) for ranks in sorted({case[2] for case in every}) for kind in (True, False)]
    columns += [("tcp", ranks, None) for ranks in sorted({case[2] for case in every})]
    head = ["verb"] + [f"{ranks} ranks, " + ("Tcp" if transport == "tcp" else "arena" if kind else "any")
                       for transport, ranks, kind in columns]
    lines = []
    for verb in ALL_VERBS[:-1]:
        line = [verb]
        for transport, ranks, kind in columns:
            found = [ratio for case, ratio in every.items()
                     if case[:3] == (transport, verb, ranks) and kind in (None, case[4])]
            line.append(f"{min(found):.2g} to {max(found):.2g}" if found else "-")
        lines.append(line)
    return [table(head, lines)] if every else []
