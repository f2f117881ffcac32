#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `gemini-bench longest-sequence` in a small budget, and how its script searches.

longest_sequence_test.py GEMINI_BENCH
"""
import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "bench"))
import longest_sequence

BENCH = pathlib.Path(sys.argv[1])
MPIRUN = os.environ.get("GEMINI_MPIRUN", "mpirun")


def bench(*arguments):
    return subprocess.run([BENCH, "longest-sequence", *arguments], capture_output=True, text=True, timeout=500)


class LongestSequenceTest(unittest.TestCase):
    def test_what_is_found_trains_and_little_more_does_not(self):
        for limit in (64, 65, 127, 128, 1000, 4095, 4096, 100000):
            tried = []
            found = longest_sequence.longest(lambda length: tried.append(length) or length <= limit)
            self.assertLessEqual(found, limit)
            self.assertGreaterEqual(found, limit - max(64, limit // 32))
            self.assertEqual(len(tried), len(set(tried)))
            self.assertEqual([length % 64 for length in tried], [0] * len(tried))
            self.assertLess(len(tried), 20)

    def test_a_budget_that_nothing_fits_and_one_that_all_fits(self):
        self.assertEqual(longest_sequence.longest(lambda length: False), 0)
        with self.assertRaisesRegex(longest_sequence.BenchError, "1024 tokens still train"):
            longest_sequence.longest(lambda length: True, most=1024)

    def test_ranks_that_share_sequences_train_longer_ones(self):
        done = bench("--device-memory", "4MiB", "--modes", "none,megatron")
        self.assertEqual(done.returncode, 0, done.stderr)
        *table, line = done.stdout.splitlines()
        found = json.loads(line)["longest_sequence"]
        self.assertGreaterEqual(found["none"], 64)
        self.assertGreaterEqual(found["megatron"], 3 * found["none"])
        rows = [row.split() for row in table[2:]]
        self.assertEqual([row[:3] for row in rows],
                         [["none", "1", str(found["none"])], ["megatron", "4", str(found["megatron"])]])
        self.assertAlmostEqual(float(rows[1][3]), found["megatron"] / found["none"], delta=0.01)
        # Four ranks of the others train three times as much, too.
        with tempfile.TemporaryDirectory(dir=BENCH.resolve().parent.parent) as folder:
            search = longest_sequence.Search(BENCH.resolve().parent / "gemini-train", MPIRUN, pathlib.Path(folder),
                                             "4MiB")
            for mode in ("ulysses", "ring"):
                self.assertTrue(search.trains(mode, 3 * found["none"]), mode)

    def test_what_is_no_want_of_device_ends_the_search(self):
        done = bench("--device-memory", "none", "--modes", "none")
        self.assertEqual(done.returncode, 1)
        self.assertIn("none, 64 tokens: gemini-train ended with 2: gemini-train: --device-memory", done.stderr)
        self.assertIn("there is no both", bench("--device-memory", "4MiB", "--modes", "none,both").stderr)

    def test_only_the_known_refusals_are_taken_for_want_of_device(self):
        search = longest_sequence.Search.__new__(longest_sequence.Search)
        search.mpirun, search.device_memory = "mpirun", "4MiB"
        with tempfile.TemporaryDirectory() as folder:
            search.folder, search.train = pathlib.Path(folder), pathlib.Path(folder) / "train"

            def trains(status, text):
                search.train.write_text(f"#!/bin/sh\necho 'gemini-train: {text}' >&2\nexit {status}\n")
                search.train.chmod(search.train.stat().st_mode | stat.S_IXUSR)
                return search.trains("none", 64)

            refusal = "DEVICE is 34.8 MiB too small: forward of lm_head needs more"
            self.assertTrue(trains(0, "done"))
            self.assertFalse(trains(1, refusal))
            self.assertFalse(trains(75, f"rank 3: step 1: {refusal}"))
            for status, text in ((1, "HOST is full"), (2, refusal), (75, "rank 2 is gone"), (137, refusal)):
                with self.assertRaisesRegex(longest_sequence.BenchError, f"ended with {status}"):
                    trains(status, text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
