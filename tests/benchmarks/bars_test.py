#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tables of what is aimed at count a case once, beside the fastest peer, and name every one that is short of it."""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "benchmarks"))
import bars  # noqa: E402
import step_bars  # noqa: E402
import table  # noqa: E402


def row(verb, count, ratio, peer="mpich", transport="shm", ranks=2, registered=True, dtype="float32"):
    return {"peer": peer, "transport": transport, "verb": verb, "dtype": dtype, "ranks": ranks, "bytes": count,
            "registered": registered, "ratio": ratio}


def aims(*rows, dtype="float32"):
    """{words: [aim, reached, short of it]} of what was measured."""
    lines = "".join(bars.aims(rows, table.table, table.size)).splitlines()[2:]
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    return {row[2]: row[3:6] for row in cells if row[1] == dtype and row[5] != "not measured"}


class Bars(unittest.TestCase):
    def test_the_fastest_peer_counts(self):
        found = aims(row("all_reduce", 8, 3.0), row("all_reduce", 8, 0.9, peer="intelmpi"), row("all_reduce", 8, 2.0, peer="openmpi"))
        self.assertEqual(found["2 ranks, arena, every verb and size"], ["1", "0 of 1", "all_reduce 8 B 0.90"])

    def test_peers_that_were_not_there_are_named(self):
        found = aims(row("all_reduce", 8, 3.0))
        self.assertEqual(found["2 ranks, arena, every verb and size"],
                         ["1", "1 of 1", "not compared with openmpi, intelmpi"])

    def test_what_was_not_measured_is_said(self):
        text = "".join(bars.aims([row("all_reduce", 8, 3.0)], table.table, table.size))
        self.assertIn("| float32 | Tcp, 64 KB | 2.5 | 0 of 0 | not measured |", text)

    def test_within_ten_percent_is_no_more(self):
        found = aims(row("all_reduce", 8, 0.905, registered=False), row("all_reduce", 64, 0.91, registered=False))
        self.assertIn("all_reduce 8 B 0.91", found["2 ranks, any, every verb and size"][2])
        self.assertEqual(found["2 ranks, any, every verb and size"][1], "1 of 2")

    def test_gloo_counts_over_tcp_alone(self):
        self.assertEqual(aims(row("all_reduce", 8, 0.5, peer="gloo")), {})
        found = aims(row("broadcast", 1024, 4.99, peer="gloo", transport="tcp", ranks=4, registered=False),
                     row("broadcast", 1024, 7, peer="gloo", transport="tcp", registered=False))
        self.assertEqual(found, {"Tcp, up to 16 KB": ["5", "1 of 2", "broadcast, 4 ranks 1 KB 4.99"]})

    def test_what_is_just_reached_is_reached(self):
        found = aims(row("all_gather", 16 << 10, 1.5), row("all_gather", 64 << 10, 1.4999))
        self.assertEqual(found["2 ranks, arena, all_gather and broadcast from 16 KB"],
                         ["1.5", "1 of 2", "all_gather 64 KB 1.50; not compared with openmpi, intelmpi"])

    def test_sizes_stand_in_order_and_kinds_of_buffers_apart(self):
        found = aims(row("all_reduce", 1 << 20, 0.8, registered=False), row("all_reduce", 8, 0.7, registered=False),
                     row("barrier", 0, 0.95, registered=False))
        self.assertEqual(found["2 ranks, any, every verb and size"],
                         ["0.909", "0 of 2", "all_reduce 8 B 0.70, 1 MB 0.80; not compared with openmpi, intelmpi"])
        self.assertEqual(found["2 ranks, arena, every verb and size"], ["1", "0 of 1", "barrier 0.95; not compared with openmpi, intelmpi"])

    def test_types_are_judged_apart(self):
        rows = row("broadcast", 8, 0.1, dtype="bfloat16"), row("broadcast", 8, 2.0)
        self.assertEqual(aims(*rows)["2 ranks, arena, every verb and size"][1], "1 of 1")
        self.assertEqual(aims(*rows, dtype="bfloat16")["2 ranks, arena, every verb and size"][1], "0 of 1")

    def test_ranges(self):
        text = bars.ranges([row("all_reduce", 8, 1.0), row("all_reduce", 64, 5.12)], table.table)[0]
        self.assertIn("| all_reduce | 1 to 5.1 | - | - |", text)


def step(mode, median, share=0.1, rate=2.0, model="mlp-1024x2", batch=64, exposed=0.1):
    return {"mode": mode, "model": model, "batch": batch, "ranks": 2, "median_ms": median, "exposed_ms": exposed,
            "exposed_share": share, "rate": rate}


def held(mode, predicted, measured, ranks=4, room=0):
    return {"mode": mode, "ranks": ranks, "parameters": 100, "predicted_bytes": predicted, "measured_bytes": measured,
            "room_bytes": room}


def cells(lines):
    return {line[0]: line[1:] for line in lines}


class StepBars(unittest.TestCase):
    def test_every_mode_is_judged_by_its_transport_and_peers_are_not(self):
        found = cells(step_bars.of_steps([step("ddp", 10), step("zero2", 10, share=0.251), step("ddp-tcp", 10, share=0.5),
                                          step("c10d", 20, share=1.0, rate=1.0), step("alone", 9, share=0.0, rate=0.9)]))
        self.assertEqual(found["communication exposed, of c10d's, over ShmRing"],
                         ["25 %", "1 of 2", "mlp-1024x2 b64, 2 ranks zero2 25%"])
        self.assertEqual(found["communication exposed, of c10d's, over Tcp"],
                         ["25 %", "0 of 1", "mlp-1024x2 b64, 2 ranks ddp-tcp 50%"])
        self.assertEqual(found["every mode and size, x c10d's rate"], ["1.0", "3 of 3", ""])

    def test_rates_belong_to_sizes(self):
        found = cells(step_bars.of_steps([step("ddp", 10, rate=1.49), step("ddp", 10, rate=1.2, model="mlp-1024x1", batch=1024)]))
        self.assertEqual(found["`Ddp<>`, mlp-1024x2 b64, x c10d's rate"], ["1.5", "0 of 1", "2 ranks 1.49"])
        self.assertEqual(found["`Ddp<>`, mlp-1024x1 b1024, x c10d's rate"], ["1.2", "1 of 1", ""])
        self.assertEqual(found["`Ddp<>`, mlp-1024x16 b16, x c10d's rate"], ["1.3", "0 of 0", "not measured"])

    def test_level_3_is_held_beside_ddp_of_the_same_size(self):
        found = cells(step_bars.of_steps([step("ddp", 9), step("zero3", 10), step("zero3-apart", 10.1)]))
        self.assertEqual(found["`Zero<3>`, shared, x `Ddp<>`'s rate"], ["0.9", "1 of 1", ""])
        self.assertEqual(found["`Zero<3>`, apart, x `Ddp<>`'s rate"], ["0.9", "0 of 1", "mlp-1024x2 b64, 2 ranks 0.89"])

    def test_the_small_gpt(self):
        found = cells(step_bars.of_steps([step("ddp", 10, model="gpt-small", exposed=0.5)]))
        self.assertEqual(found["`Ddp<>`, small GPT, exposed, of a step"], ["5 %", "0 of 1", "gpt-small b64, 2 ranks ddp 5%"])

    def test_memory(self):
        found = cells(step_bars.of_memory([held("zero2", 800, 850), held("zero3-apart", 400, 419), held("zero3", 500, 474)]))
        self.assertEqual(found["every mode, measured beside predicted"],
                         ["within 5 %", "1 of 3", "zero2, 4 ranks 6%; zero3, 4 ranks -5%"])
        self.assertEqual(found["`Zero<3>`, apart, beside 16/N bytes per parameter"], ["within 5 %", "1 of 1", ""])

    def test_room_may_stand_empty(self):
        found = cells(step_bars.of_memory([held("zero2", 800, 700, room=100), held("zero2", 800, 660, room=100),
                                           held("zero2", 800, 845, room=100)]))
        self.assertEqual(found["every mode, measured beside predicted"],
                         ["within 5 %", "1 of 3", "zero2, 4 ranks -6%; zero2, 4 ranks 6%"])


if __name__ == "__main__":
    unittest.main()
