#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gemini-train by mpirun, where ranks share each layer on a square, on several squares or in a cube: they train as one
process does, wherever their parts lie, and go on from each other's checkpoints."""
import unittest

from ranks_program import TIED, SharingRanksTestCase
from train_program import Daemon

SQUARE = {"tensor": "2d", "tensor_size": 4}
SQUARES = {"tensor": "2.5d", "tensor_size": 8, "tensor_depth": 2}
CUBE = {"tensor": "3d", "tensor_size": 8}


class TensorGridRanksTest(SharingRanksTestCase):
    def keys(self, model="llama", **more):
        return super().keys(model, **{"batch": 4, **more})

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

    def check_stages(self, grid):
        """Of eight ranks in all stages, with states on NVMe and with little DEVICE."""
        whole = self.ranks(8, "whole", zero=0, **grid, **self.keys())
        for keys in ({"zero": 1, "optimizer_tier": "nvme", "nvme": f"{self.directory}:64MiB"},
                     {"zero": 2},
                     {"zero": 3, "gather_ahead": 1, "recompute": True, "chunk_size": "16KiB",
                      "device_memory": "1800KiB"}):
            with self.subTest(zero=keys["zero"]):
                self.assert_same_end(whole, self.ranks(8, f"stage_{keys['zero']}", **grid, **self.keys(**keys)))

    def test_stages_of_squares_that_learn_from_other_sequences_change_no_bit(self):
        self.check_stages(SQUARE)

    def test_stages_of_squares_that_share_sequences_change_no_bit(self):
        self.check_stages(SQUARES)

    def test_accumulated_and_vertical_micro_batches(self):
        for schedule in ("horizontal", "vertical"):
            keys = {"accumulate": 2, "micro_batch_schedule": schedule, "model": TIED}
            one = self.train(f"one_{schedule}", **self.keys(**keys))
            with self.subTest(schedule):
                self.assert_close(one, self.ranks(4, f"square_{schedule}", **SQUARE, **self.keys(**keys)))

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
        without_size = self.directory / "without_size.toml"
        without_size.write_text('[parallel]\n\ntensor = { mode = "3d" }\n')
        self.all_refused(2, [(4, text, self.keys(**keys)) for text, keys in (
            ("without_size.toml:3: --tensor 3d", {"config": without_size}),
            ("grid.toml:2: --tensor 2d", {"config": config, "model": "qwen2_moe"}),
            ("--batch 3", {"batch": 3, **SQUARE}),
            ("3d takes q^3 ranks, which 4 are not: use 1 or 8", {"tensor": "3d"}))])

    def test_a_rank_of_eight_that_fails_alone_ends_all_with_one_message(self):
        self.check_a_rank_that_fails_alone(8, 5, **SQUARES)

    def test_a_budget_in_which_no_step_runs_is_refused_before_the_first_one(self):
        keys = self.keys(chunk_size="16KiB", steps=2, eval_every=0, **SQUARES)
        known = self.check_no_more_is_foretold(8, "plenty", **keys)
        # That is nearly all that a step needs.
        self.ranks(8, "runs", device_memory=known * 21 // 20, **keys)

    def test_a_rank_of_eight_that_dies_ends_all(self):
        with Daemon(self.directory, "128MiB", "512MiB", "64MiB") as daemon:
            process = self.started(8, "killed", **SQUARES, steps=100000, batch=4, eval_every=0, daemon=daemon.socket,
                                   device_memory="8MiB", host_memory="32MiB")
            self.check_a_rank_that_dies(process, "killed", 5)
            self.wait_until_free(daemon)


if __name__ == "__main__":
    unittest.main()
