#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PlacementInvariance of ranks that share layers or sequences, in each mode: wherever their parts lie and however
these move, they leave the same bytes, also when they stop in between; and what one process leaves, but for rounding.
The rows of the vocabulary divide by no number of ranks, so that tables are padded.

Placements are drawn at random. GEMINI_PARITY_SEED repeats those of the run that printed it.
"""
import os
import random
import unittest

import train_program
from ranks_program import SharingRanksTestCase, run_ranks
from train_program import KIB, MODELS, metrics

UNTIED, TIED = "odd_rows", "odd_rows_tied"
CHUNK = 16 * KIB
MOST_TRIES = 10


class SharingPlacementsTest(SharingRanksTestCase):
    def keys(self, model=UNTIED, **more):
        return super().keys(model, **{"data": MODELS / "odd_tokens.npy", "eval_data": MODELS / "odd_eval.npy",
                                      "schedule": "constant", "clip": 0.5, "batch": 4, "eval_every": 2, **more})

    def train_in_little(self, num_ranks, name, room, **keys):
        """Trains in so much more DEVICE than the least that the ranks name, before the first step or within one: what
        is foretold may be too little. Returns the output directory."""
        budget = CHUNK
        for _ in range(MOST_TRIES):
            result = run_ranks(num_ranks, output=self.directory / name, overwrite=True, device_memory=budget, **keys)
            if result.returncode == 0:
                break
            budget = self.named_bytes(result) + room
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.directory / name

    def assert_same_bits(self, one, other):
        for file in ("model.safetensors", "optimizer.safetensors"):
            self.assert_same_file(one / "latest" / file, other / "latest" / file)
        of_step = [[(line["step"], line.get("loss"), line.get("grad_norm"), line.get("eval_loss"))
                    for line in metrics(output)] for output in (one, other)]
        self.assertEqual(*of_step)

    def check_placements(self, num_ranks, model=UNTIED, **sharing):
        seed = int(os.environ.get("GEMINI_PARITY_SEED", random.randrange(1 << 32)))
        draw = random.Random(seed)
        more = {"precision": draw.choice(("fp32", "bf16")), "moments": draw.choice(("fp32", "fp32", "8bit")),
                "accumulate": draw.choice((1, 2))}
        keys = self.keys(model, **more, **{"zero": draw.randrange(4), **sharing})
        print(f"{self.id()}, GEMINI_PARITY_SEED={seed}: {more}, stage {keys['zero']}", flush=True)
        undisturbed = self.ranks(num_ranks, "undisturbed", **keys)
        self.assertLess(train_program.steps(undisturbed)[0]["clip_coefficient"], 1)
        if more["precision"] == more["moments"] == "fp32":
            self.assert_close(self.train("alone", **self.keys(model, **more)), undisturbed)

        with self.subTest("at the floor"):
            at_the_floor = self.train_in_little(num_ranks, "at_the_floor", CHUNK, chunk_size=CHUNK, recompute=True,
                                                **keys)
            self.assert_same_bits(undisturbed, at_the_floor)
        placement = self.random_tiers("store", draw, range(CHUNK, 5 * CHUNK, 8 * KIB),
                                      train_program.parameter_bytes(model))
        room = int(train_program.parameter_bytes(model) * draw.random() ** 2)
        print(f"{placement}, {room} bytes above the floor", flush=True)
        with self.subTest(**placement):
            first_half = self.train_in_little(num_ranks, "placed", room, **dict(keys, steps=2), **placement)
            result = run_ranks(num_ranks, output=first_half, resume=True, steps=4)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assert_same_bits(undisturbed, first_half)

    def test_layers(self):
        self.check_placements(2, tensor="1d")

    def test_layers_and_sequences(self):
        self.check_placements(2, TIED, tensor="1d", sequence_parallel="megatron")

    def test_heads_of_sequences(self):
        self.check_placements(2, TIED, sequence_parallel="ulysses")

    def test_rings(self):
        self.check_placements(2, sequence_parallel="ring")

    def test_squares(self):
        self.check_placements(4, TIED, tensor="2d")

    def test_squares_in_layers(self):
        self.check_placements(8, tensor="2.5d", tensor_size=8, tensor_depth=2, zero=3)

    def test_cubes(self):
        self.check_placements(8, tensor="3d")


if __name__ == "__main__":
    unittest.main(verbosity=2)
