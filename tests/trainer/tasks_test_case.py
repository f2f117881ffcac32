# SPDX-License-Identifier: Apache-2.0
"""What test cases of gemini-train --task share: runs that are compared with transformers' steps, with runs of other
placements and ranks, or that get a new head."""
import json
import math
import pathlib
import subprocess
import sys

import torch
import transformers
from torch.nn import functional

from ranks_program import EPSILON, RanksTestCase
from task_fixture import (ADAM_EPSILON, LEARNING_RATE, NO_DROPOUT, SEQUENCE, SEVERAL, SINGLE, answered, config_of,
                          labelled, logits_of, make_rows, masked, save_answers, save_classifier, save_labelled,
                          save_masked, save_model, train_classifier)
from train_program import KIB, metrics, run, steps, tensors

ROWS = 9
STEPS = 10
LIKE_TRANSFORMERS = {"order": "sequential", "weight_decay": 0, "beta2": 0.99, "epsilon": ADAM_EPSILON, "clip": 1.0}
ERROR, USAGE = 1, 2
PREPARE = pathlib.Path(__file__).parent / "../../tools/prepare_data.py"


def bytes_of(model):
    return sum(len(data) for _, _, data in tensors(model / "model.safetensors").values())


class TasksTestCase(RanksTestCase):
    def keys(self, model, data, **more):
        return {"model": model, "data": data, "batch": 2, "steps": 6, "lr": LEARNING_RATE, "schedule": "constant",
                "log_level": "warning", **more}

    def assert_close(self, ours, expected, relative, key="loss"):
        self.assertEqual(len(ours), len(expected))
        self.assertTrue(ours, f"there is no {key}")
        for i, (one, other) in enumerate(zip(ours, expected)):
            self.assertLessEqual(abs(one - other), relative * abs(other), f"{key} {i}: {ours}, {expected}")

    def losses(self, output):
        return [line["loss"] for line in steps(output)]

    def norms(self, output):
        return [line["grad_norm"] for line in steps(output)]

    def classification(self, name, problem=SINGLE, num_labels=7, seed=1, count=ROWS, types=False, shortest=4):
        """A file of labelled texts, and its arrays."""
        arrays = labelled(problem, num_labels, seed, count, types, shortest)
        return save_labelled(self.directory / f"{name}.safetensors", arrays, problem, num_labels), arrays

    def masked_data(self, name, per_row, seed=1):
        texts = make_rows(seed, ROWS * per_row, longest=SEQUENCE // per_row)
        arrays = masked(texts, per_row)
        return save_masked(self.directory / f"{name}.safetensors", arrays, "pad" if per_row == 1 else "pack"), arrays

    def masked_model(self, dropout=False):
        return save_model(transformers.BertForMaskedLM, config_of("bert", **({} if dropout else NO_DROPOUT)),
                          self.directory / "bert_masked")

    def cases(self):
        """Models with dropout, and data in the run's order."""
        for family in ("llama", "bert"):
            model = save_classifier(family, self.directory / family, dropout=True, num_labels=7)
            data, eval_data = (self.classification(f"{family}_{seed}", seed=seed, types=family == "bert")[0]
                               for seed in (1, 2))
            yield family, self.keys(model, data, eval_data=eval_data)
        data, eval_data = (self.masked_data(f"masked_{seed}", per_row=2, seed=seed)[0] for seed in (1, 2))
        yield "masked", self.keys(self.masked_model(dropout=True), data, eval_data=eval_data)

    def answers_case(self):
        """The same of a causal model that learns answers."""
        model = save_model(transformers.GPT2LMHeadModel, config_of("gpt2"), self.directory / "gpt2_answers")
        data, eval_data = (save_answers(self.directory / f"answers_{seed}.safetensors", answered(make_rows(seed, ROWS)))
                           for seed in (1, 2))
        return "answers", self.keys(model, data, eval_data=eval_data)

    def prepare(self, *arguments, name="prepared"):
        """What tools/prepare_data.py makes."""
        output = self.directory / f"{name}.safetensors"
        result = subprocess.run([sys.executable, PREPARE, "--output", output, *arguments], capture_output=True,
                                text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        return output

    def trained(self, name, **keys):
        """The output of a run that ends well, and what it has said."""
        output = self.directory / name
        result = run(output=output, **keys)
        self.assertEqual(result.returncode, 0, result.stderr)
        return output, result.stderr

    def loaded(self, output, model_class):
        """The saved model in transformers, in which nothing is missing or left over."""
        model, info = model_class.from_pretrained(output / "latest", dtype=torch.float32, output_loading_info=True)
        self.assertEqual({key: list(info[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")},
                         {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": []})
        return model

    def floor(self, keys):
        """The smallest DEVICE that such a run takes."""
        return self.named_bytes(run(output=self.directory / "refused", **{**keys, "device_memory": 64 * KIB}))

    def config(self, output):
        return json.loads((output / "latest" / "config.json").read_text())

    def refused_run(self, *words, status=ERROR, **keys):
        output = self.directory / "refused"
        result = run(output=output, **keys)
        self.assertEqual(result.returncode, status, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)
        self.assertFalse(output.exists(), "it left something behind")


class ParityTestCase(TasksTestCase):
    def check_steps(self, output, model_class, model, arrays, accumulate=1, num_steps=STEPS, norm=1e-4):
        """The run's steps and its saved model are transformers'. Returns both models."""
        losses, norms, trained = train_classifier(model_class, model, arrays, 2, accumulate, num_steps)
        self.assert_close(self.losses(output), losses, 1e-5)
        self.assert_close(self.norms(output), norms, norm, "norm")
        saved = self.loaded(output, model_class)
        self.assertIs(type(saved), type(trained))
        ours, theirs = logits_of(saved, arrays), logits_of(trained, arrays)
        self.assert_close([(ours - theirs).abs().max() / theirs.abs().max() + 1], [1], 2e-5, "logits")
        return saved, trained

    def check_evaluation(self, line, problem, logits, labels):
        if problem == SINGLE:
            choices = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]
            expected = {"eval_loss": functional.cross_entropy(logits, labels.long()),
                        "eval_accuracy": (logits.argmax(-1) == labels).float().mean()}
            if logits.shape[1] > 5:
                expected["eval_top5"] = choices.any(-1).float().mean()
        elif problem == SEVERAL:
            expected = {"eval_loss": functional.binary_cross_entropy_with_logits(logits, labels),
                        "eval_accuracy": ((logits > 0) == (labels > 0.5)).float().mean()}
        else:
            loss = functional.mse_loss(logits, labels)
            expected = {"eval_loss": loss, "eval_mean_squared_error": loss}
        self.assertEqual({key for key in line if key.startswith("eval_") and "second" not in key}, set(expected))
        for key, value in expected.items():
            if "accuracy" in key or "top5" in key:
                self.assertAlmostEqual(line[key], value.item(), delta=1e-6, msg=key)
            else:
                self.assert_close([line[key]], [value.item()], 1e-5, key)


class BitsTestCase(TasksTestCase):
    """Compares runs, which have dropout and data in the run's order, with others of the same bits."""

    def assert_same_end(self, one, other):
        super().assert_same_end(one, other)
        self.assertEqual(*({key: value for key, value in metrics(output)[-1].items() if "second" not in key}
                           for output in (one, other)))

    def check_placements(self, case, keys, has_tied_table=False):
        reference = self.train(f"{case}_reference", **keys, reference=True)
        keys["chunk_size"] = 64 * KIB
        for name, more in {"plain": {}, "recomputed": {"recompute": True}}.items():
            with self.subTest(name, case=case):
                placed = {**keys, **more}
                self.assert_same_end(reference, self.train(f"{case}_{name}", **placed,
                                                           device_memory=self.floor(placed)))
        with self.subTest("vertical", case=case):
            vertical = dict(keys, micro_batch_schedule="vertical")
            roomy = self.train(f"{case}_roomy", **vertical)
            of_vertical = self.train(f"{case}_reference_vertical", **vertical, reference=True)
            if has_tied_table:
                # All heads then come before all look-ups of the table, which are added up in that order.
                self.assert_close(self.losses(of_vertical)[:1], self.losses(reference)[:1], 1e-6)
            else:
                self.assert_same_end(reference, of_vertical)
            self.assert_same_end(of_vertical, roomy)
            budget = max(line["non_model_peak_bytes"] for line in steps(roomy)) + bytes_of(keys["model"]) // 3
            self.assert_same_end(of_vertical, self.train(f"{case}_vertical", **vertical, device_memory=budget))
        with self.subTest("nvme", case=case):
            store = self.directory / f"{case}_store"
            store.mkdir()
            self.assert_same_end(reference, self.train(f"{case}_nvme", **keys, nvme=[f"{store}:64MiB"],
                                                       optimizer_tier="nvme", device_memory="3MiB"))
        with self.subTest("bf16", case=case):
            keys["precision"] = "bf16"
            self.assert_same_end(self.train(f"{case}_reference_bf16", **keys, reference=True),
                                 self.train(f"{case}_bf16", **keys, device_memory=self.floor(keys)))

    def check_plans(self, case, keys):
        output = self.train(f"{case}_planned", **{**keys, "steps": 8})
        self.assertEqual([line["planned_rounds"] for line in steps(output)[1:]], [1] * 7)

    def check_halves(self, case, keys):
        through = self.train(f"{case}_through", **{**keys, "steps": 10})
        halves = self.train(f"{case}_halves", **{**keys, "steps": 5})
        result = run(output=halves, resume=True, steps=10)
        self.assertEqual(result.returncode, 0, result.stderr)
        for file in ("model.safetensors", "optimizer.safetensors", "trainer_state.json"):
            self.assert_same_file(through / "latest" / file, halves / "latest" / file)
        self.assertEqual(self.losses(through), self.losses(halves))

    def check_ranks(self, case, keys, has_tied_table=False):
        """Two ranks train as one process does that takes twice the micro-batches."""
        keys.update(epsilon=EPSILON, steps=4)
        one = self.train(f"{case}_one", **{**keys, "accumulate": 2})
        ends = {}
        for ranks, more in {"replicas": {"zero": 0}, "zero": {"zero": 3},
                            "pipeline": {"pipeline": 2, "accumulate": 2}}.items():
            with self.subTest(ranks, case=case):
                ends[ranks] = self.ranks(2, f"{case}_{ranks}", **keys, **more)
                if not has_tied_table:
                    self.assert_same_end(one, ends[ranks])
                    continue
                # The table's gradients of look-ups and heads are added up in another order.
                for key in ("loss", "grad_norm", "eval_loss"):
                    self.assert_close(*([line[key] for line in metrics(output) if key in line]
                                        for output in (ends[ranks], one)), 1e-5, key)
        with self.subTest("stages", case=case):
            self.assert_same_end(ends["replicas"], ends["zero"])


class NewHeadsTestCase(TasksTestCase):
    def check_new_head(self, model, model_class, task, head, left_out, data, names):
        """A model is trained for a task of which it has no head, with labels that the data name."""
        output, said = self.trained(f"{model.name}_out", **self.keys(model, data, task=task, steps=8, eval_data=data))
        for word in (f"has no {head} for the task {task}", "random values made from --seed",
                     "has a head of another task, which is left out", *left_out):
            self.assertIn(word, said)
        self.assertAlmostEqual(self.losses(output)[0], math.log(len(names)), delta=0.7)
        config = self.config(output)
        self.assertEqual(config["architectures"], [model_class.__name__])
        self.assertEqual(config["id2label"], {str(i): name for i, name in enumerate(names)})
        self.assertEqual(config["label2id"], {name: i for i, name in enumerate(names)})
        self.assertEqual(config["problem_type"], SINGLE)
        saved = self.loaded(output, model_class)
        self.assertEqual(saved.config.num_labels, len(names))
        halves, _ = self.trained(f"{model.name}_halves", **self.keys(model, data, task=task, steps=4, eval_data=data))
        result = run(output=halves, resume=True, steps=8)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("random values", result.stderr)
        for file in ("model.safetensors", "optimizer.safetensors", "config.json"):
            self.assert_same_file(output / "latest" / file, halves / "latest" / file)
        # What it has saved is trained further without a word.
        _, said = self.trained(f"{model.name}_again", **self.keys(output / "latest", data, steps=1))
        self.assertNotIn("random values", said)
        self.assertNotIn("left out", said)
        return output
