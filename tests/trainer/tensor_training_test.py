#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gemini-train by mpirun, where ranks share each layer: they train as one process does, wherever their parts lie, and go
on from each other's checkpoints."""
import unittest

from ranks_program import TIED, SharingRanksTestCase
from train_program import steps

SHARED = {"tensor": "1d", "tensor_size": 2}
MEGATRON = {"sequence_parallel": "megatron", **SHARED}


class TensorRanksTest(SharingRanksTestCase):
    def test_ranks_that_share_layers_train_as_one_process_does(self):
        for name, (num_ranks, keys) in {
                "llama": (4, {}),
                "gpt2": (2, {"model": TIED, "recompute": True}),
                "opt_post_norm": (2, {"model": "opt_post_norm"}),
                "gemma2": (2, {"model": "gemma2"}),
                "cohere": (4, {"model": "cohere"}),
                "qwen3_moe": (2, {"model": "qwen3_moe"})}.items():
            with self.subTest(name):
                one = self.train(f"one_{name}", **self.keys(**keys))
                self.assert_close(one, self.ranks(num_ranks, f"ranks_{name}", tensor="1d", **self.keys(**keys)))

    def test_parts_of_sequences_change_nothing_but_rounding(self):
        for name, keys in {"llama": {}, "gpt2": {"model": TIED}, "gpt_neox": {"model": "gpt_neox"},
                           "qwen3_moe": {"model": "qwen3_moe"}}.items():
            with self.subTest(name):
                one = self.train(f"one_{name}", **self.keys(**keys))
                parts = self.ranks(2, f"parts_{name}", **MEGATRON, **self.keys(**keys))
                self.assert_close(one, parts)
                # Recomputed, with less DEVICE: the same bits.
                more = {"recompute": True, "device_memory": "4MiB", "chunk_size": "16KiB"}
                self.assert_same_end(parts, self.ranks(2, f"again_{name}", **MEGATRON, **self.keys(**dict(keys, **more))))
        vertical = {"accumulate": 2, "batch": 1, "micro_batch_schedule": "vertical", "model": TIED}
        apart = self.ranks(2, "apart", **self.keys(**vertical))
        for name, keys in (("shared", SHARED), ("in_parts", MEGATRON)):
            self.assert_close(apart, self.ranks(4, name, **keys, **self.keys(**vertical)))

    def test_parts_of_sequences_in_all_stages(self):
        whole = self.ranks(4, "whole", zero=0, **MEGATRON, **self.keys(TIED))
        for zero in (1, 2, 3):
            self.assert_same_end(whole, self.ranks(4, f"stage_{zero}", zero=zero, **MEGATRON, **self.keys(TIED)))
        self.check_beside_ranks_that_share_nothing(
            MEGATRON, {"bf16": ({"loss": 2e-3, "norm": 1e-2, "parameters": 1e-3}, {"precision": "bf16"})})

    def test_copies_of_key_heads_in_all_stages(self):
        # Of two key and value heads, each is that of two ranks, twice.
        keys = {"tensor": "1d", "tensor_size": 4}
        ends = [self.ranks(8, f"copies_{zero}", zero=zero, **keys, **self.keys()) for zero in (0, 3)]
        self.assert_same_end(*ends)
        self.assert_close(self.ranks(2, "no_copies", **self.keys()), ends[0])

    def test_formats(self):
        # What is rounded otherwise differs by 2^-8 in bf16, by 2^-11 in fp16, and a moment by a code of 8 bits.
        self.check_beside_ranks_that_share_nothing(SHARED, {
            "bf16": ({"loss": 2e-3, "norm": 1e-2, "parameters": 1e-3}, {"precision": "bf16"}),
            "fp16": ({"loss": 2e-4, "norm": 2e-3}, {"precision": "fp16"}),
            "quantised": ({"loss": 1e-4, "norm": 1e-3, "parameters": 2e-3}, {"moments": "8bit"})})

    def test_layer_wise_optimizers(self):
        self.check_beside_ranks_that_share_nothing(SHARED, {
            "lamb": ({}, {"optimizer": "lamb"}),
            "lars": ({}, {"optimizer": "lars", "lr": 0.1})})

    def test_stages_and_tiers_change_no_bit(self):
        whole = self.ranks(4, "whole", zero=0, **SHARED, **self.keys())
        for name, keys in {
                "1": {"zero": 1},
                "2": {"zero": 2},
                "3": {"zero": 3, "gather_ahead": 1},
                "on_nvme": {"optimizer_tier": "nvme", "nvme": f"{self.directory}:64MiB"},
                "small": {"device_memory": "1600KiB", "chunk_size": "16KiB", "recompute": True}}.items():
            with self.subTest(name):
                self.assert_same_end(whole, self.ranks(4, f"other_{name}", **SHARED, **self.keys(**keys)))

    def test_stages_of_accumulated_gradients_are_in_two_classes(self):
        ends = [self.ranks(4, f"stage_{zero}", zero=zero, accumulate=2, **SHARED, **self.keys(batch=1))
                for zero in range(4)]
        self.assert_same_end(ends[0], ends[1])
        self.assert_same_end(ends[2], ends[3])
        self.assert_close(ends[0], ends[2])
        # What each has of the model is a half, or a quarter.
        host = [steps(end)[-1]["host_bytes"] for end in ends]
        self.assertLess(host[3], 0.6 * host[0])

    def test_other_meshes_go_on(self):
        self.check_other_meshes_go_on(4, SHARED, [
            ("same", 4, {}),
            ("line", 4, {"tensor_size": 4, "accumulate": 2}),
            ("shards", 2, {"tensor": "none"}),
            ("parts", 4, {"sequence_parallel": "megatron"}),
            ("alone", 1, {"tensor": "none", "accumulate": 2})])

    def test_ranks_may_be_counted_in_another_order(self):
        ends = [self.ranks(4, f"order_{order[0]}", rank_order=order, **SHARED, **self.keys())
                for order in ("pp,dp,sp,tp", "tp,sp,dp,pp")]
        self.assert_same_end(*ends)

    def test_no_more_is_foretold_of_device_than_a_step_takes(self):
        for name, keys in {
                "shards": {"zero": 3, "accumulate": 2, "model": "qwen3_moe", **MEGATRON},
                "whole": {"zero": 0, "accumulate": 2, "precision": "bf16", "model": TIED, **SHARED},
                "projected": {"zero": 2, "accumulate": 2, "recompute": True, "model": "opt_post_norm", **SHARED}}.items():
            with self.subTest(name):
                self.check_no_more_is_foretold(4, name, **self.keys(steps=2, eval_every=0, batch=1, **keys))

    def test_what_does_not_divide_is_refused(self):
        self.all_refused(2, [(num_ranks, text, self.keys(**keys)) for num_ranks, text, keys in (
            (3, "3 ranks do not divide into pp 1 x sp 1 x tp 2 = 2: start 2 or 4 ranks", SHARED),
            (2, "--tensor-size 2 is of --tensor", {"tensor_size": 2}),
            (3, "its attention heads, 4, do not divide by 3: use --tensor-size 2 or 4", {"tensor": "1d"}),
            (2, "--sequence-parallel megatron is of --tensor 1d", {"sequence_parallel": "megatron"}),
            (6, "--tensor 2d: 2d takes q^2 ranks, which 6 are not: use 4 or 9", {"tensor": "2d"}),
            (4, "--tensor-size of --tensor 2d: 2d takes q^2 ranks, which 8 are not: use 4 or 9", {"tensor": "2d", "tensor_size": 8}),
            (4, "--sequence 28 does not divide by 8, two parts a rank: use 24 or 32",
             {"sequence_parallel": "ring", "sequence": 28}),
            (3, "the attention heads, 4, do not divide by 3: use --sequence-size 2 or 4",
             {"sequence_parallel": "ulysses", "sequence": 24}),
            (2, "--sequence 31 does not divide by 2: use 30 or 32", {"sequence": 31, **MEGATRON}))])

    def test_a_rank_that_dies_ends_all_and_the_next_run_goes_on(self):
        self.check_the_next_run_goes_on(4, 3, **SHARED)


if __name__ == "__main__":
    unittest.main()
