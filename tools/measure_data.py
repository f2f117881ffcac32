#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures tools/prepare_data.py --messages beside its tokenizer alone.

  tools/measure_data.py [--megabytes N] [--runs N] [--report FILE]

Of the documentation of this project it makes conversations of some 0.3 KB each, N megabytes of JSON lines (default
100), and a byte-level tokenizer of 16,000 tokens, to which it gives the chat template of one family after the other:
those of tests/tools/chat_fixture.py. Two programs run in turns, each --runs times (default 3): prepare_data.py, which
writes rows of 1,024 tokens, and this script with nothing to do but to encode the same conversations, which it rendered
before, in batches as large. Figures, with their goals from tools/bench/goals.json, of the family that is worst:
  data_prepare_rate         tokens a second of prepare_data.py by those of the tokenizer alone, from the start of a
                            process to its end; medians
  data_prepare_processor    the same by seconds of processor time
  data_prepare_memory       MB: the largest peak of prepare_data.py
Prints them, writes build/measure_data.json (--report), and exits with 1 when a goal is missed, or when both programs
did not make the same number of tokens.
"""
import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "tools"))
SEQUENCE = 1024
VOCABULARY = 16000
PASSAGE = 120  # Characters of a message, of which a conversation has two.


@dataclass(frozen=True)
class Work:
    """What one process did."""
    tokens: int
    seconds: float
    processor_seconds: float
    peak_bytes: int


def run(command):
    """Runs a program to its end. Returns what it wrote to stdout, and the rest of its Work."""
    begin = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise RuntimeError(f"{command} ended with {process.returncode}")
        output.seek(0)
        return output.read(), dict(seconds=seconds, processor_seconds=usage.ru_utime + usage.ru_stime,
                                   peak_bytes=usage.ru_maxrss * 1024)


def passages():
    """Yields pieces of the documentation, for ever."""
    text = "\n".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
    for at in itertools.cycle(range(0, len(text) - PASSAGE, PASSAGE)):
        yield text[at:at + PASSAGE].strip() or "."


def write_chats(path, num_bytes):
    source = passages()
    with open(path, "w", encoding="utf-8") as file:
        while file.tell() < num_bytes:
            file.write(json.dumps({"messages": [{"role": "user", "content": next(source)},
                                                {"role": "assistant", "content": next(source)}]}) + "\n")


def save_tokenizer(folder, family):
    import tokenizers
    from chat_fixture import SPECIAL_TOKENS
    from tokenizers import decoders, models, pre_tokenizers, trainers
    made = folder.parent / "tokenizer.json"
    if not made.exists():
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.train([str(path) for path in sorted((ROOT / "docs").glob("*.md"))], trainers.BpeTrainer(
            vocab_size=VOCABULARY, special_tokens=SPECIAL_TOKENS, show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        tokenizer.save(str(made))
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(made.read_bytes())
    tokens = {"eos_token": family.eos, **({"bos_token": family.bos} if family.bos else {})}
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": family.template, **tokens}))
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": VOCABULARY}))


def render(model, chats, path):
    """Writes what the template makes of the conversations, as JSON lines."""
    import transformers
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    with open(chats, encoding="utf-8") as lines, open(path, "w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=False)) + "\n")


def encode(model, path):
    """What the baseline does: prints the number of tokens."""
    import tokenizers
    sys.path.insert(0, str(ROOT / "tools"))
    from data.encoded_batches import BATCH_BYTES
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    num_tokens, batch, num_bytes = 0, [], 0
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            batch.append(json.loads(line))
            num_bytes += len(line)
            if num_bytes >= BATCH_BYTES:
                num_tokens += sum(map(len, tokenizer.encode_batch(batch, add_special_tokens=False)))
                batch, num_bytes = [], 0
    print(num_tokens + sum(map(len, tokenizer.encode_batch(batch, add_special_tokens=False))))


def prepared(model, chats, output):
    import safetensors
    _, work = run([sys.executable, ROOT / "tools" / "prepare_data.py", "--tokenizer", model, "--messages", chats,
                   "--sequence", SEQUENCE, "--pack", "--output", output])
    num_tokens = 0
    with safetensors.safe_open(output, "numpy") as file:
        documents = file.get_slice("documents")
        num_rows = documents.get_shape()[0]
        for first in range(0, num_rows, 4096):
            num_tokens += int((documents[first:min(first + 4096, num_rows)] != 0).sum())
    return Work(num_tokens, **work)


def encoded(model, texts):
    said, work = run([sys.executable, __file__, "--encode", model, texts])
    return Work(int(said), **work)


def measure(folder, name, family, chats, runs):
    """The figures of a family."""
    model, texts = folder / name, folder / "texts.jsonl"
    save_tokenizer(model, family)
    render(model, chats, texts)
    pairs = [(prepared(model, chats, folder / "rows.safetensors"), encoded(model, texts)) for _ in range(runs)]
    ours, theirs = zip(*pairs)
    median = lambda works, key: statistics.median(getattr(work, key) for work in works)
    return {"rate": median(theirs, "seconds") / median(ours, "seconds"),
            "processor": median(theirs, "processor_seconds") / median(ours, "processor_seconds"),
            "memory": max(work.peak_bytes for work in ours) / 1e6,
            "tokens": ours[0].tokens, "tokens_per_second": ours[0].tokens / median(ours, "seconds"),
            "same_tokens": len({work.tokens for work in ours + theirs}) == 1}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--report", type=pathlib.Path, default=ROOT / "build" / "measure_data.json")
    parser.add_argument("--encode", type=pathlib.Path, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.encode:
        encode(*arguments.encode)
        return 0
    from chat_fixture import FAMILIES  # By it transformers starts without Torch.
    figures = {}
    with tempfile.TemporaryDirectory(prefix="measure-data-", dir=arguments.report.resolve().parent) as folder:
        folder = pathlib.Path(folder)
        write_chats(folder / "chats.jsonl", arguments.megabytes * 1e6)
        for name, family in FAMILIES.items():
            figures[name] = measure(folder, name, family, folder / "chats.jsonl", arguments.runs)
            print(f"{name}: " + ", ".join(f"{key} {value:.3g}" for key, value in figures[name].items()), flush=True)
    goals = json.loads((ROOT / "tools" / "bench" / "goals.json").read_text())
    same = all(of_family["same_tokens"] for of_family in figures.values())
    met = same
    for key, worst in (("rate", min), ("processor", min), ("memory", max)):
        value = worst(of_family[key] for of_family in figures.values())
        goal = goals[f"data_prepare_{key}"]["goal"]
        kept = value >= float(goal[3:]) if goal.startswith(">=") else value <= float(goal[3:])
        met = met and kept
        print(f"data_prepare_{key} {value:.3g}, goal {goal}, {'met' if kept else 'MISSED'}")
    if not same:
        print("both programs did not make the same number of tokens")
    arguments.report.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
