# SPDX-License-Identifier: Apache-2.0
"""What tandem's collectives aim at beside their peers, and how much of it a run reached. Imported by table.py."""

MPIS = ("openmpi", "mpich", "intelmpi")
KB, MB = 1 << 10, 1 << 20
ALL_VERBS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "barrier")
MOST = 1 << 40

# Words, transport, ranks, registered (None: there is one kind), verbs, sizes from and to, least ratio.
BARS = (
    ("2 ranks, arena, every verb and size", "shm", 2, True, ALL_VERBS, 0, MOST, 1.0),
    ("2 ranks, arena, all_reduce and reduce_scatter, 1 to 64 KB", "shm", 2, True, ALL_VERBS[:2], KB, 64 * KB, 2.0),
    ("the same, from 1 MB", "shm", 2, True, ALL_VERBS[:2], MB, MOST, 3.0),
    ("2 ranks, arena, all_gather and broadcast from 16 KB", "shm", 2, True, ALL_VERBS[2:4], 16 * KB, MOST, 1.5),
    ("2 ranks, any, every verb and size", "shm", 2, False, ALL_VERBS, 0, MOST, 0.9),
    ("2 ranks, any, up to 64 KB", "shm", 2, False, ALL_VERBS, 0, 64 * KB, 1.5),
    ("4 ranks, arena, every verb and size", "shm", 4, True, ALL_VERBS, 0, MOST, 1.0),
    ("4 ranks, any, every verb and size", "shm", 4, False, ALL_VERBS, 0, MOST, 1.0),
    ("Tcp, up to 16 KB", "tcp", None, None, ALL_VERBS, 0, 16 * KB, 5.0),
    ("Tcp, 64 KB", "tcp", None, None, ALL_VERBS, 64 * KB, 64 * KB, 2.5),
    ("Tcp, 1 MB", "tcp", None, None, ALL_VERBS, MB, MB, 1.5),
    ("Tcp, from 16 MB", "tcp", None, None, ALL_VERBS, 16 * MB, MOST, 1.0),
)


def cases(rows):
    """{(transport, verb, ranks, bytes, registered): the fastest peer's time in tandem's}, float32; the peers are the MPIs
    over shared memory and gloo over Tcp."""
    found = {}
    for row in rows:
        if row["dtype"] != "float32":
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


def aims(rows, table, size):
    """The table of bars: words, aim, how many cases reached it, which did not."""
    every = cases(rows)
    lines = []
    for bar in BARS:
        found = {case: ratio for case, ratio in every.items() if matches(bar, case)}
        if found:
            reached = sum(ratio >= bar[7] for ratio in found.values())
            lines.append([bar[0], f"{bar[7]:g}", f"{reached} of {len(found)}", short_of(bar, found, size)])
    return [table(["case", "aim", "reached", "short of it"], lines)] if lines else []


def ranges(rows, table):
    """Lowest and highest ratio over all sizes, a line per verb."""
    every = cases(rows)
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
