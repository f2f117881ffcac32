#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gemini-train --task: classifications and masked tokens have transformers' losses, and its models load what is saved;
placements, resuming and ranks change no bit."""
import json
import math
import os
import random
import subprocess
import unittest

import numpy
import tokenizers
import torch
import transformers

from task_fixture import (NO_DROPOUT, REGRESSION, SEQUENCE, SEVERAL, SINGLE, VOCABULARY, config_of, labelled, logits_of,
                          losses_of_masked, make_rows, masked, padded, save_classifier, save_labelled,
                          save_masked, save_model, train_masked)
from tasks_test_case import (LIKE_TRANSFORMERS, ROWS, STEPS, USAGE, BitsTestCase, NewHeadsTestCase, ParityTestCase,
                             TasksTestCase, bytes_of)
from train_program import BIN, KIB, MODELS, arguments, metrics, run, steps

MASKED_STEPS = 6
SEED = 4_000_000_001
MOST_PEAK_ERROR = 0.02  # As in traced_step_test: what kernels take inside is not foretold.


class ParityTest(ParityTestCase):
    def check_classifier(self, family, problem, num_labels, accumulate=1, types=False, shortest=4):
        name = f"{family}_{problem}_{shortest}"
        model = save_classifier(family, self.directory / name, num_labels=num_labels, problem_type=problem)
        data, arrays = self.classification(f"{name}_data", problem, num_labels, types=types, shortest=shortest)
        eval_data, eval_arrays = self.classification(f"{name}_eval", problem, num_labels, seed=2, count=5, types=types)
        output = self.train(f"{name}_out", **self.keys(
            model, data, steps=STEPS, accumulate=accumulate, **LIKE_TRANSFORMERS, eval_data=eval_data))
        saved, _ = self.check_steps(output, transformers.AutoModelForSequenceClassification, model, arrays, accumulate)
        self.check_evaluation(metrics(output)[-1], problem, logits_of(saved, eval_arrays),
                              torch.from_numpy(eval_arrays["labels"]))

    def test_classifications(self):
        for family in ("gpt2", "llama", "qwen3", "bert"):
            for problem, num_labels in ((SINGLE, 7), (SEVERAL, 4), (REGRESSION, 1 if family == "llama" else 3)):
                with self.subTest(family, problem=problem):
                    self.check_classifier(family, problem, num_labels, accumulate=2 if problem == SINGLE else 1)

    def test_all_other_families_classify(self):
        data, arrays = self.classification("rows", num_labels=3)
        for path in sorted((MODELS / "three_layers").iterdir()):
            if path.name in ("gpt2", "llama", "qwen3", "cohere"):
                continue
            with self.subTest(path.name):
                config = json.loads((path / "config.json").read_text())
                changes = {key: 0.0 for key in config if "drop" in key and "layerdrop" not in key}
                config = transformers.AutoConfig.from_pretrained(path, pad_token_id=0, num_labels=3, **changes)
                model = save_model(transformers.AutoModelForSequenceClassification.from_config, config,
                                   self.directory / path.name)
                output = self.train(f"{path.name}_out", **self.keys(model, data, steps=3, **LIKE_TRANSFORMERS))
                _, trained = self.check_steps(output, transformers.AutoModelForSequenceClassification, model, arrays,
                                              num_steps=3)
                self.assertEqual(self.config(output)["architectures"], [type(trained).__name__])

    def test_texts_that_fill_their_rows_beside_an_evaluation_of_others(self):
        for family in ("llama", "bert"):
            with self.subTest(family):
                self.check_classifier(family, SINGLE, 3, shortest=SEQUENCE)

    def test_pairs_of_texts(self):
        self.check_classifier("bert", SINGLE, 6, accumulate=2, types=True)

    def test_masked_tokens(self):
        model = self.masked_model()
        for per_row in (1, 3):
            with self.subTest(per_row=per_row):
                data, arrays = self.masked_data(f"masked_{per_row}", per_row)
                eval_data, eval_arrays = self.masked_data(f"masked_eval_{per_row}", per_row, seed=3)
                batch, accumulate = 2, per_row
                output = self.train(f"out_{per_row}", **self.keys(
                    model, data, steps=MASKED_STEPS, accumulate=accumulate, **LIKE_TRANSFORMERS, seed=SEED,
                    eval_data=eval_data))
                losses, norms, trained = train_masked(model, arrays, batch * accumulate, MASKED_STEPS, SEED)
                self.assert_close(self.losses(output), losses, 1e-5)
                self.assert_close(self.norms(output), norms, 1e-4, "norm")
                saved = self.loaded(output, transformers.BertForMaskedLM)
                with torch.no_grad():
                    total, count = losses_of_masked(saved.eval(), eval_arrays, [
                        (row, {"seed": SEED, "place": row, "is_evaluation": True}) for row in range(ROWS)])
                    tokens = torch.from_numpy(arrays["tokens"].astype(numpy.int64))
                    ours, theirs = saved(tokens).logits, trained.eval()(tokens).logits
                line, expected = metrics(output)[-1], total.item() / count
                self.assert_close([line["eval_loss"], line["eval_perplexity"]], [expected, math.exp(expected)], 1e-5,
                                  "evaluation")
                self.assert_close([(ours - theirs).abs().max() / theirs.abs().max() + 1], [1], 2e-5, "logits")


class BitsTest(BitsTestCase):
    def test_placements_and_schedules_change_no_bit(self):
        for name, keys in self.cases():
            self.check_placements(name, {**keys, "accumulate": 2, "eval_every": 2}, has_tied_table=name == "masked")

    def test_random_placements_change_no_bit(self):
        seed = int(os.environ.get("GEMINI_PARITY_SEED", random.randrange(1 << 32)))
        draw = random.Random(seed)
        cases = [*self.cases(), self.answers_case()]
        in_16_bits = draw.randrange(len(cases))
        for number, (name, keys) in enumerate(cases):
            keys.update(steps=4, accumulate=draw.choice((1, 2)), clip=0.5, eval_every=2,
                        precision="bf16" if number == in_16_bits else "fp32")
            num_bytes = bytes_of(keys["model"]) // (2 if number == in_16_bits else 1)
            reference = self.train(f"{name}_reference", **keys, reference=True)
            for i in range(2):
                placement = self.random_tiers(f"{name}_store{i}", draw, range(64 * KIB, 260 * KIB, 4 * KIB), num_bytes)
                # Near the floor more often than where everything stays on DEVICE.
                placement["device_memory"] = (self.floor({**keys, **placement})
                                              + int(4 * num_bytes * draw.random() ** 2))
                print(f"{name}, GEMINI_PARITY_SEED={seed}, {keys['precision']}: {placement}", flush=True)
                with self.subTest(name, **placement):
                    placed = self.train(f"{name}_placed{i}", **keys, **placement)
                    for line in steps(placed):
                        self.assertLessEqual(line["device_peak_bytes"], placement["device_memory"])
                    self.assert_same_end(reference, placed)

    def test_steps_are_planned_whatever_lengths_their_texts_have(self):
        for name, keys in self.cases():
            with self.subTest(name):
                self.check_plans(name, keys)

    def test_five_steps_and_five_more_equal_ten(self):
        for name, keys in self.cases():
            with self.subTest(name):
                self.check_halves(name, keys)

    def test_the_summary_tells_what_was_measured(self):
        (_, llama), _, (_, bert) = self.cases()
        for keys, words in ((llama, ("accuracy", "top5")), (bert, ("perplexity",))):
            result = run(output=self.directory / words[0], **{**keys, "steps": 1})
            self.assertEqual(result.returncode, 0, result.stderr)
            line = metrics(self.directory / words[0])[-1]
            for word in words:
                digits = 2 if word == "perplexity" else 4
                self.assertRegex(result.stdout, f"Evaluation .*, {word} {line[f'eval_{word}']:.{digits}f}")

    @unittest.skipUnless(os.environ.get("GEMINI_MPIRUN"), "built without MPI")
    def test_ranks_train_as_one_process_does(self):
        for name, keys in self.cases():
            self.check_ranks(name, keys, has_tied_table=name == "masked")

    @unittest.skipUnless(os.environ.get("GEMINI_MPIRUN"), "built without MPI")
    def test_layers_that_ranks_share_are_refused(self):
        (_, llama), _, (_, bert) = self.cases()
        self.all_refused(USAGE, [
            (num_ranks, f"{key} shares no layers of the task {task} among ranks: use --tensor 1d", {**keys, **more})
            for keys, task in ((llama, "sequence-classification"), (bert, "masked"))
            for num_ranks, key, more in (
                (4, "--tensor 2d", {"tensor": "2d", "batch": 4}),
                (2, "--sequence-parallel ulysses", {"sequence_parallel": "ulysses"}),
                (4, "--sequence-parallel ring", {"sequence_parallel": "ring", "tensor": "1d", "tensor_size": 2}))])


class TokenizersTest(TasksTestCase):
    """Rows are learned by models that have the tokenizer and the chat template by which they were made, or have none."""

    TEMPLATE = ("{% for message in messages %}{{ message['role'] + ' ' + message['content'] + '</s>' }}{% endfor %}"
                "{% if add_generation_prompt %}{{ 'assistant ' }}{% endif %}")

    def setUp(self):
        super().setUp()
        self.file = self.directory / "chats.jsonl"
        chat = [{"role": "user", "content": "w1 w2 "}, {"role": "assistant", "content": "w3 w4"}]
        self.file.write_text((json.dumps({"messages": chat}) + "\n") * ROWS)

    def folder(self, name, words, template, model=False):
        """A folder with a tokenizer, and a model if that is asked for."""
        folder = self.directory / name
        if model:
            save_model(transformers.LlamaForCausalLM, config_of("llama"), folder)
        vocabulary = {word: number for number, word in enumerate(["<unk>", "</s>", "user", "assistant", *words])}
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>",
                                             chat_template=template).save_pretrained(folder)
        return folder

    def rows(self, tokenizer, name):
        return self.prepare("--tokenizer", tokenizer, "--messages", self.file, "--sequence", str(SEQUENCE), name=name)

    def test_rows_of_another_tokenizer_or_template_are_refused(self):
        words = [f"w{i}" for i in range(8)]
        model = self.folder("model", words, self.TEMPLATE, model=True)
        own = self.rows(model, "own")
        self.train("own_out", **self.keys(model, own, eval_data=own, steps=2))
        self.train("same_out", **self.keys(model, self.rows(self.folder("same", words, self.TEMPLATE), "same"), steps=1))
        for name, what, tokenizer in (
                ("words", "tokenizer", self.folder("words", words[::-1], self.TEMPLATE)),
                ("template", "chat template", self.folder("template", words, self.TEMPLATE.replace("' '", "'  '")))):
            rows = self.rows(tokenizer, f"of_{name}")
            for key, more in (("--data", {}), ("--eval-data", {"data": own, "eval_data": rows})):
                with self.subTest(name, key=key):
                    keys = {**self.keys(model, rows), **more}
                    self.refused_run(f"{key} {rows} was prepared with another {what} than {model} has",
                                     f"prepare it again with --tokenizer {model}", **keys)
            with self.subTest(name, model="bare"):
                bare = save_model(transformers.LlamaForCausalLM, config_of("llama"), self.directory / f"bare_{name}")
                self.train(f"{name}_out", **self.keys(bare, rows, steps=1))


class NewHeadsTest(NewHeadsTestCase):
    def setUp(self):
        super().setUp()
        self.pretrained = save_model(transformers.BertForPreTraining, config_of("bert", **NO_DROPOUT),
                                     self.directory / "pretrained")
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(60))]
        vocabulary = self.pretrained / "vocab.txt"
        vocabulary.write_text("\n".join(words) + "\n")
        transformers.BertTokenizerFast(vocab=str(vocabulary)).save_pretrained(self.pretrained)

    def prepare_rows(self, *arguments, tokenizer):
        return self.prepare("--tokenizer", tokenizer, "--sequence", str(SEQUENCE), *arguments)

    def prepared_labels(self, tokenizer, pairs=False):
        file = self.directory / "labels.jsonl"
        lines = [{"text": " ".join(f"w{i * j % 60}" for j in range(i + 2)), "label": ("good", "bad", "so so")[i % 3]}
                 for i in range(ROWS)]
        if pairs:
            lines[1]["text_pair"] = "w1 w2 w3"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return self.prepare_rows("--labels", file, tokenizer=tokenizer)

    def test_memstat_plans_a_task_as_it_runs(self):
        """The floor of a run that is given --task, and what it holds beside the model, are what the keys foretell."""
        # A forecast takes it that rows end in padding.
        data = {"sequence-classification": self.classification("ragged_labels", shortest=SEQUENCE - 4)[0],
                "masked": save_masked(self.directory / "ragged_masked.safetensors",
                                      masked(make_rows(1, ROWS, shortest=SEQUENCE - 4), 1), "pad")}
        rates = ["--gpu", "cpu", "--tflops", "1", "--memory-bandwidth", "10GiB/s", "--pcie", "10GiB/s"]
        floors = []
        for task, path in data.items():
            keys = self.keys(self.pretrained, path, task=task, chunk_size=64 * KIB, vocabulary_blocks=1, threads=1,
                             sequence=SEQUENCE, device_memory=64 << 20, host_memory=256 << 20)
            done = subprocess.run([BIN / "memstat", "plan", *rates, "--json", "--", *arguments(keys)],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            plan = json.loads(done.stdout)
            ran = steps(self.train(f"planned_{task}", **keys))
            with self.subTest(task):
                self.assertEqual(plan["device_floor_bytes"], self.floor(keys))
                real = ran[-1]["non_model_peak_bytes"]
                self.assertAlmostEqual(plan["non_model_peak_bytes"], real, delta=MOST_PEAK_ERROR * real)
            floors.append(plan["device_floor_bytes"])
        self.assertNotEqual(*floors)

    def check_new_classifier(self, model, model_class, head, left_out, data):
        self.check_new_head(model, model_class, "sequence-classification", head, left_out, data,
                            ["bad", "good", "so so"])

    def test_a_language_model_gets_a_classifier(self):
        model = save_model(transformers.LlamaForCausalLM, config_of("llama"), self.directory / "causal")
        self.check_new_classifier(model, transformers.LlamaForSequenceClassification, "score.", ["lm_head.weight"],
                                  self.prepared_labels(self.pretrained))

    def test_a_pretrained_encoder_gets_a_classifier(self):
        self.check_new_classifier(self.pretrained, transformers.BertForSequenceClassification, "classifier.",
                                  ["cls.seq_relationship", "cls.predictions"],
                                  self.prepared_labels(self.pretrained, pairs=True))

    def test_a_pretrained_encoder_learns_masked_tokens(self):
        file = self.directory / "corpus.txt"
        file.write_text("".join(" ".join(f"w{i * j % 60}" for j in range(i + 2)) + "\n" for i in range(20)))
        data = self.prepare_rows("--masked", file, "--pack", tokenizer=self.pretrained)
        outputs = []
        for task in ("auto", "masked"):
            output, said = self.trained(task, **self.keys(self.pretrained, data, task=task, eval_data=data))
            self.assertIn("bert.pooler.dense", said)
            self.assertIn("cls.seq_relationship", said)
            self.assertNotIn("random values", said)
            self.assertEqual(self.config(output)["architectures"], ["BertForMaskedLM"])
            self.loaded(output, transformers.BertForMaskedLM)
            outputs.append(output)
        self.assert_same_end(*outputs)

    def test_files_that_lack_a_part_of_the_head(self):
        labels = self.prepared_labels(self.pretrained)
        tokens, _ = self.masked_data("masked", 2)
        bare = save_model(transformers.BertModel, config_of("bert", **NO_DROPOUT), self.directory / "bare")
        for model, task, data, made, model_class in (
                (bare, "masked", tokens, "cls.predictions.", transformers.BertForMaskedLM),
                (bare, "auto", tokens, "cls.predictions.", transformers.BertForMaskedLM),
                (bare, "sequence-classification", labels, "classifier.", transformers.BertForSequenceClassification),
                (self.masked_model(), "sequence-classification", labels, "bert.pooler.",
                 transformers.BertForSequenceClassification)):
            with self.subTest(model.name, task=task):
                output, said = self.trained(f"{model.name}_{task}", **self.keys(model, data, task=task, steps=2))
                self.assertRegex(said, f"has no .*{made}.* for the task ")
                self.assertEqual("pooler" in said, made != "classifier.")
                self.loaded(output, model_class)
                self.assertEqual(self.config(output)["architectures"], [model_class.__name__])

    def test_what_the_data_say_of_labels_is_saved(self):
        arrays = labelled(SEVERAL, 3, 1, ROWS)
        data = save_labelled(self.directory / "several.safetensors", arrays, SEVERAL, 3)
        model = save_classifier("llama", self.directory / "says_nothing", num_labels=3)
        output = self.train("out", **self.keys(model, data, steps=1))
        # By it transformers' pipelines choose between a softmax and a sigmoid of each label.
        self.assertEqual(self.config(output).get("problem_type"), SEVERAL)


class LearnsTest(TasksTestCase):
    """The label is the order of two tokens, so that a model has to know where they are."""
    FIRST, SECOND, OTHERS = 5, 6, range(8, 32)

    def texts(self, name, seed, count):
        draw = numpy.random.default_rng(seed)
        texts, labels = [], draw.integers(0, 2, count).astype(numpy.int32)
        for label in labels:
            text = draw.choice(self.OTHERS, draw.integers(8, 17))
            places = numpy.sort(draw.choice(numpy.arange(1, len(text)), 2, replace=False))
            text[places] = (self.FIRST, self.SECOND) if label else (self.SECOND, self.FIRST)
            texts.append(text)
        return save_labelled(self.directory / f"{name}.safetensors", {**padded(texts), "labels": labels}, SINGLE, 2)

    def test_a_classifier_is_right_on_texts_that_it_has_not_seen(self):
        torch.manual_seed(1)
        config = transformers.BertConfig(vocab_size=32, max_position_embeddings=SEQUENCE, hidden_size=64,
                                         intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                                         num_labels=2, **NO_DROPOUT)
        transformers.BertForSequenceClassification(config).save_pretrained(self.directory / "untrained")
        output = self.train("out", **self.keys(
            self.directory / "untrained", self.texts("learned", 1, 4000), batch=32, steps=300, warmup_steps=20,
            eval_data=self.texts("others", 2, 400)))
        self.assertGreaterEqual(metrics(output)[-1]["eval_accuracy"], 0.95)


class RefusalsTest(TasksTestCase):
    def setUp(self):
        super().setUp()
        self.classifier = save_classifier("bert", self.directory / "classifier", num_labels=3)
        self.three, self.arrays = self.classification("three", num_labels=3, types=True)

    def test_tasks_that_a_family_has_not(self):
        masked_data, _ = self.masked_data("masked", 1)
        chats = MODELS / "tokens.npy"
        for model, task, data, words in (
                ("llama", "masked", masked_data, ("llama, which has causal, sequence-classification",)),
                ("cohere", "sequence-classification", self.three, ("cohere, which has causal",)),
                (self.classifier, "causal", chats, ("bert, which has masked, sequence-classification",))):
            with self.subTest(task):
                self.refused_run(f"--task {task}", *words, **self.keys(MODELS / model, data, task=task))
        self.refused_run("--task", "nonsense", "auto", "causal", status=USAGE,
                         **self.keys(self.classifier, self.three, task="nonsense"))

    def test_data_of_another_task(self):
        masked_data, _ = self.masked_data("masked", 1)
        for model, data, kind, wanted in (
                (self.classifier, masked_data, "masked", "sequence-classification"),
                (MODELS / "llama", masked_data, "masked", "causal"),
                (MODELS / "llama", self.three, "sequence-classification", "causal"),
                (self.classifier, MODELS / "tokens.npy", "causal", "sequence-classification")):
            with self.subTest(f"{kind} for {wanted}"):
                self.refused_run("--data", str(data), f"of the task {kind}", f"to learn the task {wanted}",
                                 f"--task {kind}", **self.keys(model, data, sequence=SEQUENCE))
        self.refused_run("--eval-data", str(masked_data), "of the task masked",
                         **self.keys(self.classifier, self.three, eval_data=masked_data))

    def test_labels_that_the_model_has_not(self):
        seven, arrays = self.classification("seven", num_labels=7)
        row = int(numpy.argmax(arrays["labels"] > 2))
        self.refused_run("seven.safetensors", f"row {row} has the label {arrays['labels'][row]}",
                         "3 labels, from 0 to 2", **self.keys(self.classifier, seven))
        several, _ = self.classification("several", SEVERAL, 3)
        problem = save_classifier("bert", self.directory / "single", num_labels=3, problem_type=SINGLE)
        self.refused_run("several.safetensors", SEVERAL, SINGLE, **self.keys(problem, several))
        numbers, _ = self.classification("numbers", REGRESSION, 2)
        of_three = save_classifier("llama", self.directory / "of_three", num_labels=3, problem_type=REGRESSION)
        self.refused_run("numbers.safetensors", f"{REGRESSION}, 2", f"{REGRESSION}, 3", **self.keys(of_three, numbers))
        self.arrays["labels"][4] = -1
        path = save_labelled(self.directory / "negative.safetensors", self.arrays, SINGLE, 3)
        self.refused_run("negative.safetensors", "row 4 has the label -1", **self.keys(self.classifier, path))

    def test_labels_of_other_names(self):
        named = save_classifier("bert", self.directory / "named", id2label={0: "no", 1: "so so", 2: "yes"},
                                label2id={"no": 0, "so so": 1, "yes": 2})
        for names, words in (('["no", "perhaps", "yes"]', ("label 1 is 'perhaps'", "'so so'")),
                             ('["no", "so so"]', ("has 2 labels", "the model has 3", "label 2 is missing", "'yes'"))):
            with self.subTest(names):
                self.arrays["labels"] %= 2
                path = save_labelled(self.directory / "names.safetensors", self.arrays, SINGLE, names.count(",") + 1,
                                     names)
                self.refused_run("names.safetensors", *words, **self.keys(named, path))
        path = save_labelled(self.directory / "same.safetensors", self.arrays, SINGLE, 3, '["no", "so so", "yes"]')
        self.train("same", **self.keys(named, path, steps=1))

    def test_tokens_and_types_that_the_model_has_not(self):
        for name, row, position, value, words in (
                ("tokens", 4, 2, VOCABULARY, (f"token {VOCABULARY} in row 4, position 2",
                                              f"vocabulary of {VOCABULARY}")),
                ("types", 4, 2, 2, ("row 4 has a token of type 2 at position 2", "2 types")),
                ("documents", 4, 2, 2, ("row 4 has document 2 at position 2",))):
            with self.subTest(name):
                arrays = labelled(SINGLE, 3, 1, ROWS, types=True)
                arrays[name][row, position] = value
                path = save_labelled(self.directory / "changed.safetensors", arrays, SINGLE, 3)
                self.refused_run("changed.safetensors", *words, **self.keys(self.classifier, path))
        llama = save_classifier("llama", self.directory / "of_three", num_labels=3)
        self.refused_run("three.safetensors", "has a token of type 1", "the model has", **self.keys(llama, self.three))
        path = save_masked(self.directory / "mask.safetensors", masked(make_rows(1, ROWS), 1), "pad",
                           mask_token=str(VOCABULARY))
        self.refused_run("mask.safetensors", f"its mask_token is {VOCABULARY}", f"vocabulary of {VOCABULARY}",
                         **self.keys(self.masked_model(), path))

    def test_a_pack_of_labels(self):
        path = self.directory / "pack.safetensors"
        save_labelled(path, self.arrays, SINGLE, 3)
        content = path.read_bytes().replace(b'"layout":"pad"', b'"layout":"pack"', 1)
        size = int.from_bytes(content[:8], "little") + 1
        path.write_bytes(size.to_bytes(8, "little") + content[8:])
        self.refused_run("pack.safetensors", "layout is 'pack'", **self.keys(self.classifier, path))


if __name__ == "__main__":
    unittest.main(verbosity=2)
