#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what Gemini takes in docs/examples: the lines by which a program and its CMake target differ from its twin
that links LibTorch alone.

example_diff_test.py ROOT    fails unless each pair has at most MOST_LINES of ours
"""
import difflib
import pathlib
import sys
import unittest

MOST_LINES = 6
EXAMPLES = ["image_classifier", "adversarial_loop", "fine_tune_loop"]
ROOT = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2]


def lines_of_ours(plain, ours):
    return [line[2:] for line in difflib.ndiff(plain, ours) if line.startswith("+ ")]


def target_lines(cmake, name):
    """The lines of the target, with its name taken out."""
    return [line.replace(name, "NAME") for line in cmake if f"({name} " in line]


class ExampleDiffTest(unittest.TestCase):
    def test_an_example_differs_from_its_twin_by_few_lines(self):
        folder = ROOT / "docs" / "examples"
        cmake = (folder / "CMakeLists.txt").read_text(encoding="utf-8").split("\n")
        for name in EXAMPLES:
            with self.subTest(name):
                text = [(folder / f"{stem}.cc").read_text(encoding="utf-8").split("\n")
                        for stem in (f"{name}_plain", name)]
                ours = lines_of_ours(*text) + lines_of_ours(target_lines(cmake, f"{name}_plain"),
                                                            target_lines(cmake, name))
                print(f"{name}: {len(ours)} lines of ours")
                self.assertGreaterEqual(len(ours), 3, ours)
                self.assertLessEqual(len(ours), MOST_LINES, "\n".join(ours))

    def test_a_line_more_is_counted(self):
        self.assertEqual(lines_of_ours(["a", "b"], ["a", "c", "b"]), ["c"])
        self.assertEqual(lines_of_ours(["a", "b"], ["a", "c"]), ["c"])


if __name__ == "__main__":
    unittest.main()
