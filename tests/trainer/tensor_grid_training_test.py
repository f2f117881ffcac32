#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gemini-train by mpirun, where ranks share each layer on a square, on several squares or in a cube: they train as one
process does, wherever their parts lie, and go on from each other's checkpoints."""
import os
import signal
import unittest

from ranks_program import TIED, SharingRanksTestCase

SQUARE = {"tensor": "2d", "tensor_size": 4}
SQUARES = {"tensor": "2.5d", "tensor_size": 8, "tensor_depth": 2}
CUBE = {"tensor": "3d", "tensor_size": 8}


class TensorGridRanksTest(SharingRanksTestCase):
    def keys(self, model="llama", **more):
        return super().keys(model, **{"batch": 4, "steps": 4, **more})

    def test_grids_of_ranks_train_as_one_process_does(self):
        for name, model, grids in (("llama", {}, (SQUARES, CUBE)),
                                   ("gpt2", {"model": TIED, "recompute": True}, (SQUARE,))):
            one = self.train(f"one_{name}", **self.keys(**model))
            for grid in grids:
                with self.subTest(name, grid=grid["tensor"]):
                    ranks = self.ranks(grid["tensor_size"], f"{name}_{grid['tensor']}", **grid, **self.keys(**model))
                    self.assert_close(one, ranks)

    def test_one_square_of_several_is_a_square(self):
        square = self.ranks(4, "square", **SQUARE, **self.keys(TIED))
        self.assert_same_end(square, self.ranks(4, "squares", tensor="2.5d", **self.keys(TIED)))

    def test_stages_and_tiers_change_no_bit(self):
        # Two squares that learn from other sequences, and two that share them.
        small = {"zero": 3, "recompute": True, "chunk_size": "16KiB", "device_memory": "1600KiB"}
        on_nvme = {"zero": 1, "optimizer_tier": "nvme", "nvme": f"{self.directory}:64MiB"}
        for name, grid, others in (("apart", SQUARE, (small,)), ("in_depth", SQUARES, (on_nvme, small))):
            whole = self.ranks(8, f"whole_{name}", zero=0, **grid, **self.keys())
            for keys in others:
                self.assert_same_end(whole, self.ranks(8, f"{name}_{keys['zero']}", **grid, **self.keys(**keys)))

    def test_formats(self):
        self.check_beside_ranks_that_share_nothing(SQUARE, {
            "bf16": ({"loss": 2e-3, "norm": 1e-2, "parameters": 1e-3}, {"precision": "bf16"}),
            "lamb": ({}, {"optimizer": "lamb"})}, num_apart=1)

    def test_other_meshes_go_on(self):
        self.check_other_meshes_go_on(8, dict(SQUARES, zero=3), [
            ("same", 8, {}),
            ("cube", 8, {"tensor": "3d"}),
            ("line", 2, {"tensor": "1d", "tensor_size": 2}),
            ("alone", 1, {"tensor": "none"})])

    def test_what_does_not_divide_is_refused(self):
        config = self.directory / "grid.toml"
        config.write_text('[parallel]\ntensor = { mode = "2d", size = 4 }\n')
        for num_ranks, text, keys in (
                (4, "grid.toml:2: --tensor 2d", {"config": config, "model": "qwen2_moe"}),
                (4, "--batch 3", {"batch": 3, **SQUARE}),
                (4, "3d takes q^3 ranks, which 4 are not: use 1 or 8", {"tensor": "3d"})):
            with self.subTest(text):
                self.refused(num_ranks, 2, text, **self.keys(**keys))

    def test_a_rank_of_eight_that_dies_ends_all(self):
        process = self.started(8, "killed", **SQUARES, steps=100000, batch=4, eval_every=0)
        self.wait_for_steps(process, "killed", 2)
        ranks = self.children(process)
        os.kill(ranks[5], signal.SIGKILL)
        process.communicate(timeout=20)
        self.assertNotEqual(process.returncode, 0)
        self.wait_until_gone(ranks)


if __name__ == "__main__":
    unittest.main()
