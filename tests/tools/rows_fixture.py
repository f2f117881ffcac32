# SPDX-License-Identifier: Apache-2.0
"""What tests of tools/prepare_data.py share that make rows: tokenizers of words, and a test case
that calls the program."""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
import zlib

import safetensors
import tokenizers
from tokenizers import models, pre_tokenizers, processors

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
sys.modules["torch"] = None  # As the program does it: transformers then starts at once.
import prepare_data


def word_tokenizer():
    """A tokenizer by which a text has one token a word, so that tests can choose lengths."""
    words = [f"w{i}" for i in range(60)]
    vocabulary = {word: number for number, word in enumerate(["<unk>", "</s>", *words])}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


def pair_tokenizer():
    """A tokenizer of words that puts special tokens around texts and pairs, as BERT's does it."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(60))]
    tokenizer = tokenizers.Tokenizer(models.WordLevel(
        {word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(words[:5])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return tokenizer


def vocabulary_crc32(tokenizer):
    """What docs/data.md says of the key of this name."""
    tokens = sorted(tokenizer.get_vocab(with_added_tokens=False).items(), key=lambda item: item[1])
    return f"{zlib.crc32(''.join(f'{number} {token}' + chr(10) for token, number in tokens).encode()):08x}"


PAIR_TOKENS = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]",
               "unk_token": "[UNK]", "mask_token": "[MASK]",
               "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}


class PrepareRowsTest(unittest.TestCase):
    source = "--messages"  # The option that names the input.

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name) / "a b"  # A path with a space in it.
        self.folder.mkdir()
        self.output = self.folder / "rows.safetensors"
        self.said = ""

    def model(self, tokenizer, template=None, **tokens):
        """Writes a tokenizer's folder as the Hub has them, and remembers its tokenizer."""
        self.tokenizer = tokenizer
        folder = self.folder / "model"
        folder.mkdir(exist_ok=True)
        tokenizer.save(str(folder / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **tokens}
        if template is not None:
            config["chat_template"] = template
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return folder

    def file(self, *lines, name="a.jsonl"):
        """Writes lines: bytes as they are, other objects as JSON."""
        path = self.folder / name
        path.write_bytes(b"".join(
            line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"
            for line in lines))
        return path

    def call(self, *files, more=(), sequence=512, output=None, tokenizer=None):
        """Prepares rows of files. Returns as call_main does."""
        return self.call_main("--tokenizer", tokenizer or self.folder / "model", self.source,
                              *files, "--sequence", sequence, "--output", output or self.output,
                              *more)

    def call_main(self, *arguments):
        """Runs the program's main. Returns None, or what it exits with."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                prepare_data.main(list(map(str, arguments)))
                return None
            except SystemExit as exit_:
                return exit_.code if isinstance(exit_.code, str) else err.getvalue()
            finally:
                self.said = out.getvalue()

    def prepare(self, *lines, more=(), sequence=512):
        """Prepares the lines. Returns the file's tensors and metadata."""
        self.assertIsNone(self.call(self.file(*lines), more=more, sequence=sequence))
        return self.written()

    def written(self):
        """Returns the tensors and the metadata of the output."""
        with safetensors.safe_open(self.output, "numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()

    def assert_refused(self, said, *parts):
        self.assertIsNotNone(said)
        for part in parts:
            self.assertIn(str(part), said)
        self.assertEqual([path.name for path in self.folder.iterdir() if "rows" in path.name], [])
