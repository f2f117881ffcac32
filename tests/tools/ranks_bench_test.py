#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `gemini-bench ranks`: rates of two ranks on this machine, and what memstat foretells by them.

ranks_bench_test.py GEMINI_BENCH MEMSTAT
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BENCH, MEMSTAT = (pathlib.Path(argument) for argument in sys.argv[1:3])
MPIRUN = os.environ.get("GEMINI_MPIRUN", "mpirun")
RATES = ("flops_per_second", "attention_flops_per_second", "memory_bytes_per_second", "kernel_ns", "latency_seconds",
         "link_bytes_per_second", "sum_bytes_per_second", "copy_bytes_per_second", "update_elements_per_second",
         "device_update_elements_per_second")


def bench(*arguments):
    return subprocess.run([BENCH, *map(str, arguments)], capture_output=True, text=True, timeout=300)


class RanksBenchTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.TemporaryDirectory(prefix="ranks-bench-")
        cls.folder = pathlib.Path(cls.root.name)
        cls.rates = cls.folder / "rates"
        cls.measured = bench("ranks", "--measure", cls.rates, "--ranks", "2")

    @classmethod
    def tearDownClass(cls):
        cls.root.cleanup()

    def test_a_file_has_a_line_for_each_number_of_ranks(self):
        self.assertEqual(self.measured.returncode, 0, self.measured.stderr)
        [line] = self.rates.read_text().splitlines()
        rates = json.loads(line)
        self.assertEqual(set(rates), {"ranks", "processors", *RATES})
        self.assertEqual(rates["ranks"], 2)
        for name in RATES:
            self.assertGreater(rates[name], 0, name)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["rates"])

    def test_steps_are_foretold_by_them_beside_what_is_measured(self):
        done = bench("ranks", "--forecast", self.rates, "--size", "tiny")
        self.assertEqual(done.returncode, 0, done.stderr)
        *table, line = done.stdout.splitlines()
        found = json.loads(line)
        self.assertEqual([one["mesh"] for one in found], ["2 zero 3", "2 pipeline 2 x 2"])
        self.assertEqual(len(table), 2 + len(found))
        for one in found:
            self.assertGreater(one["seconds"], 0)
            self.assertGreater(one["foretold_seconds"], 0)
            # How long a step takes depends on what else the machine does; what it sends and has does not.
            self.assertEqual(one["sent"], one["foretold_sent"])
            self.assertGreater(one["sent_bytes"], 0)
            self.assertEqual(one["host_bytes"], one["foretold_host_bytes"])
            # Whether gradients stay on DEVICE until the update depends on how long a step takes, and they are as
            # large as a quarter of what a step of so small a model has there.
            self.assertLess(abs(one["device_error"]), 0.4, one)
        self.assertIn("errors of 2 meshes: step times median", table[-1])
        self.assertIn("sent bytes differ in 0", table[-1])

    def test_what_was_not_measured_is_refused(self):
        def plan(*flags):
            done = subprocess.run([MEMSTAT, "plan", "--model", self.folder, *map(str, flags)], capture_output=True,
                                  text=True, timeout=60)
            self.assertEqual(done.returncode, 2, done.stdout)
            return done.stderr

        measured = ("--measured", self.rates, "--device", "1GiB")
        self.assertIn("no rates of 4 ranks, but of 2", plan("--ranks", 4, *measured))
        self.assertIn("rates of processors in fp32", plan("--ranks", 2, *measured, "--precision", "bf16"))
        self.assertIn("--device is missing", plan("--ranks", 2, "--measured", self.rates))

    def test_what_cannot_be_measured_is_told(self):
        alone = bench("rank-rates")
        self.assertEqual((alone.returncode, alone.stdout), (1, ""))
        self.assertIn("one rank exchanges nothing", alone.stderr)
        self.assertIn("--ranks 1: write numbers of ranks, each 2 or more",
                      bench("ranks", "--measure", self.folder / "none", "--ranks", "1").stderr)
        missing = bench("ranks", "--forecast", self.folder / "none", "--size", "tiny")
        self.assertEqual(missing.returncode, 1)
        self.assertIn("none: cannot be read", missing.stderr)
        self.assertFalse((self.folder / "none").exists())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
