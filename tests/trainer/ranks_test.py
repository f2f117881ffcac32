#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gemini-train by mpirun: several ranks train as one process with as many micro-batches does, save what it saves, end
together, and go on from each other's checkpoints."""
import concurrent.futures
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import time
import unittest

import numpy
import safetensors.numpy

import train_program
from ranks_program import MPIRUN, TIED, TIMEOUT_S, UNTIED, RanksTestCase, command, run_launched, run_ranks
from train_program import MIB, MODELS, Daemon, steps

KILLS = int(os.environ.get("GEMINI_RANK_KILLS", "3"))
STEPS_A_KILL = 40  # More than fit between two kills.
SITES = int(os.environ.get("GEMINI_RANK_SITES", "3"))  # Of a step's collectives, those to die at.


class RanksTest(RanksTestCase):
    def test_ranks_train_as_one_process_does(self):
        self.check_beside_one_process({
            "plain": (2, {}),
            "more_ranks": (4, {}),
            "no_decay": (2, {"no_decay": "*norm*", "weight_decay": 0.3}),
            "recomputed": (2, {"recompute": True, "model": "qwen3"}),
            "experts": (2, {"model": "mixtral"}),
            "quantised": (2, {"moments": "8bit"}),
            "lamb": (2, {"optimizer": "lamb"})})

    def test_where_ranks_have_the_model_changes_no_bit(self):
        self.check_beside_one_process({
            "small": (2, {"device_memory": "2560KiB", "chunk_size": "64KiB", "recompute": True}),
            "on_nvme": (2, {"host_memory": "5MiB", "nvme": f"{self.directory}:64MiB", "chunk_size": "64KiB"}),
            "ahead": (2, {"gather_ahead": 1}),
            "replicas": (2, {"zero": 0}),
            "states_in_parts": (2, {"zero": 1}),
            "kept_whole": (2, {"zero": 2, "device_memory": "3MiB", "chunk_size": "64KiB", "recompute": True})})

    def test_the_vertical_schedule_of_ranks_changes_no_bit(self):
        more = {"accumulate": 8, "batch": 2, "sequence": 64}
        horizontal = self.ranks(2, "horizontal", **self.keys(recompute=True, **more))
        # Some of the activations between blocks leave DEVICE, and their names are apart in one daemon.
        with train_program.Daemon(self.directory, "16MiB", "256MiB", "16MiB") as daemon:
            vertical = self.ranks(2, "v" * 120, daemon=daemon.socket, device_memory="6MiB", host_memory="64MiB",
                                  chunk_size="64KiB", micro_batch_schedule="vertical", gather_ahead=1, **self.keys(**more))
        self.assert_same_end(horizontal, vertical)
        # A tied table is added up head by head, and then look-up by look-up.
        for zero, sync in ((0, "last"), (1, "last"), (3, "each")):
            of_stage = {"zero": zero, "gradient_sync": sync, **more}
            one = self.ranks(2, f"one_{zero}", **self.keys(TIED, recompute=True, **of_stage))
            other = self.ranks(2, f"other_{zero}", **self.keys(TIED, micro_batch_schedule="vertical", **of_stage))
            for left, right in zip(steps(one), steps(other)):
                self.assertAlmostEqual(left["loss"], right["loss"], delta=1e-5)
                self.assertAlmostEqual(left["grad_norm"], right["grad_norm"], delta=1e-5)

    def check_beside_one_process(self, cases):
        of_ranks = ("device_memory", "chunk_size", "host_memory", "nvme", "gather_ahead", "zero")
        for name, (num_ranks, more) in cases.items():
            with self.subTest(name):
                alone = {key: value for key, value in more.items() if key not in of_ranks}
                one = self.train(f"one_{name}", **self.keys(accumulate=num_ranks, **alone))
                several = self.ranks(num_ranks, f"ranks_{name}", **self.keys(**more))
                self.assert_same_end(one, several)
                if name == "small":
                    least = min(line["device_peak_bytes"] for line in steps(several))
                    self.assertLessEqual(least, 2.5 * MIB)

    def test_stages_differ_in_no_bit_and_go_on_from_each_other(self):
        more = {"model": TIED, "accumulate": 2, "precision": "bf16", "moments": "8bit"}
        each = {"gradient_sync": "each", **more}
        whole = self.ranks(3, "whole", **self.keys(zero=0, **each))
        for stage in (1, 2, 3):
            self.assert_same_end(whole, self.ranks(3, f"stage_{stage}", **self.keys(zero=stage, **each)))
        # Which of a step's sums is the first does not depend on the stage either.
        last = [self.ranks(3, f"last_{stage}", **self.keys(zero=stage, **more)) for stage in (0, 1)]
        self.assert_same_end(*last)
        self.assertNotEqual(steps(whole)[-1]["grad_norm"], steps(last[0])[-1]["grad_norm"])
        both = self.ranks(3, "both", **self.keys(zero=0, **dict(each, steps=3, schedule="constant")))
        through = self.ranks(3, "through", **self.keys(zero=3, **dict(more, schedule="constant")))
        result = run_ranks(3, output=both, resume=True, steps=6, zero=3)
        self.assertEqual(result.returncode, 0, result.stderr)
        for file in ("model.safetensors", "optimizer.safetensors", "trainer_state.json"):
            self.assert_same_file(through / "latest" / file, both / "latest" / file)

    def test_steps_that_overflow_fp16_are_skipped_by_all_ranks_and_stages(self):
        model = self.directory / "steep"
        shutil.copytree(MODELS / UNTIED, model)
        weights = safetensors.numpy.load_file(model / "model.safetensors")
        weights["lm_head.weight"] = weights["lm_head.weight"] * 20
        safetensors.numpy.save_file(weights, model / "model.safetensors", {"format": "pt"})
        keys = self.keys(model, precision="fp16", optimizer="lars")
        runs = [self.ranks(2, f"stage_{zero}", zero=zero, **more, **keys)
                for zero, more in ((0, {"host_memory": "5MiB", "nvme": f"{self.directory}:64MiB", "chunk_size": "64KiB"}),
                                   (2, {"host_memory": "4MiB", "nvme": f"{self.directory}:64MiB", "chunk_size": "64KiB"}),
                                   (3, {}))]
        scales = [line["loss_scale"] for line in steps(runs[0])]
        self.assertGreater(scales[0], scales[2])  # Some were skipped,
        self.assertEqual(scales[-2], scales[-1])  # and not all.
        for other in runs[1:]:
            self.assert_same_end(runs[0], other)
            self.assertEqual(scales, [line["loss_scale"] for line in steps(other)])

    def test_steps_around_evaluations_follow_their_plans(self):
        for zero in (1, 2):
            # Whole tensors are gathered anew behind each update, and are up to date in an evaluation's second batch.
            result = run_ranks(2, output=self.directory / f"stage_{zero}", zero=zero, device_memory="4MiB",
                               chunk_size="64KiB", **self.keys(steps=8, eval_every=2, batch=2, recompute=True))
            self.assertEqual(result.returncode, 0, result.stderr)
            plans, = re.findall("Plans .*", result.stdout + result.stderr)
            self.assertGreater(int(re.search(r"followed (\d+) times", plans)[1]), 15, plans)
            # How much non-model data there is at one time varies a little; which operators there are does not.
            self.assertNotIn("operator", plans)

    def test_a_tied_table_is_added_up_first_by_each_rank(self):
        one = self.train("one", **self.keys(TIED, accumulate=4))
        several = self.ranks(4, "ranks", **self.keys(TIED))
        for left, right in zip(steps(one), steps(several)):
            self.assertAlmostEqual(left["loss"], right["loss"], delta=1e-5)
            self.assertAlmostEqual(left["grad_norm"], right["grad_norm"], delta=1e-5)

    def test_another_number_of_ranks_goes_on(self):
        through = self.ranks(4, "through", **self.keys(steps=6))
        first = self.ranks(4, "first", **self.keys(steps=3))
        halves = self.directory / "halves"
        shutil.copytree(first, halves, symlinks=True)
        # On the same ranks nothing shows that it stopped.
        self.ranks(4, "first", resume=True, steps=6)
        for file in ("model.safetensors", "optimizer.safetensors", "trainer_state.json"):
            self.assert_same_file(through / "latest" / file, first / "latest" / file)
        for num_ranks, accumulate in ((2, 2), (1, 4)):
            again = self.directory / f"again_{num_ranks}"
            shutil.copytree(halves, again, symlinks=True)
            result = run_ranks(num_ranks, output=again, resume=True, steps=6, accumulate=accumulate)
            self.assertEqual(result.returncode, 0, result.stderr)
            left = [line["loss"] for line in steps(through)]
            right = [line["loss"] for line in steps(again)]
            self.assertEqual(len(left), len(right))
            for one, other in zip(left, right):
                self.assertAlmostEqual(one, other, delta=2e-5)
        result = run_ranks(2, output=halves, resume=True, steps=6)
        self.assertEqual(result.returncode, 1)
        self.assertIn("a step of this run takes 8 sequences, and --batch 2 x --accumulate 1 x 2 ranks are 4",
                      result.stderr)

    def test_what_one_rank_cannot_do_ends_all_with_one_message(self):
        self.refused(2, 2, "--reference with 2 ranks", **self.keys(reference=True))
        self.refused(2, 2, "--zero 1 has", **self.keys(gradient_sync="last"))
        self.refused(2, 2, "--steps is missing", **{key: value for key, value in self.keys().items()
                                                    if key != "steps"})
        self.refused(2, 1, "No such file", **self.keys(data=self.directory / "missing.npy"))
        # The second rank alone is told another learning rate.
        output = self.directory / "differs"
        one, other = (command(1, self.keys(output=output, lr=rate))[len(MPIRUN):] for rate in (0.1, 0.2))
        result = run_launched([*MPIRUN, *one, ":", *other])
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("rank 1: lr = 0.2 here, and lr = 0.1 in rank 0", result.stderr)

    def test_a_loss_that_is_no_number_names_the_rank(self):
        tokens = numpy.load(MODELS / "tokens.npy")[:4 * 32].reshape(2, 64).tolist()
        seen_by_the_second = min(set(tokens[1]) - set(tokens[0]))
        model = self.directory / "model"
        shutil.copytree(MODELS / UNTIED, model)
        weights = safetensors.numpy.load_file(model / "model.safetensors")
        table = "model.embed_tokens.weight"
        weights[table] = weights[table].copy()
        weights[table][seen_by_the_second] = numpy.nan
        safetensors.numpy.save_file(weights, model / "model.safetensors", {"format": "pt"})
        self.refused(2, 1, "step 1: rank 1: the loss is nan in micro-batch 1 of 1",
                     **self.keys(model, order="sequential"))

    def test_a_signal_ends_all_ranks_behind_one_step_and_saves(self):
        process = self.started(2, "signalled", steps=100000)
        self.wait_for_steps(process, "signalled", 3)
        process.send_signal(signal.SIGUSR1)
        _, errors = process.communicate(timeout=TIMEOUT_S)
        self.assertEqual(process.returncode, 128 + signal.SIGUSR1, errors)
        self.assertEqual(errors.count("stopping, as signal 10 asks all ranks"), 1, errors)
        done = steps(self.directory / "signalled")[-1]["step"]
        self.assertEqual((self.directory / "signalled" / "latest").readlink(), pathlib.Path(f"checkpoint-{done}"))
        self.assertEqual([line["step"] for line in steps(self.directory / "signalled")], list(range(1, done + 1)))

    def test_a_rank_that_dies_ends_all_and_the_next_run_goes_on(self):
        chance = random.Random(5)
        whole = dict(steps=STEPS_A_KILL * KILLS, save_every=10, eval_every=0)
        # Beside the others, which spend most of their time in mpirun.
        through = self.started(2, "through", **whole)
        num_killed, waited = 0, []
        with Daemon(self.directory, "64MiB", "512MiB", "64MiB") as daemon:
            for kill in range(KILLS):
                # Gathering ahead, a rank dies in front of what others have begun, too.
                keys = dict(whole, daemon=daemon.socket, device_memory="8MiB", host_memory="64MiB", gather_ahead=1)
                if kill > 0:
                    keys["resume"] = True
                process = self.started(2, "killed", **keys)
                ranks = {}
                while len(ranks) < 2 and process.poll() is None:
                    ranks = self.children(process)
                if kill == 0:
                    self.wait_for_steps(process, "killed", 12)
                try:  # In its start, in a step, in a save.
                    process.wait(timeout=chance.uniform(0, 1.5))
                    self.assertEqual(process.returncode, 0, process.stderr.read())
                    break
                except subprocess.TimeoutExpired:
                    os.kill(ranks[chance.randrange(2)], signal.SIGKILL)
                _, errors = process.communicate(timeout=20)
                if (self.directory / "killed" / f"checkpoint-{whole['steps']}").is_dir() and process.returncode == 0:
                    break  # It had ended before the signal came.
                self.assertNotEqual(process.returncode, 0)
                self.assertNotIn("frame #", errors)  # LibTorch's backtraces.
                num_killed += 1
                self.wait_until_gone(ranks)
                waited.append(self.wait_until_free(daemon))
            self.assertGreater(num_killed, 1)
            result = run_ranks(2, output=self.directory / "killed", resume=True)
            self.assertEqual(result.returncode, 0, result.stderr)
        _, errors = through.communicate(timeout=TIMEOUT_S)
        self.assertEqual(through.returncode, 0, errors)
        print(f"killed {num_killed} times, all free {1000 * max(waited):.0f} ms behind the last rank's end at most", flush=True)
        for file in ("model.safetensors", "optimizer.safetensors"):
            self.assert_same_file(*(self.directory / run / "latest" / file for run in ("through", "killed")))

    def test_a_rank_that_dies_at_a_collective_of_a_step(self):
        output, more = self.directory / "out", dict(accumulate=2, device_memory="8MiB", host_memory="64MiB")
        through = self.ranks(2, "through", **self.keys(steps=8, eval_every=0, **more))
        self.ranks(2, "out", **self.keys(steps=2, eval_every=0, **more))
        # Collectives are numbered from the start of the process: those of a step are the longer run's.
        shutil.copytree(output, self.directory / "counted", symlinks=True)
        counts, resumed = [], dict(more, resume=True, eval_every=0)
        for end in (4, 5):
            result = self.run_preloaded(2, self.directory / "counted", steps=end, no_save=True,
                                        GEMINI_COUNT_IN=self.directory / "count", **resumed)
            self.assertEqual(result.returncode, 0, result.stderr)
            counts.append(int((self.directory / "count").read_text()))
        first, of_step = counts[0], counts[1] - counts[0]
        # Two micro-batches of four units, of which the head stays from forward to backward and the embeddings are
        # needed once: six gathers and four sums; and the loss, and the norm.
        self.assertGreaterEqual(of_step, 2 * 10 + 2)
        sites = min(SITES, of_step) or of_step
        waited = []
        with Daemon(self.directory, "64MiB", "512MiB", "64MiB") as daemon:
            for i in range(sites):
                at = f"{i % 2}:{first + 1 + i * of_step // sites}:{('front', 'behind')[i // 2 % 2]}"
                with self.subTest(at):
                    result = self.run_preloaded(2, output, steps=8, daemon=daemon.socket, GEMINI_KILL_AT=at, **resumed)
                    self.assertIn(result.returncode, (75, 128 + signal.SIGKILL), result.stderr)
                    waited.append(self.wait_until_free(daemon))
            result = run_ranks(2, output=output, resume=True)
            self.assertEqual(result.returncode, 0, result.stderr)
        print(f"died at {sites} of {of_step} collectives, all free {1000 * max(waited):.0f} ms behind mpirun's end at most",
              flush=True)
        for file in ("model.safetensors", "optimizer.safetensors"):
            self.assert_same_file(through / "latest" / file, output / "latest" / file)

    def test_a_rank_that_stops_is_named(self):
        with concurrent.futures.ThreadPoolExecutor() as pool:  # Side by side: they wait for the time to be over.
            list(pool.map(lambda stopped: self.check_a_rank_that_stops(3, stopped, gather_ahead=stopped), (0, 1)))

    def test_a_rank_that_stops_at_the_end_holds_nobody(self):
        """The run is over, and no watchdog watches any more: the last collectives are two that say so."""
        keys = {"steps": 2, "eval_every": 0, "collective_timeout": 5}
        result = self.run_preloaded(2, self.directory / "counted", GEMINI_COUNT_IN=self.directory / "count", **keys)
        self.assertEqual(result.returncode, 0, result.stderr)
        last = int((self.directory / "count").read_text())
        start = time.monotonic()
        result = self.run_preloaded(2, self.directory / "out", GEMINI_KILL_AT=f"1:{last}:halt", **keys)
        self.assertLess(time.monotonic() - start, 5 + 15)
        self.assertEqual(result.returncode, 75, result.stderr)
        said, = self.said(result.stderr)
        self.assertIn("rank 0: the run is over, and for 5s another rank has not come to its end", said)
        self.assert_same_file(*(self.directory / name / "latest" / "model.safetensors" for name in ("counted", "out")))

    def test_a_rank_that_fails_alone_ends_all_with_one_message(self):
        self.check_a_rank_that_fails_alone(2, 1)

    def test_a_rank_of_eight_whose_operator_has_no_room_ends_all_with_one_message(self):
        keys = {"model": MODELS / "router", "sequence": 1024, "batch": 1, "steps": 2, "threads": 1, "zero": 0,
                "recompute": True, "chunk_size": "16KiB", "log_level": "warning"}
        dealt, crowded = ({"data": MODELS / f"{name}.npy", **keys} for name in ("dealt", "crowded"))
        said = self.refused(8, 1, "raise --device-memory", device_memory="64KiB", **dealt)
        known = int(re.search(r"\((\d+) bytes\) together", said)[1])
        # That is enough where a router deals its tokens out, and less than one expert needs for all of a rank's.
        budget = known * 21 // 20
        self.ranks(8, "dealt", device_memory=budget, **dealt)
        process = self.begun(command(8, {"output": self.directory / "crowded", "device_memory": budget, **crowded}))
        said = next(line for line in process.stderr if line.startswith("gemini-train: "))
        begin = time.monotonic()
        others = self.said(process.stderr.read())
        self.assertEqual((process.wait(), others), (75, []))
        self.assertLess(time.monotonic() - begin, 10)
        self.assertRegex(said, "rank [0-7]: step [12]: DEVICE is .* too small: aten::")

    def test_a_budget_that_is_too_small_is_said_once(self):
        keys = self.keys(recompute=True, batch=1)
        said = self.refused(2, 1, "raise --device-memory", device_memory="512KiB", **keys)
        self.assertRegex(said, "backward of model.layers.3")
        # That is known before the first step, and not quite all that a step needs.
        known, = re.findall(r"\((\d+) bytes\) together", said)
        for ahead in (0, 1):
            self.refused(2, 75, "raise --device-memory", device_memory=known, gather_ahead=ahead, **keys)

    def test_ranks_share_a_daemon_which_refuses_those_that_have_no_room(self):
        more = {"device_memory": "8MiB", "host_memory": "16MiB", "chunk_size": "64KiB"}
        with Daemon(self.directory, "64MiB", "512MiB", "64MiB") as daemon:
            shared = self.ranks(3, "shared", **self.keys(daemon=daemon.socket, **more))
            apart = self.ranks(3, "apart", **self.keys(**more))
            self.assert_same_end(apart, shared)
        with Daemon(self.directory / "apart", "64MiB", "40MiB", "64MiB") as daemon:
            self.refused(3, 1, "HOST", **self.keys(daemon=daemon.socket, **more))

    def test_a_daemon_that_dies_costs_ranks_no_step(self):
        keys = {"eval_every": 0, "schedule": "constant", "device_memory": "8MiB", "host_memory": "64MiB"}
        output = self.directory / "out"
        with Daemon(self.directory, "64MiB", "512MiB", "64MiB") as daemon:
            process = self.started(2, "out", steps=100000, daemon=daemon.socket, **keys)
            self.wait_for_steps(process, "out", 3)
            daemon.process.kill()
            _, errors = process.communicate(timeout=TIMEOUT_S)
        # All ranks end in order, with one message.
        self.assertEqual((process.returncode, len(self.said(errors))), (1, 1), errors)
        self.assertIn("the server is gone", self.said(errors)[0])
        done = steps(output)[-1]["step"]
        self.assertEqual((output / "latest").readlink(), pathlib.Path(f"checkpoint-{done}"))
        through = self.ranks(2, "through", **self.keys(steps=done, **keys))
        for file in ("model.safetensors", "optimizer.safetensors"):
            self.assert_same_file(through / "latest" / file, output / "latest" / file)


if __name__ == "__main__":
    unittest.main()
