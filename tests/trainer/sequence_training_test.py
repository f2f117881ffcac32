#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gemini-train by mpirun, where ranks share sequences by Ulysses or in a ring: they train as one process does, wherever
their parts lie, and go on from each other's checkpoints."""
import unittest

from ranks_program import TIED, SharingRanksTestCase

ULYSSES = {"sequence_parallel": "ulysses", "sequence_size": 2}
RING = {"sequence_parallel": "ring", "sequence_size": 2}


class SequenceRanksTest(SharingRanksTestCase):
    def test_ranks_that_share_sequences_train_as_one_process_does(self):
        for name, (num_ranks, sharing, keys) in {
                "ulysses": (4, "ulysses", {"model": TIED, "recompute": True}),
                "ring": (4, "ring", {}),
                "contiguous": (2, "ring", {"model": "gemma2", "sequence_layout": "contiguous"}),
                "experts": (2, "ring", {"model": "qwen3_moe"})}.items():
            with self.subTest(name):
                one = self.train(f"one_{name}", **self.keys(**{key: value for key, value in keys.items()
                                                               if key != "sequence_layout"}))
                self.assert_close(one, self.ranks(num_ranks, f"ranks_{name}", sequence_parallel=sharing,
                                                  **self.keys(**keys)))

    def test_sequences_and_layers_are_shared_at_once(self):
        one = self.train("one", **self.keys())
        for name, keys in (("ulysses", ULYSSES), ("ring", RING)):
            self.assert_close(one, self.ranks(4, name, tensor="1d", **keys, **self.keys()))

    def test_stages_and_tiers_change_no_bit(self):
        for sharing in (ULYSSES, RING):
            name = sharing["sequence_parallel"]
            whole = self.ranks(4, f"whole_{name}", zero=0, **sharing, **self.keys())
            for zero, keys in ((1, {}), (2, {"optimizer_tier": "nvme", "nvme": f"{self.directory}:64MiB"}),
                               (3, {"recompute": True, "chunk_size": "16KiB", "gather_ahead": 1})):
                self.assert_same_end(whole, self.ranks(4, f"{name}_{zero}", zero=zero, **sharing, **self.keys(**keys)))

    def test_many_micro_batches_and_formats(self):
        vertical = {"accumulate": 2, "batch": 1, "micro_batch_schedule": "vertical", "model": TIED}
        self.check_beside_ranks_that_share_nothing(RING, {
            "vertical": ({}, vertical),
            "bf16": ({"loss": 2e-3, "norm": 1e-2, "parameters": 1e-3}, {"precision": "bf16"}),
            "quantised": ({"loss": 1e-4, "norm": 1e-3, "parameters": 2e-3}, {"moments": "8bit"})})

    def test_two_rings_of_four(self):
        apart = self.ranks(2, "apart", **self.keys())
        keys = {"sequence_parallel": "ring", "sequence_size": 4}
        ends = [self.ranks(8, f"rings_{zero}", zero=zero, **keys, **self.keys()) for zero in (0, 3)]
        self.assert_same_end(*ends)
        self.assert_close(apart, ends[0])

    def test_other_meshes_go_on(self):
        self.check_other_meshes_go_on(4, RING, [
            ("same", 4, {}),
            ("ulysses", 4, {"sequence_parallel": "ulysses"}),
            ("line", 4, {"sequence_parallel": "none", "tensor": "1d", "tensor_size": 2}),
            ("alone", 1, {"sequence_parallel": "none", "accumulate": 2})])

    def test_a_rank_that_stops_in_a_ring_is_named(self):
        self.check_a_rank_that_stops(2, 1, sequence_parallel="ring")


if __name__ == "__main__":
    unittest.main()
