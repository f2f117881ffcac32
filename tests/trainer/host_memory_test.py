#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""HOST memory of a real run, by tools/measure_host_memory.py on models small enough for every day.

One more parameter costs its 14 bytes in bf16, a checkpoint is loaded without a copy of the model, and what
is left of both is small. The figures that are promised come from models of 300 and 900 M parameters.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class HostMemoryTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory(prefix="host-memory-") as folder:
            report = pathlib.Path(folder) / "report.json"
            # 24 and 64 M parameters. The size of chunks that gemini-train chooses follows measured rates:
            # of models as small as these it doubles from run to run, and their padding with it.
            cls.done = subprocess.run(
                [sys.executable, ROOT / "tools/measure_host_memory.py", "--program",
                 pathlib.Path(os.environ["GEMINI_BIN"]) / "gemini-train", "--directory", folder,
                 "--report", report, "--small", "6x512", "--large", "19x512", "--sequence", "8",
                 "--device-memory", "96MiB", "--chunk-size", "256KiB"], capture_output=True, text=True,
                timeout=500)
            if not report.exists():
                raise AssertionError(cls.done.stdout + cls.done.stderr)
            cls.report = json.loads(report.read_text())

    def value(self, name):
        return self.report["figures"][name]["value"]

    def test_one_more_parameter_costs_its_states_and_little_more(self):
        # Of slabs alone: what else the process has differs by 10 MB from run to run, a quarter byte a
        # parameter of models as small as these.
        small, large = sorted(self.report["runs"].values(), key=lambda run: run["parameters"])
        slope = ((large["peaks"]["train"]["slabs"] - small["peaks"]["train"]["slabs"])
                 / (large["parameters"] - small["parameters"]))
        self.assertGreaterEqual(slope, 13.9, self.done.stdout)
        self.assertLess(slope, 14.2, self.done.stdout)

    def test_loading_needs_no_more_than_training(self):
        for shape, run in self.report["runs"].items():
            load, train = run["peaks"]["load"], run["peaks"]["train"]
            # Memory files are looked at ten times a second: not all may have been seen, but most.
            self.assertGreater(load["slabs"], 12 * run["parameters"], "loading was not seen")
            self.assertLessEqual(load["bytes"], train["bytes"], f"{shape}: {self.done.stdout}")

    def test_the_constant_part_is_small(self):
        self.assertLess(self.value("host_bytes_constant"), 350, self.done.stdout)


if __name__ == "__main__":
    unittest.main()
