#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gemini-train by mpirun, where ranks have a model's blocks one after the other: they leave the bytes of one process
with as many micro-batches, wherever their parts lie, and go on from each other's checkpoints."""
import concurrent.futures
import shutil
import signal
import time
import unittest

import train_program
from ranks_program import EPSILON, TIED, RanksTestCase, SharingRanksTestCase, run_ranks
from train_program import steps

# Of four stages with four micro-batches, (rank, number) of messages that a rank sends in its second step: in warm-up,
# in the middle and at the end. The first rank has sent three more before, of what it has begun.
MESSAGES = [(rank, before + number) for rank, (before, of_step) in enumerate(((4 + 3, 4), (8, 8), (8, 8), (4, 4)))
            for number in (1, of_step // 2, of_step)]
INTERLEAVED = {"pipeline_schedule": "interleaved", "pipeline_chunks": 2}


class PipelineTest(RanksTestCase):
    def keys(self, *model, **more):
        return super().keys(*model, **{"steps": 4, "batch": 1, "accumulate": 4, "eval_every": 3, **more})

    def test_a_pipeline_trains_as_one_process_does(self):
        self.all_train_as_one_process_does({
            "plain": (2, {}),
            "longer": (4, {"accumulate": 3}),
            "one_micro_batch": (2, {"accumulate": 1}),
            "interleaved": (2, {"accumulate": 8, "recompute": True, "model": "qwen3", **INTERLEAVED}),
            "uneven": (2, {"pipeline_split": "1,3", "moments": "8bit"})})

    def test_so_do_other_models_optimizers_and_placements(self):
        self.all_train_as_one_process_does({
            "experts": (4, {"model": "mixtral", "optimizer": "lamb"}),
            "bf16": (2, {"precision": "bf16", "model": "gpt_neox", **INTERLEAVED}),
            "small": (2, {"device_memory": "3MiB", "chunk_size": "64KiB", "recompute": True}),
            "on_nvme": (2, {"host_memory": "5MiB", "nvme": f"{self.directory}:64MiB", "chunk_size": "64KiB"})})

    def all_train_as_one_process_does(self, pipelines):
        of_ranks = ("pipeline", "pipeline_split", "device_memory", "chunk_size", "host_memory", "nvme",
                    *INTERLEAVED)
        for name, (num_ranks, more) in pipelines.items():
            with self.subTest(name):
                alone = {key: value for key, value in more.items() if key not in of_ranks}
                one = self.train(f"one_{name}", **self.keys(**alone))
                several = self.ranks(num_ranks, f"ranks_{name}", pipeline=num_ranks, **self.keys(**more))
                self.assert_same_end(one, several)

    def test_a_tied_table_is_added_up_by_look_ups_and_heads(self):
        one = self.train("one", **self.keys(TIED, epsilon=EPSILON))
        ends = [self.ranks(num_ranks, f"ranks_{name}", pipeline=num_ranks, **self.keys(TIED, epsilon=EPSILON, **more))
                for name, num_ranks, more in (("two", 2, {}), ("four", 4, {}), ("interleaved", 2, INTERLEAVED))]
        for end in ends[1:]:
            self.assert_same_end(ends[0], end)
        for left, right in zip(steps(one), steps(ends[0])):
            for key in ("loss", "grad_norm"):
                self.assertAlmostEqual(left[key], right[key], delta=1e-5 * left[key], msg=key)

    def test_stages_of_pipelines_end_as_those_without(self):
        self.all_end_as_those_without()

    def test_stages_of_pipelines_in_bf16_that_recompute_end_as_those_without(self):
        self.all_end_as_those_without(precision="bf16", recompute=True)

    def all_end_as_those_without(self, **model):
        for zero in range(4):
            with self.subTest(zero=zero):
                keys = self.keys(zero=zero, accumulate=2, **model)
                self.assert_same_end(self.ranks(2, f"apart_{zero}", **keys),
                                     self.ranks(4, f"pipelines_{zero}", pipeline=2, **keys))

    def test_stages_with_a_tied_table_end_alike(self):
        sync = ("each", "each", "auto", "auto")
        ends = [self.ranks(4, f"tied_{zero}", pipeline=2, zero=zero, **self.keys(TIED, gradient_sync=sync[zero]))
                for zero in range(4)]
        for end in ends[1:]:
            self.assert_same_end(ends[0], end)

    def test_other_meshes_go_on(self):
        more = {"schedule": "constant", "accumulate": 4}
        through = self.ranks(2, "through", pipeline=2, **self.keys(**dict(more, steps=6)))
        first = self.ranks(2, "first", pipeline=2, **self.keys(**dict(more, steps=3)))
        for name, num_ranks, keys in (("same", 2, {}),
                                      ("longer", 4, {"pipeline": 4}),
                                      ("alone", 1, {"pipeline": 1})):
            with self.subTest(name):
                output = self.directory / name
                shutil.copytree(first, output, symlinks=True)
                going = dict(keys, output=output, resume=True, steps=6)
                result = run_ranks(num_ranks, **going) if num_ranks > 1 else train_program.run(**going)
                self.assertEqual(result.returncode, 0, result.stderr)
                for file in ("model.safetensors", "optimizer.safetensors", "trainer_state.json"):
                    self.assert_same_file(through / "latest" / file, output / "latest" / file)

    def test_what_is_no_pipeline_is_refused(self):
        self.all_refused(2, [(num_ranks, text, self.keys(**keys)) for num_ranks, text, keys in (
            (2, "8 stages of a pipeline need as many blocks, the model has 4",
             {"pipeline": 2, **INTERLEAVED, "pipeline_chunks": 4}),
            (2, "--pipeline-chunks 2, --accumulate 3", {"pipeline": 2, "accumulate": 3, **INTERLEAVED}),
            (2, "--pipeline-split: '2,3' has more blocks than the model",
             {"pipeline": 2, "pipeline_split": "2,3"}),
            (2, "zb-h1 is only foretold", {"pipeline": 2, "pipeline_schedule": "zb-h1"}),
            (2, "--micro-batch-schedule vertical", {"pipeline": 2, "micro_batch_schedule": "vertical"}),
            (3, "3 ranks do not divide into pp 2", {"pipeline": 2}),
            (2, "--pipeline-chunks 2 is of --pipeline", {"pipeline_chunks": 2}))])

    def test_a_rank_that_dies_ends_all_and_the_next_run_goes_on(self):
        self.check_the_next_run_goes_on(4, 2, pipeline=4)

    def test_a_rank_that_dies_at_a_message_ends_all(self):
        for (rank, number), result in self.ends_at_messages("send", MESSAGES, within_s=10):
            with self.subTest(rank=rank, number=number):
                self.assertIn(result.returncode, (75, 128 + signal.SIGKILL), result.stderr)
                self.assertLessEqual(len(self.said(result.stderr)), 1, result.stderr)

    def test_a_rank_that_stops_in_warm_up_is_named(self):
        self.all_that_stop_are_named(MESSAGES[0::3])

    def test_a_rank_that_stops_in_steady_state_is_named(self):
        self.all_that_stop_are_named(MESSAGES[1::3])

    def test_a_rank_that_stops_in_cool_down_is_named(self):
        self.all_that_stop_are_named(MESSAGES[2::3])

    def all_that_stop_are_named(self, messages):
        self.all_are_named("stop", messages, r"\brank {} has not|rank {}: --collective-timeout|[ ,]{} \(at ")

    def test_a_rank_that_lives_and_sends_no_more_is_named(self):
        # Its thread of MPI hangs, so it waits itself: it is one of those that wait for each other.
        self.all_are_named("hang", MESSAGES[1::3], r"\brank {}\b")

    def all_are_named(self, what, messages, text):
        """Behind the time for a collective all ranks end, and one of them says which one did not go on."""
        for (rank, number), result in self.ends_at_messages(what, messages, within_s=5 + 10, collective_timeout=5):
            with self.subTest(rank=rank, number=number):
                self.assertEqual(result.returncode, 75, result.stderr)
                self.assertEqual(len(self.said(result.stderr)), 1, result.stderr)
                self.assertRegex(self.said(result.stderr)[0], text.replace("{}", str(rank)))

    def ends_at_messages(self, what, messages, within_s, **keys):
        """Returns the messages and the results of runs in which a rank dies, stops or hangs there, in the second
        step."""
        def end(rank, number):
            output = self.directory / f"{what}_{rank}_{number}"
            result = self.run_preloaded(4, output, pipeline=4, eval_every=0, GEMINI_KILL_AT=f"{rank}:{number}:{what}",
                                        **keys)
            return output, result, time.time() - (output / "metrics.jsonl").stat().st_mtime
        with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
            ends = list(pool.map(lambda one: end(*one), messages))
        for output, result, seconds in ends:
            self.assertEqual(len(steps(output)), 1, result.stderr)
            self.assertLess(seconds, within_s)
        return zip(messages, [result for _, result, _ in ends])


class MixedMeshesTest(SharingRanksTestCase):
    def test_pipelines_of_ranks_that_share_layers(self):
        self.all_train_alike({
            "line": (4, 1, {"tensor": "1d", "tensor_size": 2}),
            "megatron": (8, 2, {"tensor": "1d", "tensor_size": 2, "sequence_parallel": "megatron", "zero": 3}),
            "grid": (8, 1, {"tensor": "2.5d", "tensor_size": 4})})

    def test_pipelines_of_ranks_that_share_sequences(self):
        self.all_train_alike({
            "ulysses": (8, 2, {"sequence_parallel": "ulysses", "sequence_size": 2}),
            "ring": (4, 1, {"sequence_parallel": "ring", "zero": 2})})

    def all_train_alike(self, meshes):
        for name, (num_ranks, num_data, more) in meshes.items():
            for model in ("llama", TIED):
                with self.subTest(name, model=model):
                    keys = self.keys(model, batch=2, accumulate=2, overwrite=True)
                    apart = self.ranks(num_data, "apart", **keys) if num_data > 1 else self.train("apart", **keys)
                    self.assert_close(apart, self.ranks(num_ranks, "mixed", pipeline=2, **more, **keys))


if __name__ == "__main__":
    unittest.main()
