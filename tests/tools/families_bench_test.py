#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `gemini-bench families` on models of half a million parameters, and what its script makes of runs.

families_bench_test.py GEMINI_BENCH GEMINI_TRAIN
"""
import json
import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "bench"))
import families

BENCH, TRAIN = (pathlib.Path(path) for path in sys.argv[1:3])


def benchmarks(names, size="tiny"):
    """What gemini-bench reports of benchmarks, a regular expression."""
    done = subprocess.run([BENCH, f"--benchmark_filter=^({names})(/.*)?$", "--benchmark_format=json"], text=True,
                          capture_output=True, timeout=300, env=dict(os.environ, GEMINI_BENCH_SIZE=size))
    return json.loads(done.stdout)["benchmarks"]


def run(losses, seconds=(1.0, 3.0, 2.0), **line):
    line = {"fetch_bytes": 5, "evict_bytes": 7, "device_peak_bytes": 90, "device_budget_bytes": 100, **line}
    return families.Run(losses, list(seconds), 1000, [line] * len(seconds))


class FamiliesBenchTest(unittest.TestCase):
    def test_every_goal_is_a_benchmark_and_every_benchmark_has_a_goal(self):
        listed = subprocess.run([BENCH, "--benchmark_list_tests", "--benchmark_filter=^families_"], text=True,
                                capture_output=True, check=True).stdout
        goals = json.loads((ROOT / "tools" / "bench" / "goals.json").read_text())
        self.assertEqual({line.split("/")[0] for line in listed.split()},
                         {name for name in goals if name.startswith("families_")})

    def test_a_model_is_measured_beside_transformers(self):
        [row] = benchmarks("families_llama_all")
        self.assertEqual(row["checked"], 1)
        self.assertAlmostEqual(row["value"], row["theirs_s"] / row["ours_s"])
        self.assertAlmostEqual(row["baseline"] * row["theirs_s"], 2 * 32)
        for key in ("ours_peak_bytes", "theirs_peak_bytes"):
            self.assertGreater(row[key], 50 * 2**20)
        config = families.SIZES["tiny"].configs["llama"]
        embeddings = 2 * config["vocab_size"] * config["hidden_size"]
        self.assertGreater(row["parameter_bytes"], 4 * embeddings)

    def test_models_that_classify_are_measured_on_rows_and_images_with_labels(self):
        for family, items in (("bert", 2 * 32), ("vit", 3)):
            with self.subTest(family):
                everywhere, quarter = sorted(benchmarks(f"families_{family}_all|families_{family}_quarter"),
                                             key=lambda row: row["name"])
                self.assertEqual((everywhere["checked"], quarter["checked"]), (1, 1))
                self.assertAlmostEqual(everywhere["baseline"] * everywhere["theirs_s"], items)
                self.assertLess(everywhere["loss_difference"], 1e-5)

    def test_a_step_on_a_slow_link_is_compared_with_the_slower_part(self):
        everywhere, row = benchmarks("families_mixtral_all|families_mixtral_link")
        # One process, so both have the same run of all on DEVICE, and of transformers.
        self.assertEqual(row["compute_s"], everywhere["ours_s"])
        self.assertEqual(row["theirs_s"], everywhere["theirs_s"])
        self.assertEqual(row["checked"], 1)
        self.assertAlmostEqual(row["baseline"], max(row["compute_s"], row["transfer_s"]))
        self.assertAlmostEqual(row["value"], row["ours_s"] / row["baseline"])
        # A quarter, and not less than what is no parameter: far from all.
        self.assertGreater(row["device_bytes"], row["parameter_bytes"] // 4)
        self.assertLess(row["ours_device_peak_bytes"], row["parameter_bytes"] * 3)
        self.assertGreater(row["ours_fetch_bytes"], 0)

    def test_a_failure_is_told_by_the_program(self):
        [row] = benchmarks("families_gpt2_all")
        self.assertTrue(row["error_occurred"])
        self.assertIn("there is no gpt2 of size tiny", row["error_message"])

    def test_a_program_that_is_missing_is_named(self):
        done = subprocess.run([sys.executable, ROOT / "tools/bench/families.py", "llama", "all", "--train", "/none"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("/none is not built", json.loads(done.stdout)["error"])

    def test_what_a_program_said_before_it_failed_is_told(self):
        with self.assertRaisesRegex(families.FamiliesError, "ended with 2: .*--nonsense"):
            families.run([TRAIN, "--nonsense"], threads=1)

    def test_runs_that_learned_something_else_are_not_checked(self):
        theirs = run([9.0, 8.0])
        self.assertTrue(families.is_checked([run([9.0005, 8.0]), run([9.0])], theirs))
        self.assertFalse(families.is_checked([run([9.0, 8.0]), run([9.0, 8.001])], theirs))
        self.assertFalse(families.is_checked([run([9.0, 8.0, 7.0])], theirs), "nobody knows of the last step")
        for losses in ([float("nan"), 8.0], [9.0, float("nan")]):
            self.assertFalse(families.is_checked([run(losses)], theirs))

    def test_runs_that_learned_nothing_are_not_checked(self):
        self.assertFalse(families.is_checked([run([9.0, 8.96])], run([9.0, 8.96])))

    def test_runs_that_broke_their_budget_or_moved_nothing_are_not_checked(self):
        theirs = run([9.0, 8.0])
        self.assertFalse(families.is_checked([run([9.0, 8.0], device_peak_bytes=101)], theirs))
        still = run([9.0, 8.0], fetch_bytes=0, evict_bytes=0)
        self.assertTrue(families.is_checked([still], theirs))
        self.assertFalse(families.is_checked([still], theirs, moved=[still]))

    def test_a_step_is_the_median_of_those_that_count(self):
        self.assertEqual(run([9.0]).step_s, 2.0)
        self.assertEqual(run([9.0]).moved_bytes, 7)

    def test_the_bound_is_the_slower_of_computing_and_moving(self):
        self.assertEqual(families.over_bound(3.0, compute_s=2.0, moved_bytes=10, rate=10), (1.5, 2.0))
        self.assertEqual(families.over_bound(3.0, compute_s=2.0, moved_bytes=60, rate=10), (0.5, 6.0))

    def test_a_question_that_fails_leaves_the_others_their_figures(self):
        class Broken(families.Family):
            theirs = all = families.Run([9.0, 8.0], [2.0], 1000)

            def __init__(self):
                self.size, self.threads, self.parameter_bytes = families.SIZES["tiny"], 1, 400
                self.reads_images, self.batch = False, 2

            @property
            def quarter_bytes(self):
                raise families.FamiliesError("it ended")

        figures = families.measure(Broken(), ["all", "quarter"])
        self.assertEqual(figures["quarter"], {"error": "it ended"})
        self.assertEqual(figures["all"]["value"], 1.0)

    def test_the_quarter_is_the_floor_where_that_is_more(self):
        class Measured(families.Family):
            def __init__(self, pinned):  # Without a model.
                self.size, self.parameter_bytes, self.pinned = families.SIZES["tiny"], 400, pinned

            def ours(self, *_, **__):
                return run([9.0], pinned_peak_bytes=self.pinned, non_model_peak_bytes=30)

        self.assertEqual(Measured(pinned=20).quarter_bytes, 130)
        self.assertEqual(Measured(pinned=200).quarter_bytes, 200)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
