#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The part of families.py that needs transformers: it makes the model that both programs train, and trains it.

    families_baseline.py make CONFIG FOLDER --rows N --sequence N
        makes FOLDER/model, a checkpoint with transformers' own random weights of the configuration CONFIG (JSON
        with a model_type), and its data: FOLDER/data.npy, a text of so many rows, or for a model that classifies
        FOLDER/data.safetensors, rows or images with labels
    families_baseline.py train FOLDER --steps N --batch N --sequence N --threads N --lr X --weight-decay X --clip X
        trains that in fp32 as a user of transformers would without a compiler: attention by sdpa,
        AdamW(fused=True), clipping by the norm (which is exact: see exact_norm), no cache of keys and values. Prints
        a line of JSON: the loss and the seconds of each step.
"""
import argparse
import contextlib
import itertools
import json
import math
import pathlib
import time

import numpy
import safetensors.numpy
import torch
import transformers


def make_tokens(count):
    """A noisy walk over a small part of the vocabulary, so that there is something to learn in a few steps."""
    random = numpy.random.default_rng(2)
    steps = random.integers(1, 4, count)
    jumps = random.random(count) < 0.05
    steps[jumps] = random.integers(0, 256, int(jumps.sum()))
    return (numpy.cumsum(steps) % 256 + 8).astype(numpy.uint16)  # Never a special token.


def make_labels(count, num_labels):
    """Of every eight rows seven have the same label, so that there is something to learn in a few steps."""
    return numpy.where(numpy.arange(count) % 8 < 7, 1, numpy.arange(count) % num_labels).astype(numpy.int32)


def save_rows(path, arrays, **metadata):
    rows = len(arrays["labels"])
    safetensors.numpy.save_file(arrays, path, {
        "gemini.format": "1", "rows": str(rows), "problem_type": "single_label_classification", "names": "",
        **{key: str(value) for key, value in metadata.items()}})


def save_data(config, folder, rows, sequence):
    labels = make_labels(rows, config.num_labels)
    if config.model_type == "vit":
        sizes = (config.num_channels, config.image_size, config.image_size)
        pixels = numpy.random.default_rng(2).integers(0, 256, (rows, *sizes), dtype=numpy.uint8)
        each = json.dumps([0.5] * config.num_channels)
        save_rows(folder / "data.safetensors", {"labels": labels, "pixels": pixels}, task="image-classification",
                  num_labels=config.num_labels, rescale=1 / 255, mean=each, std=each)
    elif config.model_type == "bert":
        tokens = make_tokens(rows * sequence).astype(numpy.int32).reshape(rows, sequence)
        save_rows(folder / "data.safetensors", {"labels": labels, "tokens": tokens,
                                                "documents": numpy.ones_like(tokens)},
                  task="sequence-classification", num_labels=config.num_labels, layout="pad", sequence=sequence)
    else:
        numpy.save(folder / "data.npy", make_tokens(rows * sequence))


def model_class(model_type):
    return {"bert": transformers.AutoModelForSequenceClassification,
            "vit": transformers.AutoModelForImageClassification}.get(model_type, transformers.AutoModelForCausalLM)


def batches(model_type, folder, batch, sequence):
    """Yields what the model is called with, batch after batch."""
    if model_type not in ("bert", "vit"):
        tokens = torch.from_numpy(numpy.load(folder / "data.npy").astype(numpy.int64)).view(-1, sequence)
        for rows in tokens.split(batch):
            yield {"input_ids": rows, "labels": rows, "use_cache": False}
        return
    arrays = {name: torch.from_numpy(array)
              for name, array in safetensors.numpy.load_file(folder / "data.safetensors").items()}
    for first in range(0, len(arrays["labels"]), batch):
        rows = {name: array[first:first + batch] for name, array in arrays.items()}
        yield {"labels": rows["labels"].long(),
               **({"pixel_values": (rows["pixels"] / 255 - 0.5) / 0.5} if model_type == "vit"
                  else {"input_ids": rows["tokens"].long()})}


def make(arguments):
    config = transformers.AutoConfig.for_model(**json.loads(arguments.config))
    torch.manual_seed(1)
    model = model_class(config.model_type).from_config(config, dtype=torch.float32)
    model.save_pretrained(arguments.folder / "model")
    save_data(config, arguments.folder, arguments.rows, arguments.sequence)


class Clock:
    """Seconds since it was made, less those in which it was stopped."""

    def __init__(self):
        self.start = time.perf_counter()

    @contextlib.contextmanager
    def stopped(self):
        began = time.perf_counter()
        yield
        self.start += time.perf_counter() - began

    def seconds(self):
        return time.perf_counter() - self.start


# Torch adds the squares of a tensor's elements in fp32: norms of some ten million elements come out up to 2e-3 too
# small or large, and by that the losses after some steps differ by 2e-4 from those of fp64. gemini-train adds in
# fp64. So that losses can be compared, what Torch scaled is scaled to the exact norm, out of the time that counts.
def exact_norm(parameters):
    return math.hypot(*(torch.linalg.vector_norm(p.grad, dtype=torch.float64).item() for p in parameters))


def correct_clipping(parameters, most, exact, norm):
    factor = min(most / (exact + 1e-6), 1.0) / min(most / (norm + 1e-6), 1.0)
    for parameter in parameters:
        parameter.grad.mul_(factor)


def train(arguments):
    torch.set_num_threads(arguments.threads)
    model_type = transformers.AutoConfig.from_pretrained(arguments.folder / "model").model_type
    model = model_class(model_type).from_pretrained(arguments.folder / "model", dtype=torch.float32,
                                                    attn_implementation="sdpa")
    model.train()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": arguments.weight_decay},
         {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}],
        lr=arguments.lr, fused=True)
    losses, seconds = [], []
    data = batches(model_type, arguments.folder, arguments.batch, arguments.sequence)
    for batch in itertools.islice(data, arguments.steps):
        clock = Clock()
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        with clock.stopped():
            exact = exact_norm(parameters)
        norm = torch.nn.utils.clip_grad_norm_(parameters, arguments.clip)
        with clock.stopped():
            correct_clipping(parameters, arguments.clip, exact, norm.item())
        optimizer.step()
        losses.append(loss.item())
        seconds.append(clock.seconds())
    print(json.dumps({"losses": losses, "seconds": seconds}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(required=True)
    maker = commands.add_parser("make")
    maker.set_defaults(run=make)
    maker.add_argument("config")
    maker.add_argument("folder", type=pathlib.Path)
    maker.add_argument("--rows", type=int, required=True)
    maker.add_argument("--sequence", type=int, required=True)
    trainer = commands.add_parser("train")
    trainer.set_defaults(run=train)
    trainer.add_argument("folder", type=pathlib.Path)
    for name in ("steps", "batch", "sequence", "threads"):
        trainer.add_argument(f"--{name}", type=int, required=True)
    for name in ("lr", "weight-decay", "clip"):
        trainer.add_argument(f"--{name}", type=float, required=True)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
