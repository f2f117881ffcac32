#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/measure_data.py on a few conversations: what it measures is what it says, and a goal that is missed ends it
with 1."""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import measure_data

import chat_fixture


class MeasureDataTest(unittest.TestCase):
    def measured(self, **patches):
        """What it returns, prints and reports of one family."""
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            report = pathlib.Path(folder) / "report.json"
            stack.enter_context(mock.patch.object(chat_fixture, "FAMILIES", {"Gemma": chat_fixture.FAMILIES["Gemma"]}))
            for name, value in patches.items():
                stack.enter_context(mock.patch.object(measure_data, name, value))
            stack.enter_context(mock.patch.object(sys, "argv", [
                "measure_data.py", "--megabytes", "0.1", "--runs", "1", "--report", str(report)]))
            said = stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            status = measure_data.main()
            return status, said.getvalue(), json.loads(report.read_text())["Gemma"]

    def test_both_programs_make_the_same_tokens(self):
        _, said, figures = self.measured()
        self.assertTrue(figures["same_tokens"], said)
        self.assertGreater(figures["tokens"], 20_000)
        self.assertTrue(20 < figures["memory"] < 300, figures)
        # Of so few both take the time to start, which is longer of the one that imports more.
        self.assertTrue(0 < figures["rate"] < 1.2, figures)
        self.assertRegex(said, r"data_prepare_memory [\d.]+, goal <= 300, met")

    def test_a_goal_that_is_missed_and_other_tokens(self):
        def work(tokens, seconds):
            return lambda *_: measure_data.Work(tokens, seconds, seconds, 100_000_000)

        for ours, theirs, expected, text in ((1.0, 0.9, 0, "data_prepare_rate 0.9, goal >= 0.8, met"),
                                             (1.0, 0.7, 1, "data_prepare_rate 0.7, goal >= 0.8, MISSED")):
            status, said, figures = self.measured(prepared=work(10, ours), encoded=work(10, theirs))
            self.assertEqual(status, expected, said)
            self.assertIn(text, said)
            self.assertAlmostEqual(figures["tokens_per_second"], 10 / ours)
        status, said, _ = self.measured(prepared=work(10, 1.0), encoded=work(11, 1.0))
        self.assertEqual(status, 1)
        self.assertIn("did not make the same number of tokens", said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
