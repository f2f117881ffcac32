#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gemini-train on alignments: a pair trunk has the losses of the same model in plain Torch, hidden residues and
distograms alike; placements, resuming and ranks change no bit, and ranks that share layers train as one process does."""
import json
import math
import os
import unittest

import numpy
import safetensors.torch
import torch
from torch import nn
from torch.nn import functional

from make_pair_trunk import FACTOR, Block
from ranks_program import CHUNK, EPSILON, SharingRanksTestCase
from task_fixture import (LEARNING_RATE, MASK, VOCABULARY, config_of, hide, make_rows, masked, optimizer_of, save_masked,
                          save_model)
from tasks_test_case import LIKE_TRANSFORMERS, ROWS, STEPS, USAGE, BitsTestCase, TasksTestCase
from train_program import KIB, metrics, run, steps

SEQUENCES, RESIDUES, BINS, PLACES = 4, 7, 9, 2
SEED = 11
SIZES = dict(msa_width=24, pair_width=16, msa_num_heads=3, msa_head_size=10, triangle_num_heads=2, outer_width=6)
CLASSES = {"masked": "PairTrunkForMaskedMsa", "distogram": "PairTrunkForDistogram"}
HEADS = {"masked": "masked_msa_head", "distogram": "distogram_head"}


def config_of_trunk(task, num_layers=2, **more):
    return {"model_type": "pair_trunk", "architectures": [CLASSES[task]], "vocab_size": VOCABULARY,
            "num_sequences": SEQUENCES, "max_position_embeddings": 16, "num_hidden_layers": num_layers,
            "triangle_head_size": SIZES["pair_width"] // SIZES["triangle_num_heads"],
            "triangle_width": SIZES["pair_width"], "transition_factor": FACTOR, "num_bins": BINS,
            "relative_positions": PLACES, **SIZES, **more}


class Trunk(nn.Module):
    """The model in plain Torch, with blocks of transformers' EsmFold and of the paper."""

    def __init__(self, config, task):
        super().__init__()
        msa, pair = config["msa_width"], config["pair_width"]
        self.embedder = nn.Module()
        for name, rows, width in (("residues", VOCABULARY, msa), ("first_sequence", VOCABULARY, msa),
                                  ("left", VOCABULARY, pair), ("right", VOCABULARY, pair),
                                  ("relative_positions", 2 * PLACES + 1, pair)):
            self.embedder.add_module(name, nn.Embedding(rows, width))
        self.trunk = nn.Module()
        self.trunk.blocks = nn.ModuleList(Block(config) for _ in range(config["num_hidden_layers"]))
        self.is_masked = task == "masked"
        self.add_module(HEADS[task], nn.Linear(msa, VOCABULARY) if self.is_masked else nn.Linear(pair, BINS))

    def forward(self, tokens):
        tables, first = self.embedder, tokens[:, 0]
        places = torch.arange(tokens.shape[2])
        m = tables.residues(tokens) + tables.first_sequence(first)[:, None]
        z = tables.left(first)[:, :, None] + tables.right(first)[:, None]
        z = z + tables.relative_positions((places[:, None] - places).clamp(-PLACES, PLACES) + PLACES)
        for block in self.trunk.blocks:
            m, z = block(m, z)
        return self.masked_msa_head(m) if self.is_masked else self.distogram_head(z + z.transpose(1, 2))


def alignments(task, seed, count=ROWS):
    draw = numpy.random.default_rng(seed)
    shape = (count, SEQUENCES, RESIDUES)
    arrays = {"tokens": draw.integers(8, VOCABULARY, shape).astype(numpy.int32)}
    if task == "masked":
        arrays["answers"] = (draw.random(shape) < 0.9).astype(numpy.uint8)
    else:
        arrays["labels"] = draw.integers(-1, BINS, (count, RESIDUES, RESIDUES)).astype(numpy.int32)
    return arrays


def save_alignments(path, arrays, task, **metadata):
    rows, sequences, residues = arrays["tokens"].shape
    of_task = {"mask_token": str(MASK)} if task == "masked" else {"num_bins": str(BINS)}
    safetensors.numpy.save_file(arrays, path, {"gemini.format": "1", "task": task, "rows": str(rows),
                                               "sequences": str(sequences), "residues": str(residues), **of_task,
                                               **metadata})
    return path


def inputs_and_labels(arrays, task, draws):
    """What the model reads and is to predict of (row, what hide() takes) pairs."""
    rows = [row for row, _ in draws]
    if task == "distogram":
        return (torch.from_numpy(arrays["tokens"][rows].astype(numpy.int64)),
                torch.from_numpy(arrays["labels"][rows].astype(numpy.int64)))
    hidden = [hide(arrays["tokens"][row].ravel(), arrays["answers"][row].ravel(), **drawn) for row, drawn in draws]
    return tuple(torch.from_numpy(numpy.stack(values)).view(-1, SEQUENCES, RESIDUES) for values in zip(*hidden))


def loss_of(model, inputs, labels):
    logits = model(inputs)
    is_known = labels >= 0
    return functional.cross_entropy(logits[is_known], labels[is_known], reduction="sum"), int(is_known.sum())


class TrunksTestCase(TasksTestCase):
    def trunk(self, task, name="trunk", **keys):
        """A checkpoint, and its model in Torch."""
        config = config_of_trunk(task, **keys)
        torch.manual_seed(1)
        model = Trunk(config, task)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.05 * torch.randn_like(parameter)
        path = self.directory / f"{name}_{task}"
        path.mkdir()
        safetensors.torch.save_file(model.state_dict(), path / "model.safetensors", {"format": "pt"})
        (path / "config.json").write_text(json.dumps(config))
        return path, model

    def alignments(self, name, task, seed=1, count=ROWS):
        arrays = alignments(task, seed, count)
        return save_alignments(self.directory / f"{name}_{task}.safetensors", arrays, task), arrays

    def saved(self, output, task):
        """The saved model in Torch, in which nothing is missing or left over."""
        model = Trunk(self.config(output), task)
        model.load_state_dict(safetensors.torch.load_file(output / "latest" / "model.safetensors"))
        return model


class ParityTest(TrunksTestCase):
    def check_steps(self, task, accumulate):
        path, model = self.trunk(task)
        data, arrays = self.alignments("data", task)
        eval_data, eval_arrays = self.alignments("eval", task, seed=2, count=5)
        output = self.train("out", **self.keys(path, data, steps=STEPS, accumulate=accumulate, seed=SEED,
                                               eval_data=eval_data, **LIKE_TRANSFORMERS))
        optimizer = optimizer_of(model)
        losses, norms, batch = [], [], 2 * accumulate
        for step in range(STEPS):
            model.zero_grad()
            draws = [(place % ROWS, {"seed": SEED, "place": place})
                     for place in range(step * batch, (step + 1) * batch)]
            total, count = loss_of(model, *inputs_and_labels(arrays, task, draws))
            (total / count).backward()
            losses.append(total.item() / count)
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
            optimizer.step()
        self.assert_close(self.losses(output), losses, 1e-5)
        self.assert_close(self.norms(output), norms, 1e-4, "norm")
        self.assertLess(losses[-1], losses[0])
        saved = self.saved(output, task)
        inputs, labels = inputs_and_labels(eval_arrays, task, [
            (row, {"seed": SEED, "place": row, "is_evaluation": True}) for row in range(5)])
        with torch.no_grad():
            total, count = loss_of(saved, inputs, labels)
            logits = saved(inputs)
        line, expected = metrics(output)[-1], total.item() / count
        self.assert_close([line["eval_loss"]], [expected], 1e-5, "evaluation")
        if task == "masked":
            self.assert_close([line["eval_perplexity"]], [math.exp(expected)], 1e-5, "perplexity")
            return
        right = (logits.topk(5).indices == labels[..., None])[labels >= 0]
        self.assertAlmostEqual(line["eval_accuracy"], right[:, 0].float().mean().item(), delta=1e-6)
        self.assertAlmostEqual(line["eval_top5"], right.any(-1).float().mean().item(), delta=1e-6)

    def test_hidden_residues(self):
        self.check_steps("masked", accumulate=1)

    def test_distograms(self):
        self.check_steps("distogram", accumulate=2)


class BitsTest(TrunksTestCase, BitsTestCase):
    def cases(self):
        for task in CLASSES:
            data, eval_data = (self.alignments(f"data_{seed}", task, seed=seed)[0] for seed in (1, 2))
            yield task, self.keys(self.trunk(task)[0], data, eval_data=eval_data)

    def test_placements_and_schedules_change_no_bit(self):
        for task, keys in self.cases():
            self.check_placements(task, {**keys, "accumulate": 2, "eval_every": 2})

    def test_steps_are_planned(self):
        for task, keys in self.cases():
            with self.subTest(task):
                self.check_plans(task, keys)

    def test_five_steps_and_five_more_equal_ten(self):
        for task, keys in self.cases():
            with self.subTest(task):
                self.check_halves(task, keys)

    def test_alignments_and_pairs_between_blocks_that_do_not_fit(self):
        for task, keys in self.cases():
            with self.subTest(task):
                keys.update(model=self.trunk(task, "deep", num_layers=4)[0], batch=1, accumulate=48, steps=1,
                            micro_batch_schedule="vertical", chunk_size=64 * KIB)
                reference = self.train(f"{task}_reference", **keys, reference=True)
                roomy = self.train(f"{task}_roomy", **keys)
                between = 4 * 48 * 4 * (SEQUENCES * RESIDUES * SIZES["msa_width"] +
                                        RESIDUES * RESIDUES * SIZES["pair_width"])
                budget = max(line["non_model_peak_bytes"] for line in steps(roomy)) - 128 * KIB
                self.assertLess(budget / 4, between / 2, "most of them stay on DEVICE")
                tight = self.train(f"{task}_tight", **keys, device_memory=budget)
                self.assert_same_end(reference, tight)
                for line in steps(tight):
                    self.assertLessEqual(line["device_peak_bytes"], budget)

    def test_what_is_not_read_decays_alone(self):
        """Of hidden residues the last block's pairs have gradients of zeros."""
        for task, keys in self.cases():
            if task == "masked":
                output = self.train("decayed", **{**keys, "steps": 1, "weight_decay": 0.5})
                before, after = (safetensors.torch.load_file(folder / "model.safetensors")
                                 for folder in (keys["model"], output / "latest"))
                for name, part in (("trunk.blocks.1.tri_mul_out.linear_z.weight", 1), ("embedder.left.weight", 0)):
                    decayed = before[name] * (1 - LEARNING_RATE * 0.5)
                    self.assertEqual(torch.allclose(after[name], decayed, rtol=1e-6, atol=0), bool(part), name)

    @unittest.skipUnless(os.environ.get("GEMINI_MPIRUN"), "built without MPI")
    def test_ranks_train_as_one_process_does(self):
        for task, keys in self.cases():
            self.check_ranks(task, keys)
            with self.subTest("four ranks", task=task):
                keys["batch"] = 1
                one = self.train(f"{task}_of_four", **{**keys, "accumulate": 4})
                self.assert_same_end(one, self.ranks(4, f"{task}_four", **keys, zero=3))


@unittest.skipUnless(os.environ.get("GEMINI_MPIRUN"), "built without MPI")
class SharedLayersTest(SharingRanksTestCase, TrunksTestCase):
    """Ranks share attention and transitions of a trunk."""

    LINE = {"tensor": "1d", "tensor_size": 2}

    def keys(self, model, data, **more):
        return TrunksTestCase.keys(self, model, data, **{"epsilon": EPSILON, "steps": 4, "eval_every": 3, **more})

    def cases(self):
        for task in CLASSES:
            data, eval_data = (self.alignments(f"data_{seed}", task, seed=seed)[0] for seed in (1, 2))
            yield task, self.keys(self.trunk(task, msa_num_heads=4)[0], data, eval_data=eval_data)

    def test_two_ranks_learn_what_one_process_does(self):
        for task, keys in self.cases():
            with self.subTest(task):
                one = self.train(f"{task}_one", **keys)
                line = self.ranks(2, f"{task}_line", **keys, **self.LINE)
                self.assert_close(one, line)
                self.saved(line, task)

    def test_more_ranks(self):
        for task, keys in self.cases():
            keys["batch"] = 1
            one = self.train(f"{task}_one", **keys, accumulate=2)
            for name, more in {"shards": {"zero": 3}, "pipeline": {"pipeline": 2, "accumulate": 2}}.items():
                with self.subTest(task, ranks=name):
                    self.assert_close(one, self.ranks(4, f"{task}_{name}", **keys, **self.LINE, **more))

    def test_a_device_at_the_floor(self):
        for task, keys in self.cases():
            with self.subTest(task):
                keys.update(self.LINE, steps=2, eval_every=0)
                del keys["eval_data"]
                self.assertGreater(self.check_no_more_is_foretold(2, f"{task}_roomy", **keys), 0)
                little = self.train_in_little(2, f"{task}_little", CHUNK, chunk_size=CHUNK, recompute=True, **keys)
                self.assert_same_end(self.directory / f"{task}_roomy", little)

    def test_what_ranks_do_not_share_is_refused(self):
        cases = dict(self.cases())
        odd = {**cases["masked"], "model": self.trunk("masked", "odd", msa_num_heads=3)[0]}
        of_task = {task: f"shares no layers of a pair trunk with the task {task} among ranks" for task in CLASSES}
        self.all_refused(USAGE, [
            (2, "the heads of its alignment (msa_num_heads), 3, do not divide by 2: use --tensor-size 1 with",
             {**odd, **self.LINE}),
            (4, "the heads of its pairs (triangle_num_heads), 2, do not divide by 4: use --tensor-size 2",
             {**cases["distogram"], "tensor": "1d"}),
            (4, f"--tensor 2d {of_task['masked']}", {**cases["masked"], "tensor": "2d"}),
            *((2, f"--sequence-parallel {sharing} {of_task[task]}", {**cases[task], **more})
              for task in CLASSES
              for sharing, more in (("megatron", {"tensor": "1d", "sequence_parallel": "megatron"}),
                                    ("ulysses", {"sequence_parallel": "ulysses"})))])


class NewHeadsTest(TrunksTestCase):
    def test_a_trunk_of_the_other_task_gets_a_new_head(self):
        for task, other in (("masked", "distogram"), ("distogram", "masked")):
            with self.subTest(task):
                path, _ = self.trunk(other)
                data, _ = self.alignments("data", task)
                output, said = self.trained(f"{task}_out", **self.keys(path, data, task=task, steps=8))
                for word in (f"has no {HEADS[task]}. for the task {task}", "random values made from --seed",
                             HEADS[other], "left out"):
                    self.assertIn(word, said)
                expected = {**json.loads((path / "config.json").read_text()), "architectures": [CLASSES[task]]}
                self.assertEqual({key: value for key, value in self.config(output).items() if "dtype" not in key},
                                 expected)
                self.saved(output, task)
                halves, _ = self.trained(f"{task}_halves", **self.keys(path, data, task=task, steps=4))
                result = run(output=halves, resume=True, steps=8)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assert_same_file(*(folder / "latest" / "model.safetensors" for folder in (output, halves)))
                _, said = self.trained(f"{task}_again", **self.keys(output / "latest", data, steps=1))
                self.assertNotIn("random values", said)


class RefusalsTest(TrunksTestCase):
    def test_alignments_that_the_model_does_not_take(self):
        for task in CLASSES:
            path, _ = self.trunk(task)
            for name, keys, words in (
                    ("sequences", {"num_sequences": 5}, ("alignments of 4 sequences", "takes 5", "num_sequences")),
                    ("residues", {"max_position_embeddings": 6}, ("a row of 7 tokens", "6 positions"))):
                with self.subTest(name, task=task):
                    data, _ = self.alignments(name, task)
                    config = {**json.loads((path / "config.json").read_text()), **keys}
                    changed = self.directory / f"{name}_{task}_changed"
                    changed.mkdir()
                    (changed / "config.json").write_text(json.dumps(config))
                    (changed / "model.safetensors").symlink_to(path / "model.safetensors")
                    self.refused_run(f"{name}_{task}.safetensors", *words, **self.keys(changed, data))
            with self.subTest("token", task=task):
                arrays = alignments(task, 1)
                arrays["tokens"][4, 2, 5] = VOCABULARY
                data = save_alignments(self.directory / f"token_{task}.safetensors", arrays, task)
                self.refused_run(f"token {VOCABULARY} in row 4, sequence 2, residue 5", f"vocabulary of {VOCABULARY}",
                                 **self.keys(path, data))

    def test_bins_that_the_model_has_not(self):
        path, _ = self.trunk("distogram")
        arrays = alignments("distogram", 1)
        data = save_alignments(self.directory / "ten.safetensors", arrays, "distogram", num_bins="10")
        self.refused_run("ten.safetensors", "10 bins, and the model has 9", "num_bins", **self.keys(path, data))
        arrays["labels"][3, 2, 1] = BINS
        data = save_alignments(self.directory / "bin.safetensors", arrays, "distogram")
        self.refused_run("bin.safetensors", "row 3 has the bin 9 for residues 2 and 1", **self.keys(path, data))

    def test_texts_for_a_trunk_and_alignments_for_an_encoder(self):
        path, _ = self.trunk("masked")
        data, _ = self.alignments("data", "masked")
        texts = save_masked(self.directory / "texts.safetensors", masked(make_rows(1, ROWS), 1), "pad")
        self.refused_run("texts.safetensors has texts, and the model reads alignments", **self.keys(path, texts))
        import transformers  # It takes a second, and the other tests need none of it.
        bert = save_model(transformers.BertForMaskedLM, config_of("bert"), self.directory / "bert")
        self.refused_run("has alignments, and the model reads texts", **self.keys(bert, data))

    def test_data_of_the_other_task(self):
        path, _ = self.trunk("masked")
        data, _ = self.alignments("data", "distogram")
        self.refused_run("of the task distogram", "to learn the task masked", "--task distogram",
                         **self.keys(path, data))

    def test_a_file_that_is_cut_off(self):
        path, _ = self.trunk("masked")
        data, _ = self.alignments("data", "masked")
        content = data.read_bytes()
        data.write_bytes(content[:-1])
        self.refused_run("data_masked.safetensors", "ends at byte", "the file holds", **self.keys(path, data))


if __name__ == "__main__":
    unittest.main(verbosity=2)
