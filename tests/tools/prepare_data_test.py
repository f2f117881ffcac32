#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests tools/prepare_data.py as its users call it: as a program."""
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import unittest

import numpy
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "tools/prepare_data.py"
sys.path.insert(0, str(PROGRAM.parent))
from data.data_error import DataError
from data.model_tokenizer import load_model_tokenizer, load_tokenizer


def train_tokenizer(text, vocabulary=400):
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


class PrepareDataTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name) / "a b"  # A path with a space in it.
        self.folder.mkdir()
        self.line = "for i in range(10):\n    print(f'{i} grüße € 𝄞')\n\n"
        self.tokenizer = train_tokenizer(self.line)
        self.model = self.folder / "model"
        self.model.mkdir()
        self.tokenizer.save(str(self.model / "tokenizer.json"))
        self.output = self.folder / "tokens.npy"

    def text(self, content, name="text.txt"):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def call(self, *text, tokenizer=None, output=None, more=(), file_limit_bytes=None):
        def limit():
            if file_limit_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit_bytes, file_limit_bytes))
        return subprocess.run(
            [sys.executable, PROGRAM, "--tokenizer", tokenizer or self.model, "--text", *text,
             "--output", output or self.output, *more],
            capture_output=True, text=True, check=False, preexec_fn=limit)

    def assert_refused(self, result, *parts):
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        for part in parts:
            self.assertIn(str(part), result.stderr)
        left = [path.name for path in self.folder.iterdir() if "tokens" in path.name]
        self.assertEqual(left, [])

    def test_tokens_decode_to_exactly_the_text(self):
        # Two batches and more of pieces, with characters of several bytes across their ends.
        content = self.line * 45_000
        result = self.call(self.text(content))
        self.assertEqual(result.returncode, 0, result.stderr)
        tokens = numpy.load(self.output)
        self.assertEqual((tokens.dtype, tokens.ndim), (numpy.uint16, 1))
        self.assertIn(f"{tokens.size} tokens", result.stdout)
        self.assertEqual(self.tokenizer.decode(tokens.tolist(), skip_special_tokens=False), content)

    def test_a_short_text_has_the_tokens_that_the_tokenizer_gives(self):
        self.assertEqual(self.call(self.text(self.line)).returncode, 0)
        self.assertEqual(numpy.load(self.output).tolist(), self.tokenizer.encode(self.line).ids)

    def test_a_text_without_line_ends_is_cut_too(self):
        content = "x " * 400_000
        self.assertEqual(self.call(self.text(content)).returncode, 0)
        self.assertEqual(self.tokenizer.decode(numpy.load(self.output).tolist()), content)

    def test_files_follow_each_other_with_the_separator_behind_each(self):
        first, second = self.text("one\n", "1"), self.text("two\n", "2")
        result = self.call(second, first, more=["--separator", "<|endoftext|>"])
        self.assertEqual(result.returncode, 0, result.stderr)
        end = self.tokenizer.token_to_id("<|endoftext|>")
        self.assertEqual(numpy.load(self.output).tolist(),
                         self.tokenizer.encode("two\n").ids + [end] +
                         self.tokenizer.encode("one\n").ids + [end])

    def test_a_vocabulary_above_two_to_the_16_makes_uint32(self):
        self.tokenizer.add_tokens([f"extra{i}" for i in range(70_000)])
        self.tokenizer.save(str(self.model / "tokenizer.json"))
        text = self.text("extra69999 print\n")
        self.assert_refused(self.call(text, more=["--dtype", "uint16"]), "--dtype uint32")
        self.assertEqual(self.call(text).returncode, 0)
        tokens = numpy.load(self.output)
        self.assertEqual(tokens.dtype, numpy.uint32)
        self.assertGreater(tokens.max(), 69_999)

    def test_a_tokenizer_file_and_an_old_folder_serve_as_well(self):
        text = self.text(self.line)
        self.assertEqual(self.call(text, tokenizer=self.model / "tokenizer.json").returncode, 0)
        expected = numpy.load(self.output).tolist()
        old = self.folder / "old"
        old.mkdir()
        self.tokenizer.model.save(str(old))  # vocab.json and merges.txt
        (old / "config.json").write_text('{"model_type": "gpt2"}')
        result = self.call(text, tokenizer=old)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(numpy.load(self.output).tolist(), expected)

    def test_a_folder_without_a_tokenizer_is_refused(self):
        text, empty = self.text(self.line), self.folder / "empty"
        empty.mkdir()
        for kind in ("gpt2", "bert", "gemma", "qwen2"):
            (empty / "config.json").write_text(json.dumps({"model_type": kind}))
            with self.subTest(kind):
                self.assert_refused(self.call(text, tokenizer=empty), f"{empty} has no tokenizer")

    def test_what_stands_before_a_text_stands_at_the_beginning_of_each_file_alone(self):
        metaspace, spaces = pre_tokenizers.Metaspace(), normalizers.Replace(" ", "▁")
        for normalizer, pre_tokenizer in (
                (None, metaspace), (None, pre_tokenizers.Sequence([metaspace])),
                (normalizers.Sequence([normalizers.Prepend("▁"), spaces]), None),
                (None, pre_tokenizers.ByteLevel(add_prefix_space=True))):
            with self.subTest(normalizer=normalizer, pre_tokenizer=pre_tokenizer):
                characters = {character: i for i, character in enumerate("helowrd▁ĠĊ\n")}
                tokenizer = tokenizers.Tokenizer(models.BPE(vocab=characters, merges=[]))
                tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
                tokenizer.save(str(self.model / "tokenizer.json"))
                text = "hello world\n" * 12_000
                result = self.call(self.text(text), self.text("hold\n", "other.txt"))
                self.assertEqual(result.returncode, 0, result.stderr)
                # assertEqual would look for the differences for minutes.
                self.assertTrue(numpy.array_equal(numpy.load(self.output), [
                    *tokenizer.encode(text).ids, *tokenizer.encode("hold\n").ids]))

    def test_a_byte_order_mark_is_no_text(self):
        self.assertEqual(self.call(self.text("\ufeff" + self.line)).returncode, 0)
        self.assertEqual(numpy.load(self.output).tolist(), self.tokenizer.encode(self.line).ids)

    def test_truncation_saved_with_a_tokenizer_does_not_drop_text(self):
        self.tokenizer.enable_truncation(4)
        self.tokenizer.save(str(self.model / "tokenizer.json"))
        self.assertEqual(self.call(self.text(self.line)).returncode, 0)
        self.tokenizer.no_truncation()
        self.assertEqual(numpy.load(self.output).tolist(), self.tokenizer.encode(self.line).ids)

    def test_text_that_is_not_utf8_is_refused_with_the_place(self):
        for at in (5, 65_535, 200_001):
            content = b"a" * at + b"\xff" + b"b" * 10
            self.assert_refused(self.call(self.text(content)), f"not UTF-8 at byte {at}:", "iconv")
        self.assert_refused(self.call(self.text("aé".encode()[:-1])), "not UTF-8 at byte 1:")
        self.assert_refused(self.call(self.text("aé".encode("utf-16"))), "not UTF-8 at byte 0:",
                            "iconv -f utf-16 -t utf-8")

    def test_what_cannot_be_read_or_used_is_refused(self):
        text = self.text(self.line)
        self.assert_refused(self.call(self.folder / "none.txt"), "none.txt: no such file")
        self.assert_refused(self.call(self.folder), f"{self.folder}: it is no regular file")
        self.assert_refused(self.call(text, tokenizer=self.folder / "none"), "no tokenizer at")
        self.assert_refused(self.call(self.text("")), "the text is empty")
        self.assert_refused(self.call(text, more=["--separator", "<eos>"]), "no token '<eos>'")
        self.assert_refused(self.call(text, output=self.folder / "tokens.bin"), "end with .npy")
        (self.model / "tokenizer.json").write_text("{}")
        self.assert_refused(self.call(text), "is no tokenizer")

    def test_a_tokenizer_where_nobody_may_look_is_refused_by_its_path(self):
        hidden = self.folder / "locked/model"
        hidden.mkdir(parents=True)
        hidden.parent.chmod(0)
        self.addCleanup(hidden.parent.chmod, 0o700)
        if os.geteuid() == 0:  # The superuser may look everywhere.
            os.seteuid(65534)
            self.addCleanup(os.seteuid, 0)
        for load in (load_tokenizer, lambda name: load_model_tokenizer(name, "--messages")):
            with self.assertRaisesRegex(DataError, f"^{re.escape(str(hidden))}: Permission denied$"):
                load(str(hidden))

    def test_an_output_that_cannot_be_written_is_refused_by_its_name(self):
        result = self.call(self.text(self.line), output=self.folder / "no/such/tokens.npy")
        self.assert_refused(result, "no/such/tokens.npy: No such file or directory")

    def test_a_full_disk_leaves_the_old_output_as_it_was(self):
        text = self.text(self.line * 10_000)
        self.assert_refused(self.call(text, file_limit_bytes=10_000), "File too large")
        self.assertEqual(self.call(self.text("old\n", "old.txt")).returncode, 0)
        before = self.output.read_bytes()
        self.assertEqual(self.call(text, file_limit_bytes=10_000).returncode, 1)
        self.assertEqual(self.output.read_bytes(), before)
        self.assertEqual([p.name for p in self.folder.iterdir() if ".tmp" in p.name], [])


if __name__ == "__main__":
    unittest.main()
