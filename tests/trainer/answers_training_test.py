#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gemini-train on rows of which it learns the answers alone: the losses are transformers', a step is divided once by
its answers, padding changes nothing, and placements, resuming and ranks change no bit."""
import math
import os
import unittest

import numpy
import safetensors.numpy
import torch
import transformers

import train_program
from ranks_program import EPSILON, RanksTestCase
from train_program import KIB, MODELS, metrics, parameter_bytes, run, steps

SEQUENCE = 32
ROWS = 9
STEPS = 10
LEARNING_RATE = 1e-3
PADDING = 3
ERROR = 1


# Documents of up to 16 tokens have the one frequencies, and rows the other.
LONGROPE = {"original_max_position_embeddings": 16,
            "rope_parameters": {"rope_type": "longrope", "rope_theta": 1000.0,
                                "short_factor": [1 + pair / 10 for pair in range(16)],
                                "long_factor": [3.0 + pair for pair in range(16)]}}


def make_examples(seed, count=ROWS, shortest=4):
    """Documents of several lengths, of which the first fills a row, with from one to almost all of their tokens being
    answers: (token, is answer)."""
    draw = numpy.random.default_rng(seed)
    text = numpy.load(MODELS / "tokens.npy").astype(int)
    examples = []
    for i in range(count):
        length = SEQUENCE if i == 0 else int(draw.integers(shortest, SEQUENCE + 1))
        first = int(draw.integers(0, len(text) - length))
        answers = numpy.zeros(length, int)
        answers[draw.integers(1, length, int(draw.integers(1, length)))] = 1
        examples.append(list(zip(text[first:first + length].tolist(), answers.tolist())))
    return examples


def arrays_of(examples, sequence=SEQUENCE):
    """What such a file holds, padded to that length."""
    shape = len(examples), sequence
    arrays = {"tokens": numpy.full(shape, PADDING, numpy.int32), "answers": numpy.zeros(shape, numpy.uint8),
              "documents": numpy.zeros(shape, numpy.int32)}
    for row, example in enumerate(examples):
        for key, values in zip(("tokens", "answers", "documents"), zip(*((t, a, 1) for t, a in example))):
            arrays[key][row, :len(example)] = values
    return arrays


def packed(examples):
    """What such a file holds with several documents in a row: each is in the first row with room for it."""
    rows = []
    for example in examples:
        row = next((row for row in rows if sum(map(len, row)) + len(example) <= SEQUENCE), None)
        if row is None:
            rows.append(row := [])
        row.append(example)
    arrays = arrays_of([sum(row, []) for row in rows])
    for numbers, row in zip(arrays["documents"], rows):
        lengths = [len(example) for example in row]
        numbers[:sum(lengths)] = numpy.repeat(numpy.arange(1, len(row) + 1), lengths)
    return arrays


def save(path, arrays, **metadata):
    rows, sequence = arrays["tokens"].shape
    metadata = {"gemini.format": "1", "task": "causal", "sequence": str(sequence), "rows": str(rows), "layout": "pad",
                **metadata}
    safetensors.numpy.save_file(arrays, path, metadata)
    return path


def labels_of(arrays, rows):
    """The rows' tokens and transformers' labels for them."""
    tokens = torch.from_numpy(arrays["tokens"][rows].astype(numpy.int64))
    return tokens, torch.where(torch.from_numpy(arrays["answers"][rows]) > 0, tokens, -100)


def oracle(path, arrays, batch, accumulate):
    """Losses and norms of gradients of transformers' steps, and its model behind them."""
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), eps=1e-8, weight_decay=0)
    losses, norms = [], []
    for step in range(STEPS):
        parts = [labels_of(arrays, [((step * accumulate + micro) * batch + i) % ROWS for i in range(batch)])
                 for micro in range(accumulate)]
        count = sum(int((labels >= 0).sum()) for _, labels in parts)
        model.zero_grad()
        total = 0.0
        for tokens, labels in parts:
            loss = model(input_ids=tokens, labels=labels, num_items_in_batch=count).loss
            loss.backward()
            total += loss.item()
        losses.append(total)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
    return losses, norms, model


def mean_loss(model, arrays):
    """The cross entropy of all answers together."""
    tokens, labels = labels_of(arrays, range(len(arrays["tokens"])))
    with torch.no_grad():
        return model.eval()(input_ids=tokens, labels=labels).loss.item()


class AnswersTest(RanksTestCase):
    def setUp(self):
        super().setUp()
        self.examples = make_examples(seed=1)
        self.data = save(self.directory / "chats.safetensors", arrays_of(self.examples))
        self.eval_arrays = arrays_of(make_examples(seed=2, count=5))
        self.eval_data = save(self.directory / "eval.safetensors", self.eval_arrays)

    def keys(self, model="llama", **more):
        return {"model": MODELS / model, "data": self.data, "batch": 2, "steps": 6, "lr": LEARNING_RATE,
                "schedule": "constant", "log_level": "warning", **more}

    def assert_close(self, ours, expected, relative, key="loss"):
        self.assertEqual(len(ours), len(expected))
        self.assertTrue(ours, f"there is no {key}")
        for i, (one, other) in enumerate(zip(ours, expected)):
            self.assertLessEqual(abs(one - other), relative * abs(other), f"{key} {i}: {ours}, {expected}")

    def losses(self, output):
        return [line["loss"] for line in steps(output)]

    def test_losses_are_those_of_transformers(self):
        for name in ("llama", "gpt2"):
            model, _ = self.without_dropout(name)
            for accumulate in (1, 2):
                with self.subTest(name, accumulate=accumulate):
                    output = self.train(f"{name}_{accumulate}", **self.keys(
                        model, steps=STEPS, accumulate=accumulate, order="sequential", weight_decay=0, beta2=0.99,
                        clip=1.0, eval_data=self.eval_data))
                    losses, norms, trained = oracle(model, arrays_of(self.examples), 2, accumulate)
                    self.assert_close(self.losses(output), losses, 1e-5)
                    self.assert_close([line["grad_norm"] for line in steps(output)], norms, 1e-4, "norm")
                    self.assertLess(losses[-1], losses[0] - 0.1, "nothing was learned")
                    evaluation = metrics(output)[-1]
                    saved = transformers.AutoModelForCausalLM.from_pretrained(output / "latest", dtype=torch.float32)
                    expected = mean_loss(saved, self.eval_arrays)
                    self.assert_close([evaluation["eval_loss"], evaluation["eval_perplexity"]],
                                      [expected, math.exp(expected)], 1e-5, "evaluation")
                    self.assert_close([expected], [mean_loss(trained, self.eval_arrays)], 1e-4, "what was trained")

    def test_two_micro_batches_are_one_twice_as_large(self):
        keys = self.keys(self.without_dropout("llama")[0], epsilon=EPSILON, eval_data=self.eval_data)
        two = self.train("two", **{**keys, "accumulate": 2})
        one = self.train("one", **{**keys, "batch": 4})
        self.assert_close(self.losses(two), self.losses(one), 1e-6)
        self.assert_close([metrics(two)[-1]["eval_loss"]], [metrics(one)[-1]["eval_loss"]], 1e-6, "evaluation")

    def test_padding_changes_nothing(self):
        longer = save(self.directory / "longer.safetensors", arrays_of(self.examples, SEQUENCE + 13))
        for name in ("llama", "gpt2", "mistral", "qwen3_moe"):  # Learned positions, a window, experts.
            with self.subTest(name):
                keys = self.keys(self.without_dropout(name)[0], epsilon=EPSILON)
                self.assert_close(self.losses(self.train(f"long_{name}", **{**keys, "data": longer})),
                                  self.losses(self.train(f"short_{name}", **keys)), 1e-6)

    def packed_data(self):
        examples = [example[:14] for example in make_examples(seed=5, count=24)]
        for example in examples:
            example[1] = example[1][0], 1  # Each has an answer still.
        return save(self.directory / "packed.safetensors", packed(examples), layout="pack")

    def test_packed_rows_learn_what_their_documents_alone_do(self):
        examples = [example[:13] for example in make_examples(seed=4, count=12)]
        for example in examples:
            example[1] = example[1][0], 1
        apart = save(self.directory / "apart.safetensors", arrays_of(examples))
        arrays = packed(examples)
        rows = len(arrays["tokens"])
        self.assertLess(rows, 7)
        self.assertTrue((arrays["documents"] == 0).any(), "no padding")
        joined = save(self.directory / "joined.safetensors", arrays, layout="pack")
        # Learned positions, rotated heads, windows, capped scores, experts, frequencies for each length.
        for name in ("gpt2", "opt", "llama", "mistral", "gemma2", "qwen3_moe", "phi3"):
            with self.subTest(name):
                model, _ = self.without_dropout(name, **(LONGROPE if name == "phi3" else {}))
                keys = self.keys(model, epsilon=EPSILON, order="sequential")
                ends = [metrics(self.train(f"{name}_{which}", **{**keys, **files})) for which, files in (
                    ("joined", {"data": joined, "batch": rows, "eval_data": joined}),
                    ("apart", {"data": apart, "batch": len(examples), "eval_data": apart}))]
                for key in "loss", "eval_loss":
                    self.assert_close(*([line[key] for line in end if key in line] for end in ends), 1e-6, key)

    def test_steps_are_planned_whatever_documents_their_rows_have(self):
        output = self.train("planned", **self.keys(data=self.packed_data(), steps=8))
        self.assertEqual([line["planned_rounds"] for line in steps(output)[1:]], [1] * 7)

    def test_placements_and_schedules_change_no_bit(self):
        for layout, data in ("pad", self.data), ("pack", self.packed_data()):
            self.check_placements(layout, self.keys(data=data, accumulate=2, eval_data=self.eval_data, eval_every=2))

    def check_placements(self, layout, keys):
        reference = self.train(f"reference_{layout}", **keys, reference=True)
        for name, more in {"plain": {}, "recomputed": {"recompute": True}}.items():
            with self.subTest(name, layout=layout):
                more["chunk_size"] = 64 * KIB
                floor = self.named_bytes(run(output=self.directory / "refused", **keys, **more, device_memory=64 * KIB))
                self.assert_same_end(reference, self.train(f"{name}_{layout}", **keys, **more, device_memory=floor))
        vertical = dict(keys, micro_batch_schedule="vertical", chunk_size=64 * KIB)
        roomy = self.train(f"roomy_{layout}", **vertical)
        self.assert_same_end(reference, roomy)
        budget = max(line["non_model_peak_bytes"] for line in steps(roomy)) + parameter_bytes("llama") // 4
        self.assert_same_end(reference, self.train(f"vertical_{layout}", **vertical, device_memory=budget))

    def test_five_steps_and_five_more_equal_ten(self):
        through = self.train("through", **self.keys(steps=10))
        halves = self.train("halves", **self.keys(steps=5))
        result = run(output=halves, resume=True, steps=10)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assert_same_end(through, halves)

    def test_resuming_with_other_answers_is_refused(self):
        output = self.train("out", **self.keys(steps=2))
        arrays = arrays_of(self.examples)
        arrays["answers"][0, 1] ^= 1
        save(self.data, arrays)
        result = run(output=output, resume=True, steps=4)
        self.assertEqual(result.returncode, ERROR, result.stderr)
        for word in ("chats.safetensors is not the data", "checksum", f"{ROWS * SEQUENCE} tokens",
                     "put that file back"):
            self.assertIn(word, result.stderr)
        self.assertEqual(len(steps(output)), 2)

    def check_refused(self, *words, **keys):
        output = self.directory / "refused"
        result = run(output=output, **self.keys(**keys))
        self.assertEqual(result.returncode, ERROR, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)
        self.assertFalse(output.exists(), "it left something behind")

    def test_rows_of_another_length_are_refused(self):
        self.check_refused(f"chats.safetensors has rows of {SEQUENCE} tokens", "sequences of 16",
                           f"--sequence {SEQUENCE}", sequence=16)
        self.check_refused("--eval-data", f"eval.safetensors has rows of {SEQUENCE} tokens",
                           "sequences of 48: prepare the data with --sequence 48",
                           data=MODELS / "tokens.npy", eval_data=self.eval_data, sequence=48)
        longer = save(self.directory / "longer.safetensors", arrays_of(self.examples, sequence=100))
        self.check_refused("longer.safetensors: a row of 100 tokens", "64 positions", data=longer)

    def test_what_cannot_be_learned_from_is_refused_before_the_model_is_read(self):
        for name, row, position, value, words in (
                ("tokens", 4, 2, 512, ("token 512 in row 4, position 2", "vocabulary of 512", "this model")),
                ("tokens", 4, 2, -1, ("token -1 in row 4, position 2", "vocabulary of 512")),
                ("documents", 0, slice(20, None), 2, ("row 0 has document 2 at position 20", "behind document 1")),
                ("answers", 5, slice(None), 0, ("row 5 has no answer", f"{SEQUENCE} tokens"))):
            with self.subTest(words[0]):
                arrays = arrays_of(self.examples)
                arrays[name][row, position] = value
                self.check_refused("changed.safetensors", *words,
                                   data=save(self.directory / "changed.safetensors", arrays))
        path = save(self.directory / "other.safetensors", arrays_of(self.examples), task="cooking")
        self.check_refused("other.safetensors: its task is 'cooking', expected causal, masked", data=path)
        path = save(self.directory / "other.safetensors", arrays_of(self.examples), task="masked", mask_token="3")
        self.check_refused("other.safetensors is of the task masked", "task causal", data=path)
        os.truncate(path, path.stat().st_size - 5)
        self.check_refused("other.safetensors", data=path)

    def test_a_router_that_would_count_padding_is_refused(self):
        row = next(i for i, example in enumerate(self.examples) if len(example) < SEQUENCE)
        self.check_refused(f"row {row} ends in {SEQUENCE - len(self.examples[row])} tokens of padding",
                           "output_router_logits", model="mixtral")
        full = save(self.directory / "full.safetensors", arrays_of(make_examples(seed=3, shortest=SEQUENCE)))
        self.train("full", **self.keys("mixtral", steps=1, data=full))

    @unittest.skipUnless(os.environ.get("GEMINI_MPIRUN"), "built without MPI")
    def test_ranks_train_as_one_process_does(self):
        keys = self.keys(eval_data=self.eval_data, eval_every=4)
        one = self.train("one", **{**keys, "accumulate": 2})
        self.assert_same_end(one, self.ranks(2, "data", **keys))
        self.assert_same_end(one, self.ranks(2, "pipeline", pipeline=2, **{**keys, "accumulate": 2}))

    @unittest.skipUnless(os.environ.get("GEMINI_MPIRUN"), "built without MPI")
    def test_ranks_keep_documents_apart_as_one_process_does(self):
        keys = self.keys(data=self.packed_data(), epsilon=EPSILON)
        two = {**keys, "accumulate": 2}
        one = self.train("one", **two)
        self.assert_same_end(one, self.ranks(2, "data", **keys))
        self.assert_same_end(one, self.ranks(2, "pipeline", pipeline=2, **two))
        for name, num_ranks, more in (("line", 2, {"tensor": "1d"}), ("grid", 4, {"tensor": "2d"}),
                                      ("ulysses", 2, {"sequence_parallel": "ulysses"})):
            with self.subTest(name):
                self.assert_close(self.losses(self.ranks(num_ranks, name, **two, **more)), self.losses(one), 1e-5)
        ring = {"sequence_parallel": "ring"}
        longrope, _ = self.without_dropout("phi3", **LONGROPE)
        self.all_refused(1, [(2, "--sequence-parallel ring does not keep apart", {**keys, **ring}),
                             (2, "--sequence-parallel ring would count to the lengths",
                              {**self.keys(longrope), **ring})])

    @unittest.skipUnless(os.environ.get("GEMINI_MPIRUN"), "built without MPI")
    def test_ranks_that_share_rows_train_as_one_process_does(self):
        keys = self.keys(epsilon=EPSILON, eval_data=self.eval_data, eval_every=4)
        one = metrics(self.train("one", **keys))
        # The last batch of the evaluation is filled up where ranks have parts of a batch.
        for name, num_ranks, more in (("ring", 2, {"sequence_parallel": "ring"}), ("grid", 4, {"tensor": "2d"})):
            with self.subTest(name):
                shared = metrics(self.ranks(num_ranks, name, **keys, **more))
                for key in ("loss", "eval_loss"):
                    self.assert_close([line[key] for line in shared if key in line],
                                      [line[key] for line in one if key in line], 1e-5, key)


if __name__ == "__main__":
    unittest.main(verbosity=2)
