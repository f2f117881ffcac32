#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gemini-train's first step follows a plan of the step that was foretold, with a DEVICE for a quarter of the
parameters beside what operators take. In parity_test it begins with one in every placement."""
import unittest

from train_program import MIB, Daemon, TrainTest, parameter_bytes, steps

MODELS = ("gpt2", "llama", "mixtral", "gemma2")
PRECISIONS = ("fp32", "bf16")
TRIES = 3


class FirstStepTest(TrainTest):
    def small_keys(self, model, precision, **more):
        """Keys of a run at that DEVICE. What operators take is measured where there is room for all."""
        keys = self.keys(model, precision=precision, steps=2, schedule="constant", warmup_steps=0, **more)
        roomy = self.train(f"roomy_{model}_{precision}", device_memory="1GiB", no_save=True,
                           **dict(keys, policy="online"))
        quarter = parameter_bytes(model) // (4 if precision == "fp32" else 8)
        return dict(keys, device_memory=steps(roomy)[0]["non_model_peak_bytes"] + quarter)

    def assert_follow_plans(self, numbers, train):
        """The steps of these numbers in what train() leaves. Where others use the processors, a thread that moves
        chunks may come so late that a round leaves its plan: then it is done again."""
        for _ in range(TRIES):
            lines = steps(train())
            left = {lines[i]["step"]: lines[i]["divergences"] for i in numbers
                    if lines[i]["planned_rounds"] != 1}
            if not left:
                return lines
        self.fail(f"left their plans: {left}")

    def test_it_follows_its_plan_and_so_does_the_first_behind_resume(self):
        for model in MODELS:
            for precision in PRECISIONS:
                with self.subTest(model, precision=precision):
                    name = f"{model}_{precision}"
                    keys = self.small_keys(model, precision)

                    def train():
                        self.train(name, overwrite=True, **keys)
                        return self.train(name, resume=True, steps=4, device_memory=keys["device_memory"])

                    lines = self.assert_follow_plans((0, 2), train)
                    self.assertEqual([line["step"] for line in lines], [1, 2, 3, 4])
                    self.assertGreater(lines[0]["fetch_bytes"], parameter_bytes(model) // 4)

    def test_it_follows_its_plan_over_a_daemon_that_kept_a_trace_and_over_one_that_did_not(self):
        keys = self.small_keys("llama", "fp32", space="job", overwrite=True)
        with Daemon(self.directory, 64 * MIB, 128 * MIB, 64 * MIB) as daemon:
            # A short job leaves what was foretold, and a longer one what was measured.
            for name, count in (("first", 1), ("second", 6), ("third", 2)):
                self.assert_follow_plans((0,), lambda: self.train(
                    name, daemon=daemon.socket, **dict(keys, steps=count)))

    def test_it_follows_its_plan_with_several_threads_and_micro_batches(self):
        for model in MODELS:
            keys = self.small_keys(model, "fp32", accumulate=4, overwrite=True)
            self.assert_follow_plans((0,), lambda: self.train(model, threads=4, **keys))


if __name__ == "__main__":
    unittest.main(verbosity=2)
