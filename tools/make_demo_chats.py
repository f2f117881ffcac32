#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes what tools/demo --messages trains: chats, a tokenizer with a chat template, a checkpoint.

  make_demo_chats.py --docs docs --output build/demo/chats
  make_demo_chats.py --messages chats.jsonl --output build/demo/chats

chats.jsonl  a question for each section of the documents, answered by its first sentence
model/       a Hugging Face directory: Qwen 3 of about 13 M parameters with random weights, the
             template of ChatML, and a byte-level BPE tokenizer of up to 2,048 tokens
With --messages, the chats of that file take the place of chats.jsonl.
"""
import argparse
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from data.conversations import read_conversations
from data.data_error import DataError

CHATS = "chats.jsonl"  # Where those about documents are.
VOCABULARY = 2048
END_OF_TEXT, TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
# 8 blocks of 1.6 M, and tokens of 0.8 M.
SHAPE = {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 8,
         "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 64,
         "max_position_embeddings": 1024}
LONGEST_SENTENCE = 160
MOST_CHATS_READ = 20_000  # A tokenizer learns nothing new from more.


def plain(text):
    """Returns a line of Markdown without its marks."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"[`*]", "", text).strip()


def sections_of(markdown):
    """Yields the heading of each section that begins with a sentence, and that sentence."""
    markdown = re.sub(r"^```.*?^```$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    parts = re.split(r"^#+ (.*)$", markdown, flags=re.MULTILINE)[1:]
    for heading, body in zip(parts[::2], parts[1::2]):
        # Lists, tables and indented programs begin otherwise.
        sentence = re.match(r"\s*\n([A-Z`\[*][^|]*?\.)\s", body)
        if sentence:
            yield plain(heading), plain(" ".join(sentence[1].split()))


def chats_of(documents):
    """Returns prompts and completions about Markdown files, always in the same order."""
    chats = [{"prompt": f"What does {path.name} say of \"{heading}\"?", "completion": sentence}
             for path in sorted(documents)
             for heading, sentence in sections_of(path.read_text(encoding="utf-8"))
             if len(sentence) <= LONGEST_SENTENCE]
    random.Random(1).shuffle(chats)
    return chats


def read_chats(path, count):
    """Returns the messages of a file's first conversations."""
    return [conversation.messages for conversation in itertools.islice(
        read_conversations(path, lambda num_bytes: None), count)]


def train_tokenizer(chats, vocabulary=VOCABULARY):
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, show_progress=False,
                                  special_tokens=[END_OF_TEXT, TURN, END_OF_TURN],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        (f"{message['role']}\n{message.get('content') or ''}"
         for messages in chats for message in messages), trainer)
    return tokenizer


def make_model(tokenizer, output, seed=1):
    """Writes the Hugging Face directory, tokenizer included. Returns its number of parameters."""
    import torch
    import transformers
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(seed)
    ends = {"eos_token_id": tokenizer.token_to_id(END_OF_TURN),
            "pad_token_id": tokenizer.token_to_id(END_OF_TEXT)}
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(), tie_word_embeddings=True, bos_token_id=None, **ends,
        **SHAPE))
    temporary = output.with_name(output.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    model.save_pretrained(temporary)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_OF_TURN,
                                                pad_token=END_OF_TEXT)
    fast.chat_template = CHATML
    fast.save_pretrained(temporary)
    shutil.rmtree(output, ignore_errors=True)
    os.replace(temporary, output)
    return model.num_parameters()


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--docs", type=pathlib.Path)
    source.add_argument("--messages", type=pathlib.Path)
    parser.add_argument("--output", required=True, type=pathlib.Path)
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.messages
    if path is None:
        path = options.output / CHATS
        # Sections of benchmarks begin with the names of machines.
        chats = chats_of(set(options.docs.glob("*.md")) - {options.docs / "benchmarks.md"})
        path.write_text("".join(json.dumps(chat) + "\n" for chat in chats), encoding="utf-8")
        print(f"chats: {len(chats)} questions about the sections of {options.docs}")
    tokenizer = train_tokenizer(read_chats(path, MOST_CHATS_READ))
    print(f"tokenizer: byte-level BPE of {tokenizer.get_vocab_size()} tokens, trained on the chats")
    num_parameters = make_model(tokenizer, options.output / "model")
    print(f"model: Qwen 3 shape, {num_parameters / 1e6:.1f} M parameters, random weights")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except DataError as error:
        sys.exit(f"make_demo_chats: {error}")
