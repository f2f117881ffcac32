#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gemini-train --task by mpirun: ranks that share layers, or have shards of them, learn each task as one process does,
also where some of them have more labels than others, and wherever their parts lie."""
import unittest

import numpy
import transformers

from ranks_program import CHUNK, EPSILON, SharingRanksTestCase
from task_fixture import (SINGLE, answered, config_of, hide, make_labels, make_rows, masked, padded, save_answers,
                          save_classifier, save_labelled, save_masked, save_model)
from tasks_test_case import TasksTestCase
from train_program import metrics, steps

LINE = {"tensor": "1d", "tensor_size": 2}
MEGATRON = {"sequence_parallel": "megatron", **LINE}
CLASSES = {"llama": transformers.LlamaForSequenceClassification, "bert": transformers.BertForSequenceClassification,
           "masked": transformers.BertForMaskedLM, "answers": transformers.GPT2LMHeadModel}
CLASSIFIERS = ("llama", "bert")
SEED = 11


class TasksOfRanksTestCase(SharingRanksTestCase, TasksTestCase):
    def keys(self, model, data, **more):
        return TasksTestCase.keys(
            self, model, data, **{"epsilon": EPSILON, "steps": 4, "eval_every": 3, **more})

    def all_cases(self):
        return {**dict(self.cases()), **dict([self.answers_case()])}

    def assert_same_numbers(self, one, other):
        """Of what steps and evaluations measured, but for losses, which are held against bars elsewhere."""
        for left, right in zip(metrics(one), metrics(other), strict=True):
            for key in ("eval_accuracy", "eval_top5"):
                self.assertEqual(left.get(key), right.get(key), key)


class SharedLayersTest(TasksOfRanksTestCase):
    def test_ranks_that_share_layers_train_as_one_process_does(self):
        for name, keys in self.all_cases().items():
            one = self.train(f"{name}_one", **keys)
            for sharing, more in {"line": LINE, "megatron": MEGATRON}.items():
                with self.subTest(name, sharing=sharing):
                    ranks = self.ranks(2, f"{name}_{sharing}", **keys, **more)
                    self.assert_close(one, ranks)
                    self.assert_same_numbers(one, ranks)
                    self.assertEqual(self.config(one), self.config(ranks))
                    self.loaded(ranks, CLASSES[name])

    def test_more_ranks_that_share_layers(self):
        cases = self.all_cases()
        for name in ("bert", "masked"):
            keys = {**cases[name], "batch": 1}
            one = self.train(f"{name}_one", **keys, accumulate=2)
            ends = {}
            for sharing, more in {"replicas": {"zero": 0}, "shards": {"zero": 3},
                                  "pipeline": {"pipeline": 2, "accumulate": 2}}.items():
                with self.subTest(name, sharing=sharing):
                    ends[sharing] = self.ranks(4, f"{name}_{sharing}", **keys, **LINE, **more)
                    self.assert_close(one, ends[sharing])
                    self.assert_same_numbers(one, ends[sharing])
            self.assert_same_end(ends["replicas"], ends["shards"])

    def test_a_new_head(self):
        # It is made of random values, of which each rank makes its own.
        model = save_model(transformers.BertModel, config_of("bert"), self.directory / "bare")
        data, _ = self.classification("rows", num_labels=3)
        for task, data in (("sequence-classification", data), ("masked", self.masked_data("hidden", 1)[0])):
            with self.subTest(task):
                keys = self.keys(model, data, task=task, eval_data=data)
                one = self.train(f"{task}_one", **keys)
                self.assert_close(one, self.ranks(2, f"{task}_line", **keys, **LINE))

    def test_a_device_at_the_floor(self):
        for name, keys in self.all_cases().items():
            with self.subTest(name):
                # A classifier reads whole sequences, of which ranks have parts.
                keys.update(MEGATRON if name in CLASSIFIERS else LINE, steps=2, eval_every=0)
                del keys["eval_data"]
                known = self.check_no_more_is_foretold(2, f"{name}_roomy", **keys)
                self.assertGreater(known, 0)
                little = self.train_in_little(2, f"{name}_little", CHUNK, chunk_size=CHUNK, recompute=True, **keys)
                self.assert_same_end(self.directory / f"{name}_roomy", little)


class UnequalRanksTest(TasksOfRanksTestCase):
    """Four ranks with a quarter of the parameters each, of which some have more labels than others."""

    RANKS, BATCH = 4, 2

    def unequal(self, model, data, counts, **more):
        """Keys of a run. `counts`: how many labels or tokens the rows have, in their order."""
        of_ranks = numpy.reshape(counts, (self.RANKS, self.BATCH)).sum(1)
        self.assertGreater(len(set(of_ranks)), 2, "ranks have as many")
        return self.keys(model, data, order="sequential", seed=SEED, eval_data=data, **more)

    def rows(self):
        """Texts of which the first ranks have long ones, and the last ones short ones."""
        return sorted(make_rows(5, self.RANKS * self.BATCH), key=len, reverse=True)

    def cases(self):
        arrays = masked(self.rows(), 1)
        data = save_masked(self.directory / "masked.safetensors", arrays, "pad")
        counts = [(hide(tokens, answers, SEED, row)[1] >= 0).sum()
                  for row, (tokens, answers) in enumerate(zip(arrays["tokens"], arrays["answers"]))]
        yield "masked", self.unequal(self.masked_model(dropout=True), data, counts)
        arrays = padded(self.rows())
        arrays["labels"] = make_labels(SINGLE, 7, len(arrays["tokens"]), 1)
        data = save_labelled(self.directory / "labels.safetensors", arrays, SINGLE, 7)
        model = save_classifier("bert", self.directory / "bert", dropout=True, num_labels=7)
        yield "bert", self.unequal(model, data, (arrays["documents"] > 0).sum(1))
        arrays = answered(self.rows())
        data = save_answers(self.directory / "answers.safetensors", arrays)
        for family, model_class in (("llama", transformers.LlamaForCausalLM), ("gpt2", transformers.GPT2LMHeadModel)):
            model = save_model(model_class, config_of(family), self.directory / f"{family}_answers")
            yield f"{family}_answers", self.unequal(model, data, arrays["answers"].sum(1, dtype=int))

    def test_a_rank_that_cannot_read_what_it_counts(self):
        model, data = self.masked_model(), self.masked_data("masked", 1)[0]
        self.check_a_rank_that_fails_alone(4, failing=2, model=model, data=data, zero=3)

    def test_shards_learn_what_one_process_does(self):
        for name, keys in self.cases():
            with self.subTest(name):
                keys["batch"] = self.BATCH
                one = self.train(f"{name}_one", **keys, accumulate=self.RANKS)
                ranks = self.ranks(self.RANKS, f"{name}_ranks", **keys, zero=3)
                if name in ("bert", "llama_answers"):
                    self.assert_same_end(one, ranks)
                    continue
                # A tied table's gradients are added up by each rank first.
                for left, right in zip(steps(one), steps(ranks), strict=True):
                    for key in ("loss", "grad_norm"):
                        self.assertAlmostEqual(left[key], right[key], delta=1e-5, msg=key)


if __name__ == "__main__":
    unittest.main(verbosity=2)
