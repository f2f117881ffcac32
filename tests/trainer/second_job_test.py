#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two gemini-train jobs over one geminid, whose DEVICE memory each of them wants for itself."""
import pathlib
import sys
import unittest

from train_program import BIN, MIB, TrainTest, run, steps

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import live_training

DEVICE = 8 * MIB


class SecondJobTest(TrainTest):
    def job(self, name, **more):
        return self.keys(threads=1, device_memory=DEVICE, host_memory=64 * MIB, recompute=True,
                         output=self.directory / name, **more)

    def test_it_is_admitted_beside_the_first_and_learns_what_it_learns_alone(self):
        alone = self.directory / "alone"
        self.assertEqual(run(**self.job("alone")).returncode, 0)
        with live_training.Daemon(BIN, self.directory, DEVICE, 128 * MIB) as daemon:
            with live_training.Training(
                    BIN, self.job("first", steps=1_000_000, daemon=daemon.socket)) as first:
                first.wait_for_step(6)
                done = run(**{**self.job("second", daemon=daemon.socket), "log_level": "info"})
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("got DEVICE 4 MiB: other jobs hold the rest", done.stderr + done.stdout)
                first.wait_for_step(len(steps(self.directory / "first")) + 5)
        self.assert_same_file(alone / "latest" / "model.safetensors",
                              self.directory / "second" / "latest" / "model.safetensors")
        budgets = [line["device_budget_bytes"] for line in steps(self.directory / "first")]
        self.assertEqual(budgets[0], DEVICE)
        self.assertEqual(min(budgets), DEVICE // 2)
        self.assertEqual(budgets[-1], DEVICE)  # It grew back.

    def test_it_is_refused_with_numbers_where_not_even_its_floor_is_left(self):
        with live_training.Daemon(BIN, self.directory, DEVICE, 128 * MIB) as daemon:
            with live_training.Training(
                    BIN, self.job("first", steps=1_000_000, daemon=daemon.socket)) as first:
                first.wait_for_step(6)
                done = run(**{**self.job("second", daemon=daemon.socket), "chunk_size": "64KiB"})
                self.assertNotEqual(done.returncode, 0)
                # A chunk size of one's own: nothing is predicted, and all that is wanted is needed.
                self.assertIn("needs 8 MiB of DEVICE", done.stderr)


if __name__ == "__main__":
    unittest.main()
