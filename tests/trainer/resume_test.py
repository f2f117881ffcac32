#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gemini-train stopped and resumed leaves the same bytes as one that went through; saves, --keep,
evaluation and metrics on the way."""
import json
import os
import pty
import shutil
import signal
import subprocess
import unittest

import numpy

import train_program
from train_program import MODELS, metrics, run, steps


class ResumeTest(train_program.TrainTest):
    def through(self, **more):
        return self.train("through", **self.keys(steps=10, **more))

    def assert_same_end(self, one, other):
        for file in ("model.safetensors", "optimizer.safetensors", "trainer_state.json"):
            self.assert_same_file(one / "latest" / file, other / "latest" / file)
        self.assertEqual([line["loss"] for line in steps(one)],
                         [line["loss"] for line in steps(other)])

    def test_five_steps_and_five_more_equal_ten(self):
        quantised = {"precision": "bf16", "moments": "8bit", "moment_rounding": "stochastic"}
        for name, mode in {"managed": {}, "reference": {"reference": True}, "fp16": {"precision": "fp16"},
                           "quantised": quantised}.items():
            more = dict(schedule="constant", **mode)
            with self.subTest(name):
                through = self.train(f"through_{name}", **self.keys(steps=10, **more))
                halves = self.train(f"halves_{name}", **self.keys(steps=5, **more))
                result = run(output=halves, resume=True, steps=10)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn("steps: 5 is now 10", result.stderr)
                self.assert_same_end(through, halves)

    def test_a_killed_run_goes_on_from_its_last_save(self):
        through = self.through(save_every=3, keep=2)
        self.assertEqual(sorted(path.name for path in through.iterdir()),
                         ["checkpoint-10", "checkpoint-9", "latest", "metrics.jsonl", "run.toml"])
        killed = self.directory / "killed"
        process = subprocess.Popen(
            [train_program.BIN / "gemini-train",
             *train_program.arguments(self.keys(steps=10, save_every=3, threads=1, output=killed))],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.wait_for_lines(process, killed, 7)
        process.kill()
        process.communicate()
        self.assertLess(len(self.lines(killed)), 11)
        result = run(output=killed, resume=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assert_same_end(through, killed)

    def lines(self, output):
        path = output / "metrics.jsonl"
        return path.read_text().splitlines() if path.exists() else []

    def wait_for_lines(self, process, output, count):
        """Returns when that many metrics are written, or the process has ended."""
        while len(self.lines(output)) < count:
            try:
                process.wait(timeout=0.02)
                return
            except subprocess.TimeoutExpired:
                pass

    def interrupted(self, output, signals, **more):
        """Sends SIGINT `signals` times once three steps are done; returns status and stderr."""
        process = subprocess.Popen(
            [train_program.BIN / "gemini-train",
             *train_program.arguments(self.keys(threads=1, output=output, **more))],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.wait_for_lines(process, output, 3)
        for _ in range(signals):
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=train_program.TIMEOUT_S)
        return process.returncode, errors

    def test_ctrl_c_finishes_the_step_saves_and_exits_with_130(self):
        through = self.train("through", **self.keys(steps=60))
        output = self.directory / "out"
        status, errors = self.interrupted(output, signals=1, steps=60)
        self.assertEqual(status, 130, errors)
        self.assertEqual(errors.lower().count("stopping"), 1, errors)
        done = steps(output)[-1]["step"]
        self.assertLess(done, 60)
        state = json.loads((output / "latest" / "trainer_state.json").read_text())
        self.assertEqual(state["step"], done)
        result = run(output=output, resume=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assert_same_end(through, output)

    def test_resuming_a_finished_run_does_nothing_and_says_where_it_lies(self):
        output = self.through()
        before = (output / "metrics.jsonl").read_bytes()
        result = run(output=output, resume=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("checkpoint-10", result.stdout)
        self.assertEqual((output / "metrics.jsonl").read_bytes(), before)

    def test_resuming_with_another_learning_rate_is_refused_by_name(self):
        output = self.train("out", **self.keys(steps=2))
        result = run(output=output, resume=True, lr=0.5, seed=1, steps=4)
        self.assertEqual(result.returncode, 2)
        self.assertIn("lr: 0.001 is now 0.5", result.stderr)
        self.assertIn("seed: 42 is now 1", result.stderr)

    def test_resuming_with_other_data_under_the_same_name_is_refused(self):
        data = self.directory / "tokens.npy"
        shutil.copy(MODELS / "tokens.npy", data)
        output = self.train("out", **dict(self.keys(steps=2), data=data))
        tokens = numpy.load(data)
        other = tokens.copy()
        other[0] += 1
        for changed, number in ((tokens[:-1], "19999 tokens"), (other, "checksum")):
            numpy.save(data, changed)
            result = run(output=output, resume=True, steps=4)
            self.assertEqual(result.returncode, 1, result.stderr)
            for word in ("tokens.npy is not the data", number, "20000 tokens", "put that file back"):
                self.assertIn(word, result.stderr)
            self.assertEqual(len(steps(output)), 2)
        # A checkpoint of before this was kept says nothing of it.
        path = output / "latest" / "trainer_state.json"
        state = json.loads(path.read_text())
        del state["data"]
        path.write_text(json.dumps(state))
        result = run(output=output, resume=True, steps=4)
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_evaluation_does_not_change_training(self):
        plain = self.train("plain", **self.keys(steps=6))
        output = self.train("evaluated", **self.keys(steps=6, eval_every=2),
                            eval_data=MODELS / "eval.npy")
        self.assert_same_file(plain / "latest/model.safetensors", output / "latest/model.safetensors")
        evaluations = [line for line in metrics(output) if "eval_loss" in line]
        self.assertEqual([line["step"] for line in evaluations], [2, 4, 6])
        for line in evaluations:
            self.assertGreater(line["eval_perplexity"], 1)

    def test_the_run_that_is_written_is_the_run_that_was(self):
        first = self.train("first", **self.keys(steps=2, accumulate=2, clip=0.3))
        again = self.train("again", config=first / "run.toml")
        self.assert_same_file(first / "latest/model.safetensors", again / "latest/model.safetensors")
        self.assertEqual((first / "run.toml").read_text(), (again / "run.toml").read_text())

    def test_a_terminal_shows_how_far_an_evaluation_is(self):
        main, terminal = pty.openpty()
        keys = dict(self.keys(steps=3, threads=1), eval_data=MODELS / "tokens.npy",
                    output=self.directory / "out")
        with subprocess.Popen([train_program.BIN / "gemini-train", *train_program.arguments(keys)],
                              stdout=subprocess.DEVNULL, stderr=terminal) as process:
            os.close(terminal)
            drawn = b""
            try:
                while piece := os.read(main, 4096):
                    drawn += piece
            except OSError:  # The other end is closed.
                pass
        os.close(main)
        self.assertEqual(process.returncode, 0, drawn)
        self.assertRegex(drawn, rb"\r\[=*> *\] evaluating \d+/625")

    def test_a_terminal_shows_a_progress_bar_and_the_summary_all_figures(self):
        main, terminal = pty.openpty()
        with subprocess.Popen(
                [train_program.BIN / "gemini-train",
                 *train_program.arguments(self.keys(steps=3, threads=1,
                                                    output=self.directory / "out"))],
                stdout=subprocess.PIPE, stderr=terminal, text=True) as process:
            os.close(terminal)
            drawn = b""
            try:
                while piece := os.read(main, 4096):
                    drawn += piece
            except OSError:  # The other end is closed.
                pass
            summary = process.stdout.read()
        os.close(main)
        self.assertEqual(process.returncode, 0)
        for part in (b"\r[", b"3/3", b"loss ", b"tok/s", b"left ", b"DEVICE "):
            self.assertIn(part, drawn)
        for part in ("Loss ", "of a budget of", "HOST", "Moved", "waited", "checkpoint-3"):
            self.assertIn(part, summary)


if __name__ == "__main__":
    unittest.main(verbosity=2)
