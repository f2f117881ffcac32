#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PlacementInvariance of ranks that share layers, sequences or blocks, in each mode: wherever their parts lie and however
these move, they leave the same bytes, also when they stop in between; and what one process leaves, but for rounding,
so that transformers computes the same logits of both. The rows of the vocabulary divide by no number of ranks, so that
tables are padded.

Models, formats and placements are drawn at random. GEMINI_PARITY_SEED repeats those of the run that printed it.
"""
import os
import random
import unittest

import numpy
import torch
import transformers

import train_program
from ranks_program import CHUNK, SharingRanksTestCase, run_ranks
from train_program import KIB, MODELS, metrics

ODD_MODELS = ("odd_rows", "odd_rows_tied", "odd_rows_opt")  # A Llama shape, GPT-2 and OPT.
# How many ranks, and their keys.
LINE = 2, {"tensor": "1d"}
MEGATRON = 2, {"tensor": "1d", "sequence_parallel": "megatron"}
ULYSSES = 2, {"sequence_parallel": "ulysses"}
RING = 2, {"sequence_parallel": "ring"}
SQUARE = 4, {"tensor": "2d"}
SQUARES = 8, {"tensor": "2.5d", "tensor_size": 8, "tensor_depth": 2, "zero": 3}
CUBE = 8, {"tensor": "3d"}
PIPELINE = 2, {"pipeline": 2}
PIPELINES = 4, {"pipeline": 2}


class SharingPlacementsTest(SharingRanksTestCase):
    def keys(self, model, **more):
        return super().keys(model, **{"data": MODELS / "odd_tokens.npy", "eval_data": MODELS / "odd_eval.npy",
                                      "schedule": "constant", "clip": 0.5, "batch": 4, "eval_every": 2, **more})

    def assert_same_bits(self, one, other):
        for file in ("model.safetensors", "optimizer.safetensors"):
            self.assert_same_file(one / "latest" / file, other / "latest" / file)
        of_step = [[(line["step"], line.get("loss"), line.get("grad_norm"), line.get("eval_loss"))
                    for line in metrics(output)] for output in (one, other)]
        self.assertEqual(*of_step)

    def draw(self):
        seed = int(os.environ.get("GEMINI_PARITY_SEED", random.randrange(1 << 32)))
        print(f"{self.id()}, GEMINI_PARITY_SEED={seed}", flush=True)
        return random.Random(seed)

    def logits(self, output):
        """Those that transformers computes of what a run saved."""
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            output / "latest", dtype=torch.float32, output_loading_info=True)
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            self.assertFalse(report[kind], kind)
        tokens = numpy.load(MODELS / "odd_eval.npy").astype(numpy.int64)
        with torch.no_grad():
            return model.eval()(input_ids=torch.from_numpy(tokens)[:256].view(8, 32)).logits

    def check_logits(self, modes):
        """Ranks learn in fp32 what one process learns."""
        draw = self.draw()
        accumulate = draw.choice((1, 2))
        for name, (num_ranks, sharing) in modes.items():
            model, zero = draw.choice(ODD_MODELS), draw.randrange(4)
            with self.subTest(name, model=model, accumulate=accumulate, zero=zero):
                keys = self.keys(model, accumulate=accumulate)
                if not (self.directory / model).exists():
                    self.train(model, **keys)
                ranks = self.ranks(num_ranks, name, **keys, **{"zero": zero, **sharing})
                self.assert_close(self.directory / model, ranks)
                expected = self.logits(self.directory / model)
                self.assertLess((self.logits(ranks) - expected).abs().max() / expected.abs().max(), 2e-5)

    def check_placements(self, mode):
        num_ranks, sharing = mode
        draw = self.draw()
        model = draw.choice(ODD_MODELS)
        more = {"precision": draw.choice(("fp32", "bf16")), "moments": draw.choice(("fp32", "fp32", "8bit")),
                "accumulate": draw.choice((1, 2))}
        keys = self.keys(model, **more, **{"zero": draw.randrange(4), **sharing})
        print(f"{model}, {more}, stage {keys['zero']}", flush=True)
        undisturbed = self.ranks(num_ranks, "undisturbed", **keys)
        self.assertLess(train_program.steps(undisturbed)[0]["clip_coefficient"], 1)

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
        self.check_placements(LINE)

    def test_layers_and_sequences(self):
        self.check_placements(MEGATRON)

    def test_heads_of_sequences(self):
        self.check_placements(ULYSSES)

    def test_rings(self):
        self.check_placements(RING)

    def test_squares(self):
        self.check_placements(SQUARE)

    def test_squares_in_layers(self):
        self.check_placements(SQUARES)

    def test_cubes(self):
        self.check_placements(CUBE)

    def test_pipelines(self):
        self.check_placements(PIPELINES)

    def test_transformers_reads_what_lines_save(self):
        self.check_logits({"line": LINE, "megatron": MEGATRON, "ulysses": ULYSSES, "ring": RING, "pipeline": PIPELINE})

    def test_transformers_reads_what_grids_save(self):
        self.check_logits({"square": SQUARE, "squares": SQUARES, "cube": CUBE})


if __name__ == "__main__":
    unittest.main(verbosity=2)
