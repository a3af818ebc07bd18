#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of what is aimed at counts a case once, beside the fastest peer, and names every one that is short of it."""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "benchmarks"))
import bars  # noqa: E402
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


if __name__ == "__main__":
    unittest.main()
