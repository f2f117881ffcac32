#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `gemini-bench weak-scaling` with two ranks of a tiny model, and how its script adds up the parts of a step.

weak_scaling_test.py GEMINI_BENCH
"""
import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest
from fractions import Fraction

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "bench"))
import weak_scaling

BENCH = pathlib.Path(sys.argv[1])
MPIRUN = os.environ.get("GEMINI_MPIRUN", "mpirun")
FULL = weak_scaling.SIZES["full"]


def bench(*arguments):
    return subprocess.run([BENCH, *map(str, arguments)], capture_output=True, text=True, timeout=500)


class ScheduleTest(unittest.TestCase):
    def test_a_list_has_each_task_once_and_backward_behind_forward(self):
        for ranks in range(1, 9):
            for micro_batches in (1, 2, 7, 8, 16):
                for rank in range(ranks):
                    tasks = weak_scaling.tasks_of(rank, ranks, micro_batches)
                    self.assertEqual(sorted(tasks), [(back, i) for back in (False, True) for i in range(micro_batches)])
                    for i in range(micro_batches):
                        self.assertLess(tasks.index((False, i)), tasks.index((True, i)))
                    live = [sum(1 if not back else -1 for back, _ in tasks[:end + 1]) for end in range(len(tasks))]
                    self.assertEqual(max(live), min(ranks - rank, micro_batches))

    def test_with_a_processor_for_each_rank_idle_time_is_the_formula(self):
        for ranks in (1, 2, 3, 4, 8):
            for micro_batches in (1, 4, 8, 32):
                for processors in (ranks, ranks + 1, 64):
                    self.assertEqual(weak_scaling.idle_by_work(ranks, micro_batches, processors),
                                     Fraction(ranks - 1, micro_batches))

    def test_one_processor_is_never_idle(self):
        for ranks in (1, 2, 4, 8):
            self.assertEqual(weak_scaling.playback(ranks, 8, processors=1), 3 * 8 * ranks)
            self.assertEqual(weak_scaling.idle_by_work(ranks, 8, processors=1), 0)

    def test_two_ranks_share_two_processors_as_it_is_played_by_hand(self):
        # One micro-batch goes there and back; of two, the second one is 3 behind the first, which is in its way.
        self.assertEqual(weak_scaling.playback(2, 1, processors=2), 6)
        self.assertEqual(weak_scaling.playback(2, 2, processors=2), 9)
        # Of three ranks one micro-batch is in one place at a time, whatever the processors.
        for processors in (1, 2, 3):
            self.assertEqual(weak_scaling.playback(3, 1, processors), 9)

    def test_ranks_share_fewer_processors_as_in_a_forecast(self):
        # step_playback_test.cc has the same numbers of policies/pipeline, which forecasts play steps by.
        for ranks, micro_batches, processors, end in ((3, 4, 2, 21), (4, 8, 2, 51), (8, 8, 2, 99), (8, 8, 3, 70),
                                                      (8, 8, 8, 45)):
            self.assertEqual(weak_scaling.playback(ranks, micro_batches, processors), end)

    def test_fewer_processors_are_idle_for_less_of_the_time(self):
        for ranks in (4, 8):
            idle = [weak_scaling.idle_by_work(ranks, 8, processors) for processors in range(1, ranks + 1)]
            self.assertEqual(idle, sorted(idle))
            self.assertEqual(len(set(idle)), len(idle))
        # Never less than all work by all processors.
        for processors in range(1, 9):
            self.assertGreaterEqual(weak_scaling.playback(8, 8, processors), Fraction(3 * 8 * 8, processors))


class PartsTest(unittest.TestCase):
    def test_known_parts_have_a_known_ratio(self):
        parts = weak_scaling.Parts(step=3.3, work=2.0, idle=0.25, exchange=0.75)
        self.assertAlmostEqual(parts.ratio, 1.1)
        self.assertAlmostEqual(parts.ratio_without_exchange, 3.3 / 2.25)

    def test_a_pipeline_alone_is_idle_and_has_less_than_its_processes(self):
        for kind in ("dp", "1d"):
            parts = weak_scaling.parts_of(FULL, kind, 4, 2, step=5, at_once=3, exchange=1)
            self.assertEqual(parts, weak_scaling.Parts(step=5, work=3, idle=0, exchange=1))
        # Two blocks of 384 x (4 x 384 + 3 x 1024) and a head of 320 x 384: two heads in place of one.
        blocks, head = 2 * 384 * (4 * 384 + 3 * 1024), 320 * 384
        share = (blocks + head / 2) / (blocks + head)
        parts = weak_scaling.parts_of(FULL, "pp", 2, 2, step=5, at_once=3, exchange=1)
        self.assertAlmostEqual(parts.work, 3 * share)
        self.assertAlmostEqual(parts.idle, 3 * share / 8)
        self.assertEqual((parts.step, parts.exchange), (5, 1))
        self.assertEqual(weak_scaling.parts_of(FULL, "pp", 1, 2, step=5, at_once=3, exchange=0),
                         weak_scaling.Parts(step=5, work=3, idle=0, exchange=0))

    def test_a_row_has_medians_of_the_samples_and_of_their_ratios(self):
        samples = [weak_scaling.Parts(step, work, 0.0, 0.5) for step, work in ((2.0, 1.5), (3.0, 1.0), (9.0, 8.5))]
        row = weak_scaling.row_of("dp", 2, samples, {})
        self.assertEqual((row["step_seconds"], row["work_seconds"], row["idle_seconds"], row["exchange_seconds"]),
                         (3.0, 1.5, 0, 0.5))
        self.assertEqual((row["least_ratio"], row["ratio"], row["most_ratio"]), (1, 1, 2))
        self.assertAlmostEqual(row["ratio_without_exchange"], 2.0 / 1.5)

    def test_what_is_sent_is_exchanged_as_often_with_its_mean_size(self):
        sent = {"all-gather": {"operations": 3, "bytes": 3001}, "receive": {"operations": 8, "bytes": 0},
                "send": {"operations": 8, "bytes": 8 * 4096}}
        self.assertEqual(weak_scaling.exchanges_of(sent), ["all-gather:3:1000", "send:8:4096"])
        self.assertEqual(weak_scaling.exchanges_of({}), [])

    def test_each_rank_has_the_same_matrices(self):
        for ranks in (1, 2, 4, 8):
            dp, line, stages = (weak_scaling.job_of(FULL, kind, ranks).config for kind in weak_scaling.KINDS)
            self.assertEqual(dp, FULL.config())
            self.assertEqual({key: value // ranks if key in ("num_attention_heads", "num_key_value_heads",
                                                             "intermediate_size", "vocab_size") else value
                              for key, value in line.items()}, dp)
            self.assertEqual({**stages, "num_hidden_layers": stages["num_hidden_layers"] // ranks},
                             {**dp, "num_hidden_layers": FULL.stage_blocks})


class StepsAtOnceTest(unittest.TestCase):
    def test_steps_count_that_began_when_all_were_warm(self):
        steps = weak_scaling.StepsAtOnce(jobs=2, warm_up=2, measured=2)
        for seconds in (90, 91, 92, 93):  # The first job is far ahead.
            steps.add(0, seconds)
        steps.add(1, 94)
        steps.add(1, 95)  # Both are warm; what is under way began before.
        steps.add(0, 96)
        steps.add(0, 1)
        steps.add(1, 97)
        self.assertFalse(steps.are_enough)
        steps.add(0, 2)
        steps.add(1, 3)
        steps.add(0, 4)
        self.assertFalse(steps.are_enough)
        steps.add(1, 5)
        self.assertTrue(steps.are_enough)
        self.assertEqual(steps.kept, [[1, 2, 4], [3, 5]])
        self.assertEqual(steps.seconds, 3)

    def test_a_job_that_ends_early_is_named_with_its_message(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            train = folder / "gemini-train"
            train.write_text("#!/bin/sh\necho 'gemini-train: HOST is full' >&2\nexit 1\n")
            train.chmod(train.stat().st_mode | stat.S_IXUSR)
            tool = weak_scaling.Bench(train, "mpirun", folder, weak_scaling.SIZES["tiny"])
            tool.model = lambda config: folder
            with self.assertRaisesRegex(weak_scaling.BenchError,
                                        "job [12] of 2 at once: gemini-train ended with 1: gemini-train: HOST is full"):
                tool.at_once(weak_scaling.job_of(weak_scaling.SIZES["tiny"], "dp", 1), 2)
            self.assertEqual([path.name for path in folder.iterdir()], ["gemini-train"])


class WeakScalingTest(unittest.TestCase):
    def test_a_tiny_model_is_measured_in_all_kinds(self):
        done = bench("weak-scaling", "--size", "tiny", "--ranks", "1,2", "--samples", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        *table, _, _, line = done.stdout.splitlines()
        found = json.loads(line)
        self.assertEqual((found["samples"], found["processors"]), (1, len(os.sched_getaffinity(0))))
        rows = {(row["kind"], row["ranks"]): row for row in found["rows"]}
        self.assertEqual(list(rows), [(kind, ranks) for kind in weak_scaling.KINDS for ranks in (1, 2)])
        self.assertEqual(table[1:], [weak_scaling.text_of(row) for row in found["rows"]])
        for (kind, ranks), row in rows.items():
            with self.subTest(kind, ranks=ranks):
                # No bar: the model is so small that a step is mostly what surrounds it.
                self.assertGreater(row["step_seconds"], 0)
                self.assertGreater(row["work_seconds"], 0)
                self.assertEqual(row["exchange_seconds"] > 0, ranks > 1)
                self.assertAlmostEqual(row["ratio"], row["step_seconds"] / sum(
                    row[f"{name}_seconds"] for name in ("work", "idle", "exchange")))
                idle = weak_scaling.idle_by_work(ranks, 8, found["processors"]) if kind == "pp" else 0
                self.assertAlmostEqual(row["idle_seconds"], row["work_seconds"] * float(idle))
                self.assertEqual(row["sent"] == {}, ranks == 1)
        # Each micro-batch's hidden states, [1, 32, 64] in fp32.
        self.assertEqual(rows["pp", 2]["sent"]["send"], {"operations": 8, "bytes": 8 * 32 * 64 * 4})
        size = weak_scaling.SIZES["tiny"]
        block = 4 * size.width * size.heads * size.head_dim + 3 * size.width * size.inner_width + 2 * size.width
        parameters = size.blocks * block + 2 * size.vocabulary * size.width + size.width
        # Gradients go around twice, and half of them is the other rank's.
        sent = sum(one["bytes"] for one in rows["dp", 2]["sent"].values())
        self.assertGreaterEqual(sent, 4 * parameters)
        self.assertLess(sent, 1.05 * 4 * parameters)

    def test_what_cannot_be_measured_is_refused(self):
        for text, arguments in {"there is no sp, only dp, 1d, pp": ("--kinds", "dp,sp"),
                                "--ranks 0: write numbers": ("--ranks", "0"),
                                "--ranks 1,two: write numbers": ("--ranks", "1,two"),
                                "--samples 0": ("--samples", "0")}.items():
            refused = bench("weak-scaling", *arguments)
            self.assertEqual(refused.returncode, 2)
            self.assertIn(text, refused.stderr)
        for text, words in {"one rank exchanges nothing": ("send:1:1",), "there is no exchange": (),
                            "'send:1' is no exchange": ("send:1",)}.items():
            alone = bench("rank-exchange", *words)
            self.assertEqual((alone.returncode, alone.stdout), (1, ""))
            self.assertIn(text, alone.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
