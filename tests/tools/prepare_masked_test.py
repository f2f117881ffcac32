#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests tools/prepare_data.py --masked, with a tokenizer that is made here."""
import hashlib
import unittest

import numpy
import tokenizers

from rows_fixture import (PAIR_TOKENS, PrepareRowsTest, pair_tokenizer, vocabulary_crc32,
                          word_tokenizer)
import transformers


class PrepareMaskedTest(PrepareRowsTest):
    source = "--masked"

    def setUp(self):
        super().setUp()
        self.model(pair_tokenizer(), **PAIR_TOKENS)

    def prepare_text(self, text, **options):
        return self.prepare(text.encode(), **options)

    def words(self, tensors):
        """Returns the text of each document, in the order of the rows."""
        return [self.tokenizer.decode(tokens[documents == number], skip_special_tokens=False)
                for tokens, documents in zip(tensors["tokens"], tensors["documents"])
                for number in range(1, documents.max() + 1)]

    def used(self):
        return transformers.AutoTokenizer.from_pretrained(self.folder / "model")

    def test_each_line_that_is_not_blank_is_a_document_with_special_tokens(self):
        tensors, metadata = self.prepare_text("w1 w2\n\n \t\r\nw3\r\nw4 w5 w6", sequence=6)
        self.assertEqual(self.words(tensors), ["[CLS] w1 w2 [SEP]", "[CLS] w3 [SEP]",
                                               "[CLS] w4 w5 w6 [SEP]"])
        self.assertEqual(tensors["documents"].tolist(), [[1] * 4 + [0] * 2, [1] * 3 + [0] * 3,
                                                         [1] * 5 + [0]])
        self.assertEqual(tensors["tokens"][1].tolist(), [2, 8, 3, 0, 0, 0])
        self.assertEqual((metadata["documents"], metadata["layout"]), ("3", "pad"))

    def test_all_but_special_tokens_may_be_masked_as_in_transformers(self):
        tokenizer = pair_tokenizer()
        tokenizer.add_special_tokens(["<extra>"])
        tokenizer.add_tokens(["added"])
        self.model(tokenizer, **PAIR_TOKENS)
        line = "w1 [MASK] w2 strange [SEP] added <extra> [PAD]"
        tensors, _ = self.prepare_text(line + "\n", sequence=11)
        self.assertEqual(tensors["answers"].tolist(), [[0, 1, 0, 1, 0, 0, 1, 0, 0, 0, 0]])
        used = self.used()
        mask = used.get_special_tokens_mask(used(line)["input_ids"],
                                            already_has_special_tokens=True)
        # transformers forgets a special token that only the tokenizer knows.
        mask[line.split().index("<extra>") + 1] = 1
        self.assertEqual((1 - numpy.array(mask)).tolist(), tensors["answers"][0, :10].tolist())

    def test_a_token_that_the_tokenizer_adds_is_special_though_it_is_not_called_so(self):
        tokenizer = pair_tokenizer()
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single="w9 $A", pair="$A $B", special_tokens=[("w9", tokenizer.token_to_id("w9"))])
        self.model(tokenizer, **PAIR_TOKENS)
        tensors, _ = self.prepare_text("w1 w9\n", sequence=3)
        self.assertEqual(tensors["answers"].tolist(), [[0, 1, 1]])

    def test_packed_lines_share_rows(self):
        tensors, metadata = self.prepare_text("w1 w1\nw2 w2 w2\nw3\nw4 w4 w4\n", sequence=8,
                                              more=["--pack"])
        self.assertEqual(self.words(tensors), [
            "[CLS] w1 w1 [SEP]", "[CLS] w3 [SEP]", "[CLS] w2 w2 w2 [SEP]",
            "[CLS] w4 w4 w4 [SEP]"])
        self.assertEqual(tensors["documents"].tolist(), [
            [1] * 4 + [2] * 3 + [0], [1] * 5 + [0] * 3, [1] * 5 + [0] * 3])
        self.assertEqual(tensors["answers"][0].tolist(), [0, 1, 1, 0, 0, 1, 0, 0])
        self.assertEqual((metadata["rows"], metadata["layout"]), ("3", "pack"))

    def test_what_is_too_long_is_refused_or_dropped_or_cut(self):
        text = "w1\nw1 w2 w3\nw4\n"
        path = self.file(text.encode())
        self.assert_refused(self.call(path, sequence=4), f"{path}, line 2: 5 tokens",
                            "--sequence 4", "--too-long drop or cut")
        tensors, metadata = self.prepare_text(text, sequence=4, more=["--too-long", "drop"])
        self.assertEqual(self.words(tensors), ["[CLS] w1 [SEP]", "[CLS] w4 [SEP]"])
        self.assertEqual(metadata["documents"], "2")
        self.assertIn("0 were cut and 1 dropped", self.said)
        tensors, _ = self.prepare_text(text, sequence=4, more=["--too-long", "cut"])
        self.assertEqual(self.words(tensors)[1], "[CLS] w1 w2 [SEP]")
        self.assertEqual(tensors["answers"][1].tolist(), [0, 1, 1, 0])
        self.assertIn("1 were cut and 0 dropped", self.said)
        self.output.unlink()
        self.assert_refused(self.call(path, sequence=2, more=["--too-long", "drop"]),
                            "no document is left: all 3")

    def test_the_file_is_the_one_described(self):
        tensors, metadata = self.prepare_text("w1 w2\nw3\n", sequence=8)
        self.assertEqual({name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()},
                         {"tokens": (numpy.int32, (2, 8)), "documents": (numpy.int32, (2, 8)),
                          "answers": (numpy.uint8, (2, 8))})
        digest = hashlib.sha256(self.used().backend_tokenizer.to_str().encode()).hexdigest()
        self.assertEqual(metadata, {
            "gemini.format": "1", "task": "masked", "tokenizer": digest, "mask_token": "4",
            "vocabulary_crc32": vocabulary_crc32(self.used().backend_tokenizer),
            "sequence": "8", "rows": "2", "documents": "2", "layout": "pad",
            "answer_tokens": "3"})
        self.assertIn("2 rows of 8 tokens, 43.8% filled", self.said)
        self.assertIn("2 lines with 3 tokens to be masked", self.said)

    def test_a_preview_shows_what_may_be_masked(self):
        self.prepare_text("w1 w2\nw3\n", sequence=5, more=["--preview", "1"])
        self.assertIn("== row 1, document 1: 4 tokens, 2 to be masked\n[CLS][[w1 w2]][SEP]\n",
                      self.said)
        self.assertNotIn("row 2", self.said)

    def test_truncation_and_padding_saved_with_a_tokenizer_change_nothing(self):
        tokenizer = pair_tokenizer()
        tokenizer.enable_truncation(4)
        tokenizer.enable_padding(length=20)
        self.model(tokenizer, **PAIR_TOKENS)
        tensors, _ = self.prepare_text("w1 w2 w3 w4\n", sequence=8)
        self.assertEqual(self.words(tensors), ["[CLS] w1 w2 w3 w4 [SEP]"])

    def test_a_line_without_a_token_to_be_masked_is_left_out_unless_nothing_is_left(self):
        unknown = "[SEP] strange\n"
        tensors, metadata = self.prepare_text("w1\n" + unknown + "w2\n", sequence=4)
        self.assertEqual(self.words(tensors), ["[CLS] w1 [SEP]", "[CLS] w2 [SEP]"])
        self.assertEqual(metadata["documents"], "2")
        self.assertIn("2 lines with 2 tokens to be masked", self.said)
        self.assertIn("; of those without such a token, 1 were left out", self.said)
        self.output.unlink()
        self.assert_refused(self.call(self.file(unknown.encode() * 2)),
                            "no document is left: all 2 have special tokens only")
        self.assert_refused(
            self.call(self.file(b"w1 w2\n" + unknown.encode() * 2 + b"strange\n"), sequence=3,
                      more=["--too-long", "drop"]),
            "no document is left: 3 have more than --sequence 3", "; 1 have special tokens only")

    def test_a_cut_needs_room_for_the_special_tokens_of_one_text(self):
        tensors, _ = self.prepare_text("w1 w2\n", sequence=3, more=["--too-long", "cut"])
        self.assertEqual(self.words(tensors), ["[CLS] w1 [SEP]"])
        self.output.unlink()
        path = self.file(b"w1 w2\n")
        self.assert_refused(self.call(path, sequence=2, more=["--too-long", "cut"]),
                            "--sequence 2 has no room for text", "up to 2 special tokens")

    def test_a_cut_takes_the_side_that_the_tokenizer_says(self):
        self.model(pair_tokenizer(), **PAIR_TOKENS, truncation_side="left")
        tensors, _ = self.prepare_text("w1 w2 w3\n", sequence=4, more=["--too-long", "cut"])
        self.assertEqual(self.words(tensors), ["[CLS] w2 w3 [SEP]"])

    def test_a_byte_order_mark_is_no_part_of_the_text(self):
        tensors, _ = self.prepare(b"\xef\xbb\xbfw1\n", sequence=3)
        self.assertEqual(tensors["tokens"].tolist(), [[2, 6, 3]])

    def test_what_cannot_be_used_is_refused(self):
        path = self.file(b"w1\nw2 \xff\n")
        self.assert_refused(self.call(path), f"{path}, line 2 is not UTF-8 at byte 3", "-f latin1")
        self.assert_refused(self.call(self.file(b" \n\n")), "a.jsonl is empty")
        self.assert_refused(self.call(self.folder / "none"), "none: no such file")
        self.assert_refused(self.call("/proc/self/mem"), "/proc/self/mem: Input/output error")
        good = self.file(b"w1\n")
        for more, message in ((["--answers", "all"], "--answers goes with --messages"),
                              (["--problem", "regression"], "--problem goes with --labels")):
            self.assert_refused(self.call(good, more=more), message)
        self.assert_refused(self.call(good, tokenizer=self.folder / "model/tokenizer.json"),
                            "--masked needs the tokenizer's folder")
        self.model(word_tokenizer())
        self.assert_refused(self.call(good), "the tokenizer has no mask token")

    def test_the_tokenizer_fails_for_a_line_that_is_named(self):
        self.model(tokenizers.Tokenizer(tokenizers.models.WordLevel(
            {"w1": 0, "[MASK]": 1}, unk_token="none")), mask_token="[MASK]")
        path = self.file(b"w1\nw1\nother\nw1\n")
        self.assert_refused(self.call(path), f"{path}, line 3: the tokenizer fails: ")


if __name__ == "__main__":
    unittest.main()
