#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains each model family on a GPU by three placements, and on the CPU, and compares what they print.

  families [--device cuda:0] [--device-memory SIZE] [--jobs N] [--only NAME,...] [--report FILE]

The models are those of make_models, small, with random weights. With dropout: everything on the GPU, everything fetched for
its use, and that with blocks recomputed: losses, gradient norms and evaluations must be the same numbers, of experts with
those that are routed alone, too. Without dropout, for attention's masks on a GPU are others: losses of the GPU beside those of
the CPU, within TOLERANCE. In fp32 and, but for that comparison, bf16.
Exit status: 0 all agreed; 1 one did not, and its line says what.
"""
import argparse
import concurrent.futures
import importlib.machinery
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # A bundle holds what was put into it alone.

FOLDER = pathlib.Path(__file__).resolve().parent
# Of a loss, relative, where sums are made in another order. OPT's units of ReLU that are at zero come out on either side:
# changing its weights by 3e-7 of themselves moves its loss on one CPU by 1e-5, at ten times the rate by 1e-4.
TOLERANCE = 5e-5
RATE, SMALL_RATE = "1e-3", "1e-4"
STEPS = 6
COMPARED = ("loss", "grad_norm", "eval_loss")
EVERYTHING_THERE = ("--policy", "cuda")
FETCHED = ("--policy", "cpu")


def load(name, *places):
    """The Python program of that name, from the first of the places that has it."""
    path = next(place for place in places if place.exists())
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


measure = load("measure", FOLDER / "measure", FOLDER / "measure.py")


def without_dropout(model, folder):
    """A copy of the model that drops nothing."""
    shutil.copytree(model, folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for key in config:
        if "drop" in key:
            config[key] = 0.0
    path.write_text(json.dumps(config))
    return folder


def train(arguments, model, output, device, *more):
    """The numbers that a run wrote, in order; RuntimeError: it failed."""
    data = arguments.models
    command = [arguments.bin / "gemini-train", "--model", model, "--data", data / "tokens.npy", "--output", output,
               "--overwrite", "--no-save", "--steps", STEPS, "--batch", 4, "--sequence", 64,
               "--threads", 1, "--eval-data", data / "eval.npy", "--eval-every", STEPS // 2, "--log-level", "warning",
               "--device", device, *more]
    if device != "cpu":
        command += ["--device-memory", arguments.device_memory]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=240,
                          env=measure.environment())
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, more))}: status {done.returncode}: {done.stderr[-1500:]}")
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [(key, line[key]) for line in lines for key in COMPARED if key in line]


def check(arguments, name, precision, folder):
    """What of a model's runs does not agree, one text each."""
    model, wrong = arguments.models / name, []

    def run(tag, device, of, *more, rate=RATE):
        return train(arguments, of, folder / f"{name}-{precision}-{tag}", device, "--precision", precision, "--lr", rate,
                     *more)

    expected = run("there", arguments.device, model, *EVERYTHING_THERE)
    fetched = {"fetched": FETCHED, "recomputed": (*FETCHED, "--recompute")}
    if "moe" in name or name == "mixtral":
        fetched["routed"] = (*FETCHED, "--experts", "routed")
    for tag, more in fetched.items():
        try:
            found = run(tag, arguments.device, model, *more)
        except RuntimeError as error:
            wrong.append(f"{tag}: {error}")
            continue
        if found != expected:
            differ = [pair for pair in zip(found, expected) if pair[0] != pair[1]]
            wrong.append(f"{tag}: {len(differ)} of {len(expected)} numbers differ, first {differ[:1]}")
    if precision == "fp32":
        plain = without_dropout(model, folder / f"{name}-plain")
        on_cpu = run("cpu", "cpu", plain, rate=SMALL_RATE)
        on_gpu = run("gpu", arguments.device, plain, *FETCHED, rate=SMALL_RATE)
        error = max(abs(a - b) / abs(a) for (key, a), (_, b) in zip(on_cpu, on_gpu) if key != "grad_norm")
        print(f"{name}: {error:.1e} beside the CPU", flush=True)
        if not error < TOLERANCE or len(on_cpu) != len(on_gpu):
            wrong.append(f"beside the CPU: {error:.1e}: {on_gpu[-1]}, {on_cpu[-1]}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--device-memory", default="8GiB", help="of each run; default 8GiB")
    parser.add_argument("--jobs", type=int, default=6, help="models at once")
    parser.add_argument("--only", help="these models, not all")
    parser.add_argument("--bin", type=pathlib.Path, default=FOLDER / "bin")
    parser.add_argument("--models", type=pathlib.Path, help="where models are; default: they are made")
    parser.add_argument("--report", type=pathlib.Path, default=pathlib.Path("families.json"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        if arguments.models is None:
            arguments.models = folder / "models"
            load("make_models", FOLDER / "make_models", FOLDER.parent / "trainer" / "make_models.py").main(arguments.models)
        names = arguments.only.split(",") if arguments.only else sorted(
            path.parent.name for path in arguments.models.glob("*/config.json"))
        report = {}
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            checks = {pool.submit(check, arguments, name, precision, folder): (name, precision)
                      for name in names for precision in ("fp32", "bf16")}
            for done in concurrent.futures.as_completed(checks):
                name, precision = checks[done]
                error = done.exception()
                wrong = [str(error)] if error else done.result()
                report[f"{name} {precision}"] = wrong
                print(f"{name:14} {precision} " + ("; ".join(wrong) or "agrees"), flush=True)
                # Written again after each, so that what a lost machine said is kept.
                arguments.report.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if any(report.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
