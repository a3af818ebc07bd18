# SPDX-License-Identifier: Apache-2.0
"""What a training step and its memory aim at, and how much of it a run reached. Imported by table.py."""

# The sizes of mlp at which a rate beside c10d is aimed at: (model, batch) and the rate.
RATES = {("mlp-1024x16", 16): 1.3, ("mlp-1024x16", 512): 1.0, ("mlp-1024x2", 64): 1.5, ("mlp-1024x1", 1024): 1.2}
PEERS = ("c10d", "alone")


def is_tcp(row):
    return row["mode"].endswith("-tcp")


def sizes(rows):
    """[(words for a size, {mode: row})] of what was measured together."""
    found = {}
    for row in rows:
        found.setdefault((row["model"], row["batch"], row["ranks"]), {})[row["mode"]] = row
    return [(f"{model} b{batch}, {ranks} ranks", group) for (model, batch, ranks), group in found.items()]


def exposed(rows, tcp):
    return [(f"{where} {mode}", row["exposed_share"]) for where, group in sizes(rows) for mode, row in group.items()
            if mode not in PEERS and is_tcp(row) == tcp and row["exposed_share"] is not None
            and row["model"].startswith("mlp")]


def beside_ddp(rows, mode):
    return [(where, group["ddp"]["median_ms"] / group[mode]["median_ms"]) for where, group in sizes(rows)
            if "ddp" in group and mode in group]


def line(words, aim, found, reached, percent=True):
    """A row of the table; `found` is [(case, value)]."""
    short = [f"{case} {value:.0%}" if percent else f"{case} {value:.2f}" for case, value in found if not reached(value)]
    return [words, aim, f"{len(found) - len(short)} of {len(found)}", "; ".join(short) if found else "not measured"]


def of_steps(rows):
    lines = [line(f"communication exposed, of c10d's, over {name}", "25 %", exposed(rows, tcp), lambda it: it <= 0.25)
             for name, tcp in (("ShmRing", False), ("Tcp", True))]
    for (model, batch), aim in RATES.items():
        found = [(f"{row['ranks']} ranks", row["rate"]) for row in rows
                 if row["mode"] == "ddp" and (row["model"], row["batch"]) == (model, batch)]
        lines.append(line(f"`Ddp<>`, {model} b{batch}, x c10d's rate", f"{aim}", found, lambda it: it >= aim, False))
    never = [(f"{where} {mode}", row["rate"]) for where, group in sizes(rows) for mode, row in group.items()
             if mode not in PEERS]
    lines.append(line("every mode and size, x c10d's rate", "1.0", never, lambda it: it >= 1, False))
    for words, mode in (("`Zero<3>`, shared", "zero3"), ("`Zero<3>`, apart", "zero3-apart")):
        lines.append(line(f"{words}, x `Ddp<>`'s rate", "0.9", beside_ddp(rows, mode), lambda it: it >= 0.9, False))
    small = [(f"{where} {mode}", row["exposed_ms"] / row["median_ms"]) for where, group in sizes(rows)
             for mode, row in group.items() if row["model"].startswith("gpt-small") and mode == "ddp"]
    lines.append(line("`Ddp<>`, small GPT, exposed, of a step", "5 %", small, lambda it: it < 0.05))
    return lines


def of_memory(rows):
    def beside(row):
        """What is too much of the prediction, or too little of it without the room, of which a rank may need less."""
        least = row["predicted_bytes"] - row["room_bytes"]
        nearest = min(max(row["measured_bytes"], least), row["predicted_bytes"])
        return row["measured_bytes"] / nearest - 1

    off = [(f"{row['mode']}, {row['ranks']} ranks", beside(row)) for row in rows]
    apart = [(f"{row['ranks']} ranks", row["measured_bytes"] / (16 * row["parameters"] / row["ranks"]) - 1)
             for row in rows if row["mode"] == "zero3-apart"]
    return [line("every mode, measured beside predicted", "within 5 %", off, lambda it: abs(it) <= 0.05),
            line("`Zero<3>`, apart, beside 16/N bytes per parameter", "within 5 %", apart, lambda it: abs(it) <= 0.05)]


def aims(rows, table, of):
    return [table(["case", "aim", "reached", "short of it"], of(rows))] if rows else []
