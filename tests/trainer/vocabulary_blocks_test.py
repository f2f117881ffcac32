#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A token embedding and a head that are cut into parameters leave the bytes of whole ones: over budgets, formats,
placements and --resume."""
import unittest

import numpy
import torch
import transformers

import train_program
from train_program import KIB, MIB

VOCABULARY = 18000  # With a width of 64: three pieces.
CHUNK = 64 * KIB
ONE, THREE = {"vocabulary_blocks": 1}, {"vocabulary_blocks": 3}


class VocabularyBlocksTest(train_program.TrainTest):
    def setUp(self):
        super().setUp()
        tokens = numpy.random.default_rng(1).integers(0, VOCABULARY, 40 * 32).astype(numpy.uint16)
        numpy.save(self.directory / "wide.npy", tokens)
        torch.manual_seed(1)
        llama = dict(vocab_size=VOCABULARY, max_position_embeddings=64, hidden_size=64, intermediate_size=96,
                     num_hidden_layers=2, num_attention_heads=2, pad_token_id=0)
        configs = {"untied": transformers.LlamaConfig(**llama),
                   "tied": transformers.LlamaConfig(**llama, tie_word_embeddings=True),
                   "gemma2": transformers.Gemma2Config(**llama, num_key_value_heads=1, head_dim=32)}
        for name, config in configs.items():
            model = transformers.AutoModelForCausalLM.from_config(config)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter), alpha=0.05)
            model.save_pretrained(self.directory / name)

    def run_one(self, name, model, **more):
        keys = self.keys(model=self.directory / model, data=self.directory / "wide.npy", steps=6, **more)
        if "reference" not in more:
            keys.setdefault("device_memory", "40MiB")
            keys.setdefault("chunk_size", CHUNK)
        return self.train(name, **keys)

    def assert_same_end(self, one, other):
        for file in ("model.safetensors", "optimizer.safetensors", "trainer_state.json"):
            self.assert_same_file(one / "latest" / file, other / "latest" / file)
        self.assertEqual([line["loss"] for line in train_program.steps(one)],
                         [line["loss"] for line in train_program.steps(other)])

    def test_blocks_leave_the_bytes_of_whole_tables(self):
        runs = {"plain": {}, "bf16": {"precision": "bf16"}, "fp16": {"precision": "fp16"},
                "recomputed": {"recompute": True},
                "accumulated": {"accumulate": 3, "batch": 1, "clip": 0.5},
                "vertical": {"accumulate": 3, "batch": 1, "micro_batch_schedule": "vertical"},
                "8bit": {"precision": "bf16", "moments": "8bit"},
                "no_decay": {"no_decay": "*.embed_tokens.*", "weight_decay": 2.0}}
        for model in ("untied", "tied", "gemma2"):
            for name, more in runs.items():
                if model == "gemma2" and name not in ("plain", "bf16"):
                    continue
                with self.subTest(model=model, run=name):
                    whole = self.run_one(f"whole_{model}_{name}", model, reference=True, **more)
                    cut = self.run_one(f"cut_{model}_{name}", model, **THREE, **more)
                    self.assert_same_end(whole, cut)

    def test_a_smaller_device_runs_where_tables_are_cut(self):
        # A table has 4.4 MiB, and so has its gradient: an operator on a whole one needs both.
        device = "9MiB"
        keys = dict(device_memory=device, batch=1)
        whole = train_program.run(**self.keys(
            model=self.directory / "tied", data=self.directory / "wide.npy", steps=6, chunk_size=CHUNK,
            output=self.directory / "refused", **ONE, **keys))
        self.assertNotEqual(whole.returncode, 0)
        self.assertIn("DEVICE", whole.stderr)
        # What is not said follows from DEVICE.
        for name, more in {"chosen": {}, "asked": THREE}.items():
            cut = self.run_one(name, "tied", **keys, **more)
            self.assert_same_end(self.run_one(f"whole_{name}", "tied", batch=1, reference=True), cut)
            self.assertLessEqual(max(line["device_peak_bytes"] for line in train_program.steps(cut)), 9 * MIB)

    def test_a_run_goes_on_with_other_blocks(self):
        through = self.run_one("through", "untied", schedule="constant", **ONE)
        output = self.run_one("parts", "untied", schedule="constant", save_every=2, **THREE)
        self.assert_same_end(through, output)
        for blocks in (ONE, {"vocabulary_blocks": 2}):
            name = f"resumed_{blocks['vocabulary_blocks']}"
            keys = self.keys(model=self.directory / "untied", data=self.directory / "wide.npy", steps=3,
                             schedule="constant", device_memory="40MiB", chunk_size=CHUNK, **THREE)
            output = self.train(name, **keys)
            result = train_program.run(output=output, resume=True, steps=6, **blocks)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assert_same_end(through, output)

    def test_what_transformers_loads_has_one_tensor(self):
        output = self.run_one("out", "untied", **THREE)
        model, info = transformers.AutoModelForCausalLM.from_pretrained(output / "latest", output_loading_info=True)
        self.assertFalse(info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"], info)
        self.assertEqual(tuple(model.lm_head.weight.shape), (VOCABULARY, 64))

    def test_an_optimizer_that_needs_whole_tensors_refuses_blocks(self):
        for more, text in (({"optimizer": "lamb"}, "--optimizer lamb"),
                           ({"moments": "8bit", "moment_rounding": "stochastic"}, "--moment-rounding")):
            result = train_program.run(**self.keys(
                model=self.directory / "tied", data=self.directory / "wide.npy",
                output=self.directory / "refused", **THREE, **more))
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn("--vocabulary-blocks 3", result.stderr)
            self.assertIn(text, result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
