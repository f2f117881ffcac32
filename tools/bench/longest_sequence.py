#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds the longest sequence that trains in a DEVICE budget: the work of `gemini-bench longest-sequence`.

    gemini-bench longest-sequence --device-memory 64MiB [--modes none,megatron]

gemini-train makes two steps of one sequence with a small Llama of random weights, on one rank and on several that share
the sequence, each with the whole budget. A length that is refused for want of DEVICE is too long; they are doubled until
one is, and then bisected. What is found is at most 1/32 below the longest, or 64 tokens.

Prints a table, a mode a line, and then the same as one line of JSON. Any other failure ends all.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

from rank_runs import BenchError, failure, launch, make_model

# Each mode's ranks, and what gemini-train is told. The first one is what the others are compared to.
MODES = {
    "none": (1, []),
    "1d": (4, ["--tensor", "1d"]),
    "megatron": (4, ["--tensor", "1d", "--sequence-parallel", "megatron"]),
    "ulysses": (4, ["--sequence-parallel", "ulysses"]),
    "ring": (4, ["--sequence-parallel", "ring"]),
}
UNIT = 64  # Of lengths: four ranks of a zigzag ring need a multiple of 8.
RESOLUTION = 32
MOST = 1 << 20  # Tokens; the positions of the model, and gemini-train takes no more.
# Its parameters need 0.6 MB: nearly all of DEVICE is for what grows with the sequence. Four ranks divide its heads.
MODEL = dict(model_type="llama", vocab_size=512, max_position_embeddings=MOST, hidden_size=64, intermediate_size=176,
             num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=8)
TOO_SMALL = re.compile(r"DEVICE is .* too small")


def longest(trains, most=MOST):
    """The longest length of which trains(length) is true, as exactly as the docstring above says; 0: none is."""
    low, high = 0, UNIT
    while trains(high):
        low, high = high, 2 * high
        if high > most:
            raise BenchError(f"{low} tokens still train, and {most} are the most: take less --device-memory")
    while high - low > max(UNIT, low // RESOLUTION):
        middle = (low + high) // 2  # A multiple of UNIT, for between them is one by a power of two.
        low, high = (middle, high) if trains(middle) else (low, middle)
    return low


class Search:
    """Runs of one model in a folder, which differ by mode and length."""

    def __init__(self, train, mpirun, folder, device_memory):
        self.train, self.mpirun, self.folder, self.device_memory = train, mpirun, folder, device_memory
        make_model(MODEL, folder, rows=1, sequence=MOST)

    def trains(self, mode, sequence):
        num_ranks, flags = MODES[mode]
        done = launch(self.mpirun, num_ranks, [
            self.train, "--model", self.folder / "model", "--data", self.folder / "data.npy",
            "--output", self.folder / "run", "--overwrite", "--no-save", "--steps", "2", "--batch", "1",
            "--sequence", sequence, "--threads", "1", "--log-level", "warning",
            "--device-memory", self.device_memory, *flags])
        # One rank refuses what it foretells with 1, several what one of them meets with 75.
        if done.returncode in (1, 75) and TOO_SMALL.search(done.stderr):
            return False
        if done.returncode != 0:
            raise BenchError(f"{mode}, {sequence} tokens: {failure(done, 'gemini-train')}")
        return True


def main():
    parser = argparse.ArgumentParser(prog="gemini-bench longest-sequence", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device-memory", required=True, metavar="SIZE", help="DEVICE of each rank, as 64MiB")
    parser.add_argument("--modes", default=",".join(MODES), help="%(default)s")
    parser.add_argument("--train", type=pathlib.Path, required=True, help="the program gemini-train")
    parser.add_argument("--mpirun", default="mpirun", help="the program that starts ranks")
    arguments = parser.parse_args()
    modes = arguments.modes.split(",")
    if unknown := [mode for mode in modes if mode not in MODES]:
        parser.error(f"--modes: there is no {', '.join(unknown)}, only {', '.join(MODES)}")
    found = {}
    try:
        # Beside the programs and not in /tmp, which may be memory.
        with tempfile.TemporaryDirectory(prefix="longest-", dir=arguments.train.resolve().parent.parent) as folder:
            search = Search(arguments.train.resolve(), arguments.mpirun, pathlib.Path(folder), arguments.device_memory)
            print(f"The longest sequence that trains with {arguments.device_memory} of DEVICE a rank\n"
                  f"{'mode':<10}{'ranks':>6}{'tokens':>10}{'by one rank':>13}", flush=True)
            for mode in modes:
                found[mode] = longest(lambda sequence, mode=mode: search.trains(mode, sequence))
                by_one = f"{found[mode] / found['none']:.2f}" if found.get("none") else "-"
                print(f"{mode:<10}{MODES[mode][0]:>6}{found[mode]:>10}{by_one:>13}", flush=True)
    except (BenchError, OSError, subprocess.TimeoutExpired) as error:
        print(f"gemini-bench longest-sequence: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"device_memory": arguments.device_memory, "longest_sequence": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
