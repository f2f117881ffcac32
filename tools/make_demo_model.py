#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes what tools/demo trains when it is given nothing: text, a tokenizer, a checkpoint.

  make_demo_model.py --packages .venv/lib/python3.X/site-packages --output build/demo

corpus.txt   Python sources of the packages, in an order that only their names decide
model/       a Hugging Face directory: GPT-2 of about 30 M parameters with random weights, and a
             byte-level BPE tokenizer of 8,192 tokens trained on corpus.txt
What is complete is left alone; a step that was cut short is done again.
"""
import argparse
import hashlib
import os
import pathlib
import shutil
import sys

CORPUS_BYTES = 8 * 2**20
LARGEST_FILE_BYTES = 128 * 1024  # Generated tables say little.
END_OF_TEXT = "<|endoftext|>"
# 8 blocks of 512: 25.2 M, tokens 4.2 M, positions 0.1 M.
SHAPE = {"n_positions": 256, "n_embd": 512, "n_layer": 8, "n_head": 8}
VOCABULARY = 8192


def make_corpus(packages, output, corpus_bytes=CORPUS_BYTES):
    """Writes sources until the size is reached. The order is that of the hashes of their paths: the
    same on each machine with these packages, and a mixture of all of them."""
    sources = [path.relative_to(packages) for path in packages.rglob("*.py")]
    if not sources:
        sys.exit(f"make_demo_model: no Python sources in {packages}: run tools/check or tools/demo, "
                 "which make .venv")
    sources.sort(key=lambda path: hashlib.sha256(path.as_posix().encode()).digest())
    temporary = output.with_suffix(".tmp")
    written = 0
    with open(temporary, "wb") as file:
        for path in sources:
            data = (packages / path).read_bytes()
            if not data.strip() or len(data) > LARGEST_FILE_BYTES or b"\r" in data:
                continue
            try:
                data.decode("utf-8")
            except UnicodeDecodeError:
                continue
            file.write(data if data.endswith(b"\n") else data + b"\n")
            written += len(data)
            if written >= corpus_bytes:
                break
    os.replace(temporary, output)
    return written


def train_tokenizer(corpus, vocabulary=VOCABULARY):
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=[END_OF_TEXT],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=sys.stderr.isatty())
    tokenizer.train([str(corpus)], trainer)
    return tokenizer


def make_model(tokenizer, output, shape=None, vocabulary=VOCABULARY, seed=1):
    """Writes the Hugging Face directory, tokenizer included, under a temporary name first."""
    import torch
    import transformers
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(seed)
    # No dropout: with two hundred steps there is nothing to regularise.
    config = transformers.GPT2Config(vocab_size=vocabulary, bos_token_id=0, eos_token_id=0,
                                     resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                                     **(shape or SHAPE))
    model = transformers.GPT2LMHeadModel(config)
    temporary = output.with_name(output.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    model.save_pretrained(temporary)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END_OF_TEXT,
                                                eos_token=END_OF_TEXT, unk_token=END_OF_TEXT)
    fast.save_pretrained(temporary)
    shutil.rmtree(output, ignore_errors=True)
    os.replace(temporary, output)
    return model.num_parameters()


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", required=True, type=pathlib.Path)
    parser.add_argument("--output", required=True, type=pathlib.Path)
    parser.add_argument("--corpus-bytes", type=int, default=CORPUS_BYTES)
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    corpus = options.output / "corpus.txt"
    model = options.output / "model"
    if not corpus.exists():
        written = make_corpus(options.packages, corpus, options.corpus_bytes)
        print(f"corpus: {written / 2**20:.1f} MiB of Python sources from .venv")
        shutil.rmtree(model, ignore_errors=True)
    if not model.exists():
        print(f"tokenizer: byte-level BPE of {VOCABULARY} tokens, trained on the corpus")
        tokenizer = train_tokenizer(corpus)
        num_parameters = make_model(tokenizer, model)
        print(f"model: GPT-2 shape, {num_parameters / 1e6:.1f} M parameters, random weights")


if __name__ == "__main__":
    main(sys.argv[1:])
