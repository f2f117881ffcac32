#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests tools/prepare_data.py --labels, with tokenizers and models' folders that are made here."""
import hashlib
import json
import random
import unittest

import numpy
import tokenizers
from tokenizers import models, normalizers, processors

from rows_fixture import (PAIR_TOKENS, PrepareRowsTest, pair_tokenizer, vocabulary_crc32,
                          word_tokenizer)
import prepare_data
import transformers
from data.data_error import DataError
from data.labels import MOST_CHARACTERS, MOST_LABELS, LabelSurvey
from data.model_config import ModelConfig
from data.safetensors_writer import HEAD_BYTES


def line(text, label, pair=None):
    return {"text": text, "label": label} | ({} if pair is None else {"text_pair": pair})


class PrepareLabelsTest(PrepareRowsTest):
    source = "--labels"

    def setUp(self):
        super().setUp()
        self.model(pair_tokenizer(), **PAIR_TOKENS)

    def config(self, **keys):
        (self.folder / "model/config.json").write_text(json.dumps(keys))

    def used(self):
        return transformers.AutoTokenizer.from_pretrained(self.folder / "model")


class TokensTest(PrepareLabelsTest):
    def random_lines(self, seed):
        random_ = random.Random(seed)

        def text():
            words = ["w1", "w2", "w3", "[SEP]", "[MASK]", "strange"]
            return " ".join(random_.choices(words, k=random_.randint(1, 20)))
        return [line(text(), random_.randint(0, 1), random_.choice([None, text()]))
                for _ in range(300)]

    def assert_rows_are_those_of_transformers(self, lines, tensors, **options):
        tokenizer = self.used()
        self.assertEqual(len(tensors["tokens"]), len(lines))
        types = tensors.get("types", numpy.zeros_like(tensors["tokens"]))
        for row, one in enumerate(lines):
            expected = tokenizer(one["text"], one.get("text_pair"), **options)
            length = len(expected["input_ids"])
            for name, found, behind in (("input_ids", tensors["tokens"][row], 0),
                                        ("attention_mask", tensors["documents"][row], 0),
                                        ("token_type_ids", types[row], 0)):
                if name in expected:
                    self.assertEqual(found[:length].tolist(), expected[name], one)
                self.assertEqual(set(found[length:].tolist()), {behind} if found[length:].size
                                 else set())

    def test_rows_are_what_transformers_gives_for_a_text_or_a_pair(self):
        lines = self.random_lines(seed=1)
        tensors, _ = self.prepare(*lines, sequence=44)
        self.assertTrue(tensors["types"].any())
        self.assert_rows_are_those_of_transformers(lines, tensors)

    def test_a_cut_is_that_of_transformers_and_keeps_special_tokens(self):
        lines = self.random_lines(seed=2)
        special = {"[CLS]": 2, "[SEP]": 3}
        begin = processors.TemplateProcessing(
            single="$A [SEP] [CLS]:2", pair="$A [SEP] $B:1 [SEP]:1 [CLS]:2",
            special_tokens=list(special.items()))
        roberta = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
        for post_processor in (None, pair_tokenizer().post_processor, begin, roberta):
            for side in "right", "left":
                for sequence in 7, 12, 21:
                    with self.subTest(post_processor=post_processor, side=side, sequence=sequence):
                        tokenizer = pair_tokenizer()
                        tokenizer.post_processor = post_processor
                        self.model(tokenizer, **PAIR_TOKENS, truncation_side=side)
                        tensors, _ = self.prepare(*lines, sequence=sequence,
                                                  more=["--too-long", "cut"])
                        self.assert_rows_are_those_of_transformers(
                            lines, tensors, truncation="longest_first", max_length=sequence)

    def test_what_is_too_long_is_refused_or_dropped_or_cut(self):
        lines = [line("w1 w2", 0), line("w1 w2", 1, "w3 w4 w5"), line("w3 w4 w5", 1)]
        self.assert_refused(self.call(self.file(*lines), sequence=5), "a.jsonl, line 2: 8 tokens",
                            "--sequence 5", "--too-long drop or cut")
        tensors, metadata = self.prepare(*lines, sequence=5, more=["--too-long", "drop"])
        self.assertEqual((tensors["labels"].tolist(), metadata["rows"]), ([0, 1], "2"))
        self.assertIn("0 were cut and 1 dropped", self.said)
        tensors, metadata = self.prepare(*lines, sequence=5, more=["--too-long", "cut"])
        self.assertEqual((tensors["labels"].tolist(), metadata["rows"]), ([0, 1, 1], "3"))
        self.assertEqual(self.tokenizer.decode(tensors["tokens"][1], skip_special_tokens=False),
                         "[CLS] w1 [SEP] w3 [SEP]")
        self.assertIn("1 were cut and 0 dropped", self.said)
        self.output.unlink()
        self.assert_refused(self.call(self.file(*lines[1:]), sequence=3,
                                      more=["--too-long", "drop"]), "no text is left: all 2",
                            "--sequence 3")
        self.assert_refused(self.call(self.file(*lines), sequence=3, more=["--too-long", "cut"]),
                            "--sequence 3 has no room for text", "up to 3 special tokens")

    def test_types_are_left_out_where_all_are_0_or_the_tokenizer_gives_none(self):
        pair, single = line("w1", 0, "w2"), line("w1 w2", 1)
        tensors, _ = self.prepare(single, pair, sequence=6)
        self.assertEqual(tensors["types"].tolist(), [[0] * 6, [0, 0, 0, 1, 1, 0]])
        tensors, _ = self.prepare(single, line("w1", 0), sequence=6)
        self.assertNotIn("types", tensors)
        # As GPT-2's tokenizer, whose models know no types.
        self.model(word_tokenizer(), model_input_names=["input_ids", "attention_mask"])
        self.assertEqual(self.tokenizer.encode("w1", "w2").type_ids, [0, 1])
        tensors, _ = self.prepare(single, pair, sequence=6)
        self.assertNotIn("types", tensors)
        self.assertEqual(tensors["labels"].tolist(), [1, 0])

    def test_lines_of_white_space_and_a_byte_order_mark_are_skipped(self):
        tensors, _ = self.prepare(b"\xef\xbb\xbf\n", b"\xc2\xa0\n", line("w1", 0), b" \t\r\n",
                                  line("w1", 1), sequence=4)
        self.assertEqual(tensors["labels"].tolist(), [0, 1])

    def test_a_pair_that_is_null_is_none(self):
        tensors, _ = self.prepare(line("w1", 0) | {"text_pair": None}, line("w1", 1), sequence=4)
        self.assertEqual(*tensors["tokens"].tolist())

    def test_many_batches_give_the_rows_of_their_lines_in_order(self):
        lines = [json.dumps(line(f"w{i}", i)).encode() + b" " * 20_000 + b"\n" for i in range(58)]
        tensors, _ = self.prepare(*lines, sequence=3)
        self.assertEqual(tensors["labels"].tolist(), list(range(58)))
        self.assertEqual((tensors["tokens"][:, 1] - 5).tolist(), list(range(58)))

    def test_the_same_lines_give_the_same_bytes_in_one_file_or_two(self):
        lines = self.random_lines(seed=3)
        self.prepare(*lines)
        before = self.output.read_bytes()
        files = self.file(*lines[:100], name="1"), self.file(*lines[100:], name="2")
        self.assertIsNone(self.call(*files))
        self.assertEqual(self.output.read_bytes(), before)

    def test_a_preview_shows_text_and_label(self):
        self.prepare(line("w1 w2", "good"), line("w3", "bad"), sequence=5, more=["--preview", "1"])
        self.assertIn("== row 1: 4 of 5 tokens, label 1 good\n[CLS] w1 w2 [SEP]\n", self.said)
        self.assertNotIn("row 2", self.said)

    def test_truncation_and_padding_saved_with_a_tokenizer_change_nothing(self):
        tokenizer = pair_tokenizer()
        expected, _ = self.prepare(line("w1 w2", 0), line("w3 w4 w5 w6", 1), sequence=8)
        tokenizer.enable_truncation(4)
        tokenizer.enable_padding(length=20)
        self.model(tokenizer, **PAIR_TOKENS)
        digest = hashlib.sha256(self.used().backend_tokenizer.to_str().encode()).hexdigest()
        tensors, metadata = self.prepare(line("w1 w2", 0), line("w3 w4 w5 w6", 1), sequence=8)
        self.assertEqual(tensors["documents"].tolist(), expected["documents"].tolist())
        self.assertEqual(metadata["tokenizer"], digest)


class KindsTest(PrepareLabelsTest):
    def test_a_single_label_is_a_number_or_a_name_in_the_order_of_the_alphabet(self):
        tensors, metadata = self.prepare(line("w1", 0), line("w2", 2), line("w3", 1), sequence=8)
        self.assertEqual(tensors["labels"].tolist(), [0, 2, 1])
        self.assertEqual(tensors["labels"].dtype, numpy.int32)
        self.assertEqual((metadata["num_labels"], metadata["names"]), ("3", ""))
        tensors, metadata = self.prepare(line("w1", "so-so"), line("w2", "bad"),
                                         line("w3", "süß"), line("w3", "bad"), sequence=8)
        self.assertEqual(tensors["labels"].tolist(), [1, 0, 2, 0])
        self.assertEqual((metadata["num_labels"], metadata["names"]),
                         ("3", '["bad", "so-so", "süß"]'))
        self.assertEqual(metadata["problem_type"], "single_label_classification")

    def test_several_labels_are_a_row_of_zeros_and_ones(self):
        tensors, metadata = self.prepare(line("w1", ["b", "a"]), line("w2", []),
                                         line("w3", ["c"]), sequence=8)
        self.assertEqual(tensors["labels"].tolist(), [[1, 1, 0], [0, 0, 0], [0, 0, 1]])
        self.assertEqual(tensors["labels"].dtype, numpy.float32)
        self.assertEqual((metadata["problem_type"], metadata["num_labels"], metadata["names"]),
                         ("multi_label_classification", "3", '["a", "b", "c"]'))
        tensors, metadata = self.prepare(line("w1", []), line("w2", [3, 0]), sequence=8)
        self.assertEqual(tensors["labels"].tolist(), [[0, 0, 0, 0], [1, 0, 0, 1]])
        self.assertEqual((metadata["num_labels"], metadata["names"]), ("4", ""))

    def test_regression_takes_a_number_or_several(self):
        tensors, metadata = self.prepare(line("w1", 0.5), line("w2", -3), sequence=8)
        self.assertEqual(tensors["labels"].tolist(), [[0.5], [-3]])
        self.assertEqual(tensors["labels"].dtype, numpy.float32)
        self.assertEqual((metadata["problem_type"], metadata["num_labels"], metadata["names"]),
                         ("regression", "1", ""))
        tensors, metadata = self.prepare(line("w1", [1, 0.5]), line("w2", [0.25, -2]), sequence=8)
        self.assertEqual(tensors["labels"].tolist(), [[1, 0.5], [0.25, -2]])
        self.assertEqual(metadata["num_labels"], "2")

    def test_the_problem_can_be_chosen(self):
        lines = line("w1", 1), line("w2", 4)
        tensors, _ = self.prepare(*lines, sequence=8, more=["--problem", "regression"])
        self.assertEqual(tensors["labels"].tolist(), [[1], [4]])
        lists = line("w1", [1]), line("w2", [4])
        tensors, _ = self.prepare(*lists, sequence=8, more=["--problem", "regression"])
        self.assertEqual(tensors["labels"].tolist(), [[1], [4]])
        self.output.unlink()
        self.assert_refused(self.call(self.file(*lines), more=["--problem", "several-labels"]),
                            "line 1: label: expected a list of texts or integers", "found 1")
        self.assert_refused(self.call(self.file(*lists), more=["--problem", "single-label"]),
                            "line 1: label: expected a text or an integer", "found [1]")

    def test_names_are_those_of_the_model(self):
        self.config(id2label={"1": "bad", "0": "good", "2": "so-so"})
        tensors, metadata = self.prepare(line("w1", "good"), line("w2", "bad"), sequence=8)
        self.assertEqual(tensors["labels"].tolist(), [0, 1])
        self.assertEqual((metadata["num_labels"], json.loads(metadata["names"])),
                         ("3", ["good", "bad", "so-so"]))
        tensors, metadata = self.prepare(line("w1", [1]), sequence=8)
        self.assertEqual(tensors["labels"].tolist(), [[0, 1, 0]])
        self.assertEqual(json.loads(metadata["names"]), ["good", "bad", "so-so"])

    def test_placeholders_of_a_model_are_no_names_and_count(self):
        self.config(id2label={"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"})
        _, metadata = self.prepare(line("w1", 0), line("w2", 1), sequence=8)
        self.assertEqual((metadata["num_labels"], metadata["names"]), ("3", ""))
        _, metadata = self.prepare(*(line("w1", name) for name in "cab"), sequence=8)
        self.assertEqual(metadata["names"], '["a", "b", "c"]')
        self.output.unlink()
        self.assert_refused(self.call(self.file(line("w1", "b"), line("w1", "a"))),
                            "2 labels, ['a', 'b']", "num_labels in", "model/config.json is 3")

    def test_names_count_unless_each_is_the_placeholder_of_its_number(self):
        for names in ["dog", "cat", "LABEL_2"], ["LABEL_1", "LABEL_0"], ["LABEL_00", "LABEL_1"]:
            with self.subTest(names=names):
                self.config(id2label=dict(enumerate(names)))
                tensors, metadata = self.prepare(*(line("w1", name) for name in names), sequence=8)
                self.assertEqual(tensors["labels"].tolist(), list(range(len(names))))
                self.assertEqual(json.loads(metadata["names"]), names)

    def test_placeholders_of_a_model_have_the_numbers_that_stand_in_them(self):
        placeholders = [f"LABEL_{number}" for number in range(12)]
        for keys in {"id2label": dict(enumerate(placeholders))}, {"num_labels": 12}:
            self.config(**keys)
            tensors, metadata = self.prepare(line("w1", "LABEL_10"), line("w1", "LABEL_2"),
                                             sequence=8)
            self.assertEqual(tensors["labels"].tolist(), [10, 2])
            self.assertEqual(json.loads(metadata["names"]), placeholders)
        self.output.unlink()
        self.config(num_labels=2)
        self.assert_refused(self.call(self.file(line("w1", "LABEL_1"), line("w1", "LABEL_2"))),
                            "model/config.json has 2 labels", "'LABEL_2' is none of these")

    def test_labels_of_a_model_of_another_task_do_not_bind_unless_they_have_names(self):
        two = line("w1", "good"), line("w2", "bad")
        for keys in {"id2label": {"0": "LABEL_0"}}, {"num_labels": 7}:
            self.config(architectures=["GPT2LMHeadModel"], **keys)
            _, metadata = self.prepare(*two, sequence=8)
            self.assertEqual(metadata["names"], '["bad", "good"]')
            tensors, _ = self.prepare(line("w1", [0.5, 1.5, 2]), sequence=8)
            self.assertEqual(tensors["labels"].tolist(), [[0.5, 1.5, 2]])
        self.config(architectures=["GPT2LMHeadModel"], id2label={"0": "good", "1": "x", "2": "bad"})
        tensors, metadata = self.prepare(*two, sequence=8)
        self.assertEqual((tensors["labels"].tolist(), metadata["num_labels"]), ([0, 2], "3"))
        self.output.unlink()
        for architectures in (["BertForSequenceClassification"], ["ViTForImageClassification"],
                              [], None, [""]):
            with self.subTest(architectures=architectures):
                self.config(architectures=architectures, num_labels=3)
                self.assert_refused(self.call(self.file(*two)), "num_labels in", "is 3")

    def test_id2label_says_how_many_labels_there_are_whatever_num_labels_says(self):
        self.config(id2label={"0": "good", "1": "bad"}, num_labels=3)
        _, metadata = self.prepare(line("w1", "bad"), sequence=8)
        self.assertEqual(metadata["num_labels"], "2")

    def test_many_long_names_have_room_in_the_head(self):
        names = [f'"{i:04}"' * 20 for i in range(1000)]
        tensors, metadata = self.prepare(*(line("w1", name) for name in names), sequence=8)
        self.assertEqual(tensors["labels"].tolist(), list(range(1000)))
        self.assertEqual(json.loads(metadata["names"]), names)
        self.assertEqual(int.from_bytes(self.output.read_bytes()[:8], "little") % HEAD_BYTES,
                         HEAD_BYTES - 8)

    def test_the_file_is_the_one_described(self):
        tensors, metadata = self.prepare(line("w1", 0, "w2"), line("w2", 1), sequence=8)
        self.assertEqual({name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()},
                         {"tokens": (numpy.int32, (2, 8)), "documents": (numpy.int32, (2, 8)),
                          "types": (numpy.uint8, (2, 8)), "labels": (numpy.int32, (2,))})
        digest = hashlib.sha256(self.used().backend_tokenizer.to_str().encode()).hexdigest()
        self.assertEqual(metadata, {
            "gemini.format": "1", "task": "sequence-classification",
            "problem_type": "single_label_classification", "num_labels": "2", "names": "",
            "tokenizer": digest, "sequence": "8", "rows": "2", "layout": "pad",
            "vocabulary_crc32": vocabulary_crc32(self.used().backend_tokenizer)})
        self.assertEqual(int.from_bytes(self.output.read_bytes()[:8], "little"), HEAD_BYTES - 8)
        self.assertIn("2 rows of 8 tokens, 50.0% filled", self.said)


class ErrorsTest(PrepareLabelsTest):
    def assert_third_line_refused(self, first, third, *parts, more=()):
        path = self.file(first, b"\n", third, first)
        self.assert_refused(self.call(path, more=more), f"{path}, line 3", *parts)

    def test_a_line_that_cannot_be_used_is_refused_by_file_line_and_key(self):
        good = line("w1", 1)
        for third, *parts in (
                (b'{"text": }\n', "is no JSON", "column 10"),
                (b"\xff{}\n", "not UTF-8 at byte 0"),
                ([], "is no JSON object with text and label"),
                ({"label": 1}, ": text: missing"),
                ({"text": 1, "label": 1}, ": text: no text"),
                ({"text": "", "label": 1}, ": text: empty"),
                ({"text": " \n", "label": 1}, ": text: empty"),
                (line("w1", 1, 2), ": text_pair: no text"),
                (line("w1", 1, ""), ": text_pair: empty"),
                ({"text": "w1"}, ": label: missing"),
                (line("w1", None), ": label: null"),
                (line("w1", ""), ": label: empty"),
                (line("w1", " \n"), ": label: empty"),
                (line("w1", True), ": label: expected a text or an integer", "found True"),
                (line("w1", {"a": 1}), ": label: expected", "found {'a': 1}"),
                (line("\ud83d", 1), ": text: '\\ud83d' is half a character")):
            with self.subTest(third=third):
                self.assert_third_line_refused(good, third, *parts)

    def test_a_label_of_another_kind_than_the_first_is_refused(self):
        for first, third, *parts in (
                (1, "good", "'good' is a text, and those before are integers"),
                ("good", 1, "1 is an integer, and those before are texts"),
                (["good"], [1], "1 is an integer"),
                (1, 0.5, "expected a text or an integer (single-label), found 0.5", "--problem"),
                (1, [1], "expected a text or an integer", "found [1]"),
                ([1], 1, "expected a list of texts or integers (several-labels), found 1"),
                ([1], [0.5], "expected a list of texts or integers", "found [0.5]"),
                ([1], [0, 1, 1, 0], "0 stands twice in a list", "has no 0 or 1 for each"),
                (["good"], ["good", ""], ": label: empty"),
                (0.5, "good", "expected a number or a list of numbers (regression), found 'good'"),
                (0.5, [], "expected a number or a list of numbers"),
                (0.5, [1, 2.0], "it has 2 values, and the first label has 1")):
            with self.subTest(first=first, third=third):
                self.assert_third_line_refused(line("w1", first), line("w2", third), ": label: ",
                                               *parts)

    def test_a_label_beyond_what_there_is_is_refused(self):
        for first, third, *parts in (
                (0.5, float("nan"), "nan is no number that a float32 holds"),
                (0.5, float("-inf"), "-inf is no number"),
                (0.5, 1e39, "1e+39 is no number"),
                (0.5, 10**400, "is no number"),
                (1, -1, "-1 is negative"),
                (1, MOST_LABELS, f"{MOST_LABELS} is taken for a mistake"),
                ("a", "\ud83d", "is half a character")):
            with self.subTest(first=first, third=third):
                self.assert_third_line_refused(line("w1", first), line("w2", third), ": label: ",
                                               *parts)
        names = (line("w1", str(number)) for number in range(MOST_LABELS + 1))
        self.assert_refused(self.call(self.file(*names)), f"line {MOST_LABELS + 1}: label: ",
                            "different ones")
        self.assert_third_line_refused(
            line("w1", "a" * MOST_CHARACTERS), line("w2", "b" * (MOST_CHARACTERS + 1)),
            ": label: 'bbb", f"has {MOST_CHARACTERS + 1} characters")
        first, second = self.file(line("w1", 0)), self.file(line("w1", 0), name="b.jsonl")
        self.assert_refused(self.call(first, second), f"{first}, {second}: there is 1 label")
        self.file(line("w1", "a"), line("w1", "a"))
        self.assert_refused(self.call(first), f"{first}: there is 1 label")
        self.file(line("w1", []))
        self.assert_refused(self.call(first), f"{first}: no line has a label")

    def test_a_file_that_changes_between_the_passes_is_refused(self):
        for seen, others in ((["a", "b"], ["c", 2, -1, ["a"]]), ([0, 1], ["a", 2, 0.5]),
                             ([["a"], ["b"]], ["a", ["c"], [2]]),
                             ([0.5, 1], ["a", float("nan"), [0.5, 1]])):
            survey = LabelSurvey(None, ModelConfig(self.folder), "a.jsonl")
            for label in seen:
                survey.add("a.jsonl, line 1", label)
            labels = survey.result()
            labels.row_of("a.jsonl, line 1", seen[1])
            for other in others:
                with self.subTest(seen=seen, other=other):
                    with self.assertRaisesRegex(DataError, "^a.jsonl, line 2: label: .*changed"):
                        labels.row_of("a.jsonl, line 2", other)

    def test_a_label_that_the_model_does_not_have_is_refused(self):
        self.config(id2label={"0": "good", "1": "bad"})
        self.assert_third_line_refused(line("w1", "bad"), line("w1", "so-so"), ": label: 'so-so'",
                                       "none of the 2 names", "config.json: ['good', 'bad']")
        self.assert_third_line_refused(line("w1", 1), line("w1", 2), ": label: 2 is out of range",
                                       "2 labels, from 0 to 1")
        self.config(num_labels=3)
        self.assert_third_line_refused(line("w1", 2), line("w1", 3), "3 labels, from 0 to 2")
        self.assert_refused(self.call(self.file(line("w1", 0.5))),
                            "line 1: label: it has 1 values", "config.json says 3")

    def test_a_config_that_does_not_make_sense_is_refused(self):
        path = self.file(line("w1", 0), line("w1", 1))
        for keys, *parts in (
                ({"id2label": ["a"]}, "id2label: no object"),
                ({"id2label": {"0": "a", "2": "b"}}, "id2label: there is no name for 1"),
                ({"id2label": {"0": "a", "1": "a"}}, "two labels have the same name"),
                ({"num_labels": "2"}, "num_labels: '2' is no number from 1 on")):
            with self.subTest(keys=keys):
                self.config(**keys)
                self.assert_refused(self.call(path), "model/config.json: ", *parts)
        (self.folder / "model/config.json").write_text("{")
        self.assert_refused(self.call(path), "model/config.json is no JSON")

    def test_files_and_tokenizers_that_do_not_serve_are_refused(self):
        good = self.file(line("w1", 0), line("w1", 1))
        self.assert_refused(self.call(good, self.folder / "none"), "none: no such file")
        self.assert_refused(self.call(good, self.file(b"\n", name="b.jsonl")), "b.jsonl is empty")
        # What cannot be read, whoever asks: the memory of a process at address 0.
        self.assert_refused(self.call("/proc/self/mem"), "/proc/self/mem: Input/output error")
        self.assert_refused(self.call("a" * 300), "aaa: File name too long")
        self.assert_refused(self.call(good, tokenizer="a" * 300), "config.json: File name too long")
        for name in self.folder / "model/tokenizer.json", "some/name":
            self.assert_refused(self.call(good, tokenizer=name), f"there is no folder {name}")

    def test_a_text_that_the_tokenizer_makes_nothing_of_is_refused(self):
        tokenizer = word_tokenizer()
        tokenizer.normalizer = normalizers.Replace("w2", "")
        self.model(tokenizer)
        self.assert_third_line_refused(line("w1", 0), line("w2", 1),
                                       ": the tokenizer makes no token of the text")
        self.model(tokenizers.Tokenizer(models.WordLevel({"w1": 0}, unk_token="none")))
        self.assert_third_line_refused(line("w1", 0), line("w2", 1), ": the tokenizer fails")

    def test_options_that_do_not_go_with_labels_are_refused(self):
        good = self.file(line("w1", 0), line("w1", 1))
        for more, message in ((["--answers", "all"], "--answers goes with --messages"),
                              (["--pack"], "--pack goes with --messages"),
                              (["--dtype", "auto"], "--dtype goes with --text"),
                              (["--problem", "other"], "invalid choice")):
            self.assert_refused(self.call(good, more=more), message)
        for more, message in (([], "--labels needs --sequence"),
                              (["--sequence", "8"], "must end with .safetensors")):
            with self.assertRaises(SystemExit) as refused:
                output = self.output.with_suffix(".npy") if more else self.output
                prepare_data.main(["--tokenizer", "a", "--labels", str(good), "--output",
                                   str(output), *more])
            self.assertIn(message, refused.exception.code)


if __name__ == "__main__":
    unittest.main()
