#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures gemini-train beside transformers on a model of one family: the work of `gemini-bench families`.

    families.py FAMILY QUESTION... --train build/bin/gemini-train [--size tiny]

Both train the same checkpoint, made by transformers with random weights, on the same data: BERT classifies texts and
ViT images, and the others learn the next token of a text. fp32, AdamW, clipping by the norm, no dropout, as many
threads, one process after the other. A sample is one run of each; tools/measure takes
several. Its figure is the median of the last steps of a run: gemini-train follows a plan that was foretold, and then
one that is made with the times of some steps; these come before. Questions share their runs.

  all      transformers' seconds a step by ours; DEVICE has room for all
  quarter  the same; DEVICE holds a quarter of the parameters' bytes and the largest sum of all other data, or
           the floor if that is more, both from two steps without a plan
  link     a step on a link of limited speed, by the slower of computing alone (the run of `all`) and the bytes
           of the step's slower direction by the link's rate; DEVICE as in `quarter`. The rate is such that what
           a run on about such a link moves takes as long as computing.

Prints one line of JSON, an object: by question, the counters `value`, `baseline` and `checked` of tools/measure, and
further figures, or an `error`; or an `error` for all. `checked` is 1 if the loss fell, the losses of all steps agree
within LOSS_BOUND, DEVICE's budget was held, and a model for which DEVICE has no room was moved. Peaks of memory are
those of the whole process, as the kernel counts them: of gemini-train HOST, DEVICE and its own.
"""
import argparse
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass

HERE = pathlib.Path(__file__).resolve().parent
LOSS_BOUND = 1e-4  # Relative.
LEAST_LEARNED = 0.05  # Of the loss, from the first step to the last.
TRAINING = {"lr": 1e-3, "weight_decay": 0.01, "clip": 1.0}
OF_IMAGES = {"lr": 1e-4}  # At the others' rate a ViT's loss rises in its first steps.
# Smallest chunks that there are: the floor is then close to the largest tensor of an operator.
FLOOR_CHUNK = "64KiB"


@dataclass(frozen=True)
class Size:
    """What is trained for how long."""
    configs: dict
    batch: int
    sequence: int
    device_of_all: str
    images: int = 0  # In a batch, in place of sequences.
    chunk_size: str = "auto"
    most_threads: int = 1024
    warm_up: int = 4
    their_warm_up: int = 4
    measured: int = 3


LLAMA = dict(hidden_size=768, intermediate_size=2048, num_hidden_layers=14, num_attention_heads=12,
             num_key_value_heads=4)
SIZES = {
    # 98 to 102 M parameters. The vocabulary is smaller than is usual, or else the embedding and the head would
    # be half of the model.
    "full": Size(
        configs={
            "llama": dict(model_type="llama", vocab_size=8192, max_position_embeddings=1024, **LLAMA),
            "qwen3": dict(model_type="qwen3", vocab_size=8192, max_position_embeddings=1024, head_dim=128,
                          **dict(LLAMA, num_attention_heads=6, num_key_value_heads=2)),
            "mixtral": dict(model_type="mixtral", vocab_size=8192, max_position_embeddings=1024, hidden_size=512,
                            intermediate_size=896, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=2,
                            num_local_experts=8, num_experts_per_tok=2, sliding_window=None),
            "gpt2": dict(model_type="gpt2", vocab_size=8192, n_positions=1024, n_embd=768, n_layer=13, n_head=12,
                         resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0),
            "bert": dict(model_type="bert", vocab_size=8192, max_position_embeddings=512, hidden_size=768,
                         intermediate_size=3072, num_hidden_layers=13, num_attention_heads=12, num_labels=8,
                         hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
            "vit": dict(model_type="vit", image_size=224, patch_size=16, hidden_size=768, intermediate_size=3072,
                        num_hidden_layers=14, num_attention_heads=12, num_labels=8),
        },
        batch=4, sequence=512, images=32, device_of_all="8GiB"),
    "tiny": Size(
        configs={
            "llama": dict(model_type="llama", vocab_size=512, max_position_embeddings=64, hidden_size=128,
                          intermediate_size=352, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2),
            "mixtral": dict(model_type="mixtral", vocab_size=512, max_position_embeddings=64, hidden_size=128,
                            intermediate_size=352, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                            num_local_experts=4, sliding_window=None),
            "bert": dict(model_type="bert", vocab_size=512, max_position_embeddings=64, hidden_size=128,
                         intermediate_size=512, num_hidden_layers=4, num_attention_heads=4, num_labels=8,
                         hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
            "vit": dict(model_type="vit", image_size=32, patch_size=8, hidden_size=128, intermediate_size=512,
                        num_hidden_layers=4, num_attention_heads=4, num_labels=8),
        },
        batch=2, sequence=32, images=3, device_of_all="256MiB", chunk_size=FLOOR_CHUNK, most_threads=1, warm_up=6,
        their_warm_up=6, measured=5),
}


class FamiliesError(Exception):
    """A program failed; the text is the whole message."""


@dataclass(frozen=True)
class Run:
    """What one process did."""
    losses: list   # Of each step.
    seconds: list  # Of each step that counts.
    peak_bytes: int
    lines: list = ()  # Of metrics.jsonl, of the steps that count.

    @property
    def step_s(self):
        return statistics.median(self.seconds)

    def median(self, key):
        return statistics.median(line[key] for line in self.lines)

    @property
    def moved_bytes(self):
        """A step's bytes in the direction that has more of them."""
        return max(self.median("fetch_bytes"), self.median("evict_bytes"))


def flags(keys):
    return [part for key, value in keys.items() for part in ("--" + key.replace("_", "-"), value)]


def run(command, threads):
    """Runs a program to its end. Returns what it wrote to stdout, and its peak of memory."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), HF_HUB_OFFLINE="1")
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen([str(part) for part in command], env=environment, stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            errors.seek(0)
            raise FamiliesError(f"{command[0]} ended with {process.returncode}: {errors.read().strip()[-600:]}")
        output.seek(0)
        return output.read(), usage.ru_maxrss * 1024


def loss_difference(ours, theirs):
    """The largest relative difference between losses of the same step. Ours may have fewer steps."""
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))


def is_checked(runs, theirs, moved=()):
    """Whether theirs learned something, all runs of ours learned the same and held their budget, and those of
    `moved` moved the model."""
    return (theirs.losses[-1] < theirs.losses[0] - LEAST_LEARNED and
            all(len(ours.losses) <= len(theirs.losses) for ours in runs) and
            all(abs(a - b) <= LOSS_BOUND * abs(b) for ours in runs for a, b in zip(ours.losses, theirs.losses)) and
            all(line["device_peak_bytes"] <= line["device_budget_bytes"] for ours in runs for line in ours.lines) and
            all(ours.moved_bytes > 0 for ours in moved))


class Family:
    """A family's model in a folder, and both programs to train it. Runs that several questions need are made once."""

    def __init__(self, train, folder, size, config, threads):
        self.program, self.folder, self.size, self.threads = train, folder, size, threads
        self.reads_images = config["model_type"] == "vit"
        self.batch = size.images if self.reads_images else size.batch
        run([sys.executable, HERE / "families_baseline.py", "make", json.dumps(config), folder,
             "--rows", (size.warm_up + size.measured) * self.batch, "--sequence", size.sequence], threads)
        files = sorted((folder / "model").glob("*.safetensors"))
        self.parameter_bytes = sum(tensor_bytes(file) for file in files)

    def training(self, steps):
        """What both programs are told alike."""
        return dict(steps=steps, batch=self.batch, sequence=0 if self.reads_images else self.size.sequence,
                    threads=self.threads, **{**TRAINING, **(OF_IMAGES if self.reads_images else {})})

    @property
    def items(self):
        """Images or tokens of a step."""
        return self.batch if self.reads_images else self.batch * self.size.sequence

    @functools.cached_property
    def theirs(self):
        steps = self.size.their_warm_up + self.size.measured
        output, peak = run([sys.executable, HERE / "families_baseline.py", "train", self.folder,
                            *flags(self.training(steps))], self.threads)
        result = json.loads(output.splitlines()[-1])
        return Run(result["losses"], result["seconds"][self.size.their_warm_up:], peak)

    def ours(self, device_memory, warm_up=None, measured=None, **more):
        warm_up = self.size.warm_up if warm_up is None else warm_up
        steps = warm_up + (measured or self.size.measured)
        [data] = self.folder.glob("data.*")
        keys = dict(self.training(steps), model=self.folder / "model", data=data,
                    output=self.folder / "run", order="sequential", schedule="constant", log_level="warning",
                    device_memory=device_memory, chunk_size=self.size.chunk_size)
        _, peak = run([self.program, "--overwrite", "--no-save", *flags({**keys, **more})], self.threads)
        with open(self.folder / "run" / "metrics.jsonl", encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        if len(lines) != steps:
            raise FamiliesError(f"{self.program} left the metrics of {len(lines)} steps in place of {steps}")
        return Run([line["loss"] for line in lines], [line["seconds"] for line in lines[warm_up:]], peak,
                   lines[warm_up:])

    @functools.cached_property
    def all(self):
        return self.ours(self.size.device_of_all)

    @functools.cached_property
    def quarter(self):
        return self.ours(self.quarter_bytes)

    @functools.cached_property
    def quarter_bytes(self):
        """DEVICE at a quarter. Without a plan, whose fetches pin more than operators do."""
        measured = self.ours(self.size.device_of_all, policy="online", chunk_size=FLOOR_CHUNK, warm_up=0, measured=2)
        floor, peak = (max(line[key] for line in measured.lines)
                       for key in ("pinned_peak_bytes", "non_model_peak_bytes"))
        return max(floor, self.parameter_bytes // 4 + peak)


def tensor_bytes(path):
    """Bytes of the tensors in a safetensors file: what lies behind its header."""
    with open(path, "rb") as file:
        return os.path.getsize(path) - 8 - int.from_bytes(file.read(8), "little")


def figures_of(ours, prefix):
    """What tools/measure prints of a run of ours."""
    figures = {f"{prefix}_s": ours.step_s, f"{prefix}_s_min": min(ours.seconds), f"{prefix}_s_max": max(ours.seconds),
               f"{prefix}_peak_bytes": ours.peak_bytes, f"{prefix}_first_loss": ours.losses[0],
               f"{prefix}_last_loss": ours.losses[-1]}
    if ours.lines:
        figures[f"{prefix}_device_peak_bytes"] = max(line["device_peak_bytes"] for line in ours.lines)
        figures[f"{prefix}_planned_rounds"] = sum(line["planned_rounds"] for line in ours.lines)
        for key in ("fetch_bytes", "evict_bytes", "stall_seconds"):
            figures[f"{prefix}_{key}"] = ours.median(key)
        for cause in ours.lines[0]["stall_seconds_by_cause"]:
            figures[f"{prefix}_stall_{cause}_s"] = statistics.median(
                line["stall_seconds_by_cause"][cause] for line in ours.lines)
    return figures


def throughput(family, ours, is_moved):
    """`all` and `quarter`."""
    theirs = family.theirs
    return {"value": theirs.step_s / ours.step_s, "baseline": family.items / theirs.step_s,
            "checked": int(is_checked([ours], theirs, [ours] if is_moved else ())),
            "items_per_second": family.items / ours.step_s,
            "loss_difference": loss_difference(ours.losses, theirs.losses),
            **figures_of(ours, "ours"), **figures_of(theirs, "theirs")}


def rate_text(bytes_per_second):
    return f"{round(bytes_per_second)}B/s"


def over_bound(step_s, compute_s, moved_bytes, rate):
    """A step by the slower of computing alone and moving; and that."""
    bound_s = max(compute_s, moved_bytes / rate)
    return step_s / bound_s, bound_s


def link(family):
    compute_s = family.all.step_s
    # A plan moves less where the link is slow: the rate follows from what one of about that rate makes of it.
    near = family.ours(family.quarter_bytes, device_bandwidth=rate_text(family.parameter_bytes / compute_s), measured=1)
    if near.moved_bytes == 0:
        raise FamiliesError(f"nothing moves with {family.quarter_bytes} bytes of DEVICE: there is no link to set")
    rate = near.moved_bytes / compute_s
    limited = family.ours(family.quarter_bytes, device_bandwidth=rate_text(rate))
    theirs = family.theirs
    value, bound_s = over_bound(limited.step_s, compute_s, limited.moved_bytes, rate)
    runs = [family.all, near, limited]
    return {"value": value, "baseline": bound_s, "checked": int(is_checked(runs, theirs, [near, limited])),
            "compute_s": compute_s, "transfer_s": limited.moved_bytes / rate, "bandwidth_bytes_per_second": rate,
            "loss_difference": max(loss_difference(ours.losses, theirs.losses) for ours in runs),
            **figures_of(limited, "ours"), **figures_of(theirs, "theirs")}


# In the order in which they are measured: what is compared stands side by side.
QUESTIONS = {
    "quarter": lambda family: {"device_bytes": family.quarter_bytes,
                               **throughput(family, family.quarter, is_moved=True)},
    "all": lambda family: throughput(family, family.all, is_moved=False),
    "link": lambda family: {"device_bytes": family.quarter_bytes, **link(family)},
}


def measure(family, questions):
    """Figures by question, or {"error": text}: one that fails leaves the others their runs."""
    shared = {"num_threads": family.threads, "parameter_bytes": family.parameter_bytes}
    figures = {}
    for question, answer in QUESTIONS.items():
        if question in questions:
            try:
                figures[question] = {**answer(family), **shared}
            except FamiliesError as error:
                figures[question] = {"error": str(error)}
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("family", choices=SIZES["full"].configs)
    parser.add_argument("questions", choices=QUESTIONS, nargs="+", metavar="question")
    parser.add_argument("--train", type=pathlib.Path, required=True, help="the program gemini-train")
    parser.add_argument("--size", choices=SIZES, default=os.environ.get("GEMINI_BENCH_SIZE", "full"),
                        help="tiny: for a test of this program; GEMINI_BENCH_SIZE is its default")
    arguments = parser.parse_args()
    size = SIZES[arguments.size]
    threads = min(len(os.sched_getaffinity(0)), size.most_threads)
    try:
        if not os.access(arguments.train, os.X_OK):
            raise FamiliesError(f"{arguments.train} is not built: run tools/check first")
        if arguments.family not in size.configs:
            raise FamiliesError(f"there is no {arguments.family} of size {arguments.size}")
        # Beside the programs and not in /tmp, which may be memory.
        with tempfile.TemporaryDirectory(prefix="families-", dir=arguments.train.resolve().parent.parent) as folder:
            family = Family(arguments.train.resolve(), pathlib.Path(folder), size,
                            size.configs[arguments.family], threads)
            print(json.dumps(measure(family, arguments.questions)))
        return 0
    except (FamiliesError, OSError, ValueError) as error:
        print(json.dumps({"error": str(error)}))
        return 1


if __name__ == "__main__":
    sys.exit(main())
