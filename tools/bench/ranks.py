#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what ranks on this machine achieve, and how well that foretells their steps: `gemini-bench ranks`.

    gemini-bench ranks --measure FILE [--ranks 2,4,8]
        writes FILE, which `memstat plan --ranks N --measured FILE` takes: what each of so many ranks computes and
        exchanges a second while all of them do, with one thread each
    gemini-bench ranks --forecast FILE [--size tiny]
        trains two models in many meshes of 2 to 8 ranks, and prints a table: what memstat foretells of a step by
        FILE beside what was measured. It ends with the same as one line of JSON

The time of a step is the median of those behind the first ones. Bytes are those that the first rank sent in a step,
by kind of exchange. HOST and the peak of DEVICE are those of the ranks that have most.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from rank_runs import BenchError, failure, launch, make_model


@dataclass(frozen=True)
class Mesh:
    """A number of ranks, and the keys by which they share the work."""
    ranks: int
    keys: tuple
    accumulate: int = 1

    def __str__(self):
        return " ".join([str(self.ranks), *(key.removeprefix("--") for key in self.keys),
                         *([f"x {self.accumulate}"] if self.accumulate > 1 else [])])


def mesh(ranks, keys, accumulate=1):
    return Mesh(ranks, tuple(keys.split()), accumulate)


MIB = 1 << 20
# What gemini-train's summary says of the ranks that have most.
NEEDS = re.compile(r"^Most a rank .*\((\d+) bytes\), HOST .*\((\d+) bytes\)$", re.MULTILINE)

MESHES = (
    mesh(2, "--zero 3"), mesh(2, "--zero 1", 2), mesh(2, "--tensor 1d"), mesh(2, "--pipeline 2", 4),
    mesh(2, "--sequence-parallel ulysses"), mesh(2, "--sequence-parallel ring"),
    mesh(4, "--zero 2"), mesh(4, "--tensor 1d"), mesh(4, "--tensor 1d --sequence-parallel megatron"),
    mesh(4, "--tensor 2d"), mesh(4, "--tensor 1d --tensor-size 2 --zero 3"), mesh(4, "--pipeline 2", 4),
    mesh(8, "--zero 3"), mesh(8, "--pipeline 2 --tensor 1d --tensor-size 2", 4),
)


@dataclass(frozen=True)
class Size:
    """What is trained for how long."""
    configs: dict
    meshes: tuple
    sequence: int
    batch: int = 2
    warm_up: int = 3
    measured: int = 5
    device_memory: str = "2GiB"


SIZES = {
    # Two shapes: wide and shallow, and narrow and deep with grouped heads.
    "full": Size(
        configs={
            "gpt2": dict(model_type="gpt2", vocab_size=4096, n_positions=512, n_embd=512, n_layer=4, n_head=8,
                         resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0),
            "llama": dict(model_type="llama", vocab_size=2048, max_position_embeddings=512, hidden_size=256,
                          intermediate_size=704, num_hidden_layers=12, num_attention_heads=8, num_key_value_heads=8),
        },
        meshes=MESHES, sequence=512),
    "tiny": Size(
        configs={"llama": dict(model_type="llama", vocab_size=512, max_position_embeddings=64, hidden_size=64,
                               intermediate_size=176, num_hidden_layers=2, num_attention_heads=4,
                               num_key_value_heads=4)},
        meshes=(mesh(2, "--zero 3"), mesh(2, "--pipeline 2", 2)), sequence=64, warm_up=2, measured=3,
        device_memory="64MiB"),
}


class Bench:
    """The programs, and a folder for what they leave."""

    def __init__(self, train, mpirun, folder):
        self.train, self.mpirun, self.folder = train, mpirun, folder
        self.memstat, self.bench = train.parent / "memstat", train.parent / "gemini-bench"

    def rates(self, num_ranks):
        """The line of so many ranks."""
        done = launch(self.mpirun, num_ranks, [self.bench, "rank-rates"])
        if done.returncode != 0:
            raise BenchError(failure(done, "gemini-bench rank-rates"))
        return done.stdout.strip()

    def keys(self, size, mesh):
        return ["--model", self.folder / "model", "--sequence", size.sequence, "--batch", size.batch,
                "--accumulate", mesh.accumulate, "--device-memory", size.device_memory, "--threads", 1, *mesh.keys]

    def train_steps(self, size, mesh):
        """The lines of metrics of the steps that count, and what the neediest ranks have of DEVICE and of HOST."""
        done = launch(self.mpirun, mesh.ranks, [
            self.train, "--data", self.folder / "data.npy", "--output", self.folder / "run", "--overwrite", "--no-save",
            "--steps", size.warm_up + size.measured, "--log-level", "warning", *self.keys(size, mesh)])
        if done.returncode != 0:
            raise BenchError(f"{mesh}: {failure(done, 'gemini-train')}")
        with open(self.folder / "run" / "metrics.jsonl", encoding="utf-8") as file:
            lines = [json.loads(line) for line in file][size.warm_up:]
        needs = NEEDS.search(done.stdout)
        if needs is None:
            raise BenchError(f"{mesh}: gemini-train does not say what the neediest ranks have")
        return lines, [int(needs[1]), int(needs[2])]

    def foretold(self, size, mesh, rates):
        done = subprocess.run(
            [str(word) for word in (self.memstat, "plan", "--ranks", mesh.ranks, "--measured", rates, "--json", "--",
                                    *self.keys(size, mesh))], capture_output=True, text=True)
        if done.returncode not in (0, 1) or not done.stdout:  # 1: it does not fit.
            raise BenchError(f"{mesh}: {failure(done, 'memstat plan')}")
        return json.loads(done.stdout)


def measure(bench, counts, file):
    """Replaces the file by one with a line for each number of ranks."""
    lines = [bench.rates(count) for count in counts]
    made = file.with_name(file.name + ".new")
    made.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    os.replace(made, file)
    print("\n".join(lines))


def forecast(bench, size, rates):
    """Prints a line a model and mesh. Returns what it found."""
    found = []
    print(f"{'model':<8}{'mesh':<44}{'step s':>9}{'foretold':>9}{'error':>8}{'sent bytes':>13}{'foretold':>13}"
          f"{'HOST':>11}{'error':>8}{'DEVICE':>11}{'error':>8}")
    for name, config in size.configs.items():
        make_model(config, bench.folder, rows=8 * size.batch * (size.warm_up + size.measured) * 4,
                   sequence=size.sequence)
        for mesh in size.meshes:
            lines, (device, host) = bench.train_steps(size, mesh)
            told = bench.foretold(size, mesh, rates)
            if told["by"] != "dry run":
                raise BenchError(f"{mesh}: no dry run foretells it: {told['why_formulas']}")
            if "misfit" in told:
                raise BenchError(f"{mesh}: {told['misfit']}")
            seconds = statistics.median(line["seconds"] for line in lines)
            memory = told["memory"]
            one = {"model": name, "mesh": str(mesh), "seconds": seconds,
                   "foretold_seconds": told["step_seconds"]["total"], "by_cause": told["step_seconds"],
                   "sent": lines[-1]["sent"], "foretold_sent": told["sent"],
                   "sent_bytes": sum(sent["bytes"] for sent in lines[-1]["sent"].values()),
                   "foretold_sent_bytes": told["sent_bytes"],
                   "host_bytes": host, "foretold_host_bytes": memory["host_bytes"],
                   "device_peak_bytes": device, "foretold_device_peak_bytes": memory["device_peak_bytes"]}
            one["error"] = one["foretold_seconds"] / seconds - 1
            one["host_error"] = one["foretold_host_bytes"] / host - 1
            one["device_error"] = one["foretold_device_peak_bytes"] / device - 1
            found.append(one)
            print(f"{name:<8}{str(mesh):<44}{seconds:>9.3f}{one['foretold_seconds']:>9.3f}{one['error']:>+8.1%}"
                  f"{one['sent_bytes']:>13}{one['foretold_sent_bytes']:>13}"
                  f"{host / MIB:>7.1f} MiB{one['host_error']:>+8.1%}{device / MIB:>7.1f} MiB"
                  f"{one['device_error']:>+8.1%}", flush=True)
    return found


def errors_text(found):
    """The errors in a line: of times, HOST and DEVICE, and how many meshes send other bytes than was foretold."""
    parts = []
    for name, key in (("step times", "error"), ("HOST", "host_error"), ("peaks of DEVICE", "device_error")):
        errors = [abs(one[key]) for one in found]
        parts.append(f"{name} median {statistics.median(errors):.1%}, largest {max(errors):.1%}")
    wrong = sum(one["sent"] != one["foretold_sent"] for one in found)
    return f"errors of {len(found)} meshes: {'; '.join(parts)}; sent bytes differ in {wrong}"


def main():
    parser = argparse.ArgumentParser(prog="gemini-bench ranks", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--measure", type=pathlib.Path, metavar="FILE")
    what.add_argument("--forecast", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--ranks", default="2,4,8", help="to measure, %(default)s")
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--train", type=pathlib.Path, required=True, help="the program gemini-train")
    parser.add_argument("--mpirun", default="mpirun", help="the program that starts ranks")
    arguments = parser.parse_args()
    try:
        counts = [int(count) for count in arguments.ranks.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 2:
        parser.error(f"--ranks {arguments.ranks}: write numbers of ranks, each 2 or more, as 2,4,8")
    try:
        # Beside the programs and not in /tmp, which may be memory.
        with tempfile.TemporaryDirectory(prefix="ranks-", dir=arguments.train.resolve().parent.parent) as folder:
            bench = Bench(arguments.train.resolve(), arguments.mpirun, pathlib.Path(folder))
            if arguments.measure is not None:
                measure(bench, counts, arguments.measure)
                return 0
            found = forecast(bench, SIZES[arguments.size], arguments.forecast.resolve())
    except (BenchError, OSError, subprocess.TimeoutExpired) as error:
        print(f"gemini-bench ranks: {error}", file=sys.stderr)
        return 1
    print(errors_text(found))
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
