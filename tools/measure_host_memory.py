#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what a parameter costs in HOST memory: gemini-train on two models, watched from outside.

  tools/measure_host_memory.py [--moments 8bit] [--small BLOCKSxWIDTH] [--large BLOCKSxWIDTH] [--sequence TOKENS]

The models are GPT-2's shape with random bf16 weights, made in build/host_memory; the larger one needs 13 GiB
of memory and 2 GB of disk. Both runs take two steps of one sequence of 64 tokens, with recomputation, from
an embedded server, so that server and client are one process. (Without AVX-512 LibTorch multiplies bf16 matrices
at a hundredth of that speed: give it a --sequence of 8 there.) Every 10 ms it looks at
  slabs    all memory files of the process but DEVICE's arena: chunks of all kinds, spare slots, tables;
  anon     RssAnon: its own pages, and those of libraries that it has changed: what no kernel can drop;
  file     RssFile: all other pages of programs and libraries that it has mapped, shared ones, too.
Without a GPU activations and gradients on DEVICE are among its own pages. What DEVICE was charged for them at most,
the non_model_peak_bytes of metrics.jsonl, is no HOST memory and leaves the peak of training. glibc is told to give
blocks of 1 MiB and more pages of their own, or else DEVICE's would leave holes in the heap that nothing charges (0.9
bytes a parameter were seen; it costs a step without a GPU a quarter of its time, so gemini-train does not do it).
B is the largest sum of all three while loading, training (less those) or saving. Figures, with their goals from tools/bench/goals.json:
  host_bytes_per_parameter    (B large - B small) / (P large - P small); with --moments 8bit ..._8bit
  host_bytes_constant         MB: B small - P small * that slope
  host_bytes_load_over_train  the larger of both models' sums while loading by while training
Prints them, writes build/host_memory.json (--report), and exits with 1 when a goal is missed.
"""
import argparse
import array
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAUSE_S = 0.01  # Between looks at the process' own pages.
SLAB_PAUSE_S = 0.1  # Between looks at its memory files, of which there are many.
VOCABULARY = 8192
POSITIONS = 1024
STEPS = 2
ARENA = "memfd:gemini-device-arena"
TUNABLES = "glibc.malloc.mmap_threshold=1048576"


def bf16(value):
    return struct.pack("<f", value)[2:]


def tensors_of(blocks, width):
    """Name and shape of each tensor, and whether its values are random, one or zero."""
    yield "transformer.wte.weight", (VOCABULARY, width), "random"
    yield "transformer.wpe.weight", (POSITIONS, width), "random"
    for i in range(blocks):
        at = f"transformer.h.{i}"
        for name, shape in (("attn.c_attn", (width, 3 * width)), ("attn.c_proj", (width, width)),
                            ("mlp.c_fc", (width, 4 * width)), ("mlp.c_proj", (4 * width, width))):
            yield f"{at}.{name}.weight", shape, "random"
            yield f"{at}.{name}.bias", shape[1:], "zero"
        for name in ("ln_1", "ln_2"):
            yield f"{at}.{name}.weight", (width,), "one"
            yield f"{at}.{name}.bias", (width,), "zero"
    yield "transformer.ln_f.weight", (width,), "one"
    yield "transformer.ln_f.bias", (width,), "zero"


def elements(shape):
    product = 1
    for size in shape:
        product *= size
    return product


def make_model(directory, blocks, width):
    """Writes config.json and model.safetensors; returns the number of parameters."""
    tensors = list(tensors_of(blocks, width))
    if not (directory / "config.json").exists():
        directory.mkdir(parents=True, exist_ok=True)
        header, offset = {}, 0
        for name, shape, _ in tensors:
            size = 2 * elements(shape)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
            offset += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        source = random.Random(1)
        noise = b"".join(bf16(source.gauss(0, 0.02)) for _ in range(1 << 16))
        blocks_of = {"random": noise, "one": bf16(1) * (1 << 16), "zero": bytes(1 << 17)}
        with open(directory / "model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for _, shape, kind in tensors:
                left = 2 * elements(shape)
                while left > 0:
                    left -= file.write(blocks_of[kind][:left])
        config = {"model_type": "gpt2", "n_embd": width, "n_layer": blocks, "n_head": width // 64,
                  "n_positions": POSITIONS, "vocab_size": VOCABULARY, "resid_pdrop": 0,
                  "embd_pdrop": 0, "attn_pdrop": 0}
        (directory / "config.json").write_text(json.dumps(config))
    return sum(elements(shape) for _, shape, _ in tensors)


def make_tokens(path):
    source = random.Random(2)
    tokens = array.array("H", (source.randrange(VOCABULARY) for _ in range(4096)))
    header = f"{{'descr': '<u2', 'fortran_order': False, 'shape': ({len(tokens)},), }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + tokens.tobytes())


def own_pages(pid):
    """RssAnon and RssFile."""
    with open(f"/proc/{pid}/status") as status:
        lines = dict(line.split(":", 1) for line in status)
    return [int(lines[key].split()[0]) * 1024 for key in ("RssAnon", "RssFile")]


def memory_files(pid):
    """Bytes that exist of all memory files but DEVICE's arena."""
    sizes = {}
    for entry in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{entry}"
        try:
            name = os.readlink(path).lstrip("/")
            if name.startswith("memfd:") and not name.startswith(ARENA):
                status = os.stat(path)
                sizes[status.st_ino] = status.st_blocks * 512
        except FileNotFoundError:
            pass  # Closed since.
    return sum(sizes.values())


def steps_of(metrics):
    """Lines of metrics.jsonl that are steps; not one that is being written."""
    try:
        lines = [json.loads(line) for line in metrics.read_text().split("\n")[:-1]]
    except FileNotFoundError:
        return []
    return [line for line in lines if "loss" in line]


class Peak:
    """The largest sum, less DEVICE's part, and what it was made of."""

    def __init__(self):
        self.bytes, self.anonymous, self.file, self.slabs, self.device = 0, 0, 0, 0, 0

    def see(self, anonymous, file, slabs):
        if anonymous + file + slabs > self.bytes:
            self.bytes, self.anonymous, self.file, self.slabs = (anonymous + file + slabs, anonymous,
                                                                 file, slabs)

    def leave_out(self, device):
        self.device = device
        self.bytes -= device


def watch(command, output, log):
    """Runs the command; the peak of each of its phases."""
    shutil.rmtree(output, ignore_errors=True)
    metrics = output / "metrics.jsonl"
    peaks = {"load": Peak(), "train": Peak(), "save": Peak()}
    slabs, phase, looked = 0, "load", 0.0
    environment = os.environ | {"GLIBC_TUNABLES": TUNABLES}
    with (open(log, "w") as text,
          subprocess.Popen(command, stdout=text, stderr=text, env=environment) as process):
        while process.poll() is None:
            try:
                if phase == "load" and " info: loaded " in pathlib.Path(log).read_text():
                    phase = "train"
                if time.monotonic() - looked > SLAB_PAUSE_S:
                    looked = time.monotonic()
                    slabs = memory_files(process.pid)
                    if phase == "train" and len(steps_of(metrics)) >= STEPS:
                        phase = "save"
                peaks[phase].see(*own_pages(process.pid), slabs)
            except (FileNotFoundError, ProcessLookupError, KeyError):
                pass  # It has just ended: what it mapped is gone first.
            time.sleep(PAUSE_S)
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {process.returncode}; it said (whole in {log}):\n"
                 + pathlib.Path(log).read_text()[-2000:])
    peaks["train"].leave_out(max(step["non_model_peak_bytes"] for step in steps_of(metrics)))
    shutil.rmtree(output, ignore_errors=True)
    return peaks


def available_bytes():
    with open("/proc/meminfo") as meminfo:
        for line in meminfo:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def run(arguments, shape):
    blocks, width = (int(part) for part in shape.split("x"))
    model = arguments.directory / f"gpt2-{shape}"
    parameters = make_model(model, blocks, width)
    tokens = arguments.directory / "tokens.npy"
    make_tokens(tokens)
    needed = parameters * (16 if arguments.moments == "32bit" else 10) + (1 << 30)
    if available_bytes() < needed:
        sys.exit(f"{shape} needs {needed / 2**30:.1f} GiB of memory, {available_bytes() / 2**30:.1f} are "
                 "available: end other programs, or give a smaller --large")
    command = [str(arguments.program), "--model", str(model), "--data", str(tokens), "--output",
               str(arguments.directory / "run"), "--overwrite", "--steps", str(STEPS), "--batch", "1",
               "--sequence", str(arguments.sequence), "--precision", "bf16", "--recompute", "--threads", "1",
               "--device-memory", arguments.device_memory]
    if arguments.moments != "32bit":
        command += ["--moments", arguments.moments]
    if arguments.chunk_size:
        command += ["--chunk-size", arguments.chunk_size]
    print(f"{shape}: {parameters} parameters", file=sys.stderr, flush=True)
    return parameters, watch(command, arguments.directory / "run", arguments.directory / f"{shape}.log")


def meets(goal, value):
    return value <= float(goal.split()[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--program", default=ROOT / "build/bin/gemini-train", type=pathlib.Path)
    parser.add_argument("--directory", default=ROOT / "build/host_memory", type=pathlib.Path)
    parser.add_argument("--small", default="24x1024", help="default 24x1024: 312 M parameters")
    parser.add_argument("--large", default="29x1600", help="default 29x1600: 906 M parameters")
    parser.add_argument("--moments", choices=["32bit", "8bit"], default="32bit")
    parser.add_argument("--sequence", type=int, default=64, help="tokens of a step, default 64")
    parser.add_argument("--device-memory", default="256MiB")
    parser.add_argument("--chunk-size", help="default: what gemini-train chooses")
    parser.add_argument("--report", default=ROOT / "build/host_memory.json", type=pathlib.Path)
    arguments = parser.parse_args()
    if not os.access(arguments.program, os.X_OK):
        sys.exit(f"{arguments.program} is not built: run tools/check first")
    arguments.directory.mkdir(parents=True, exist_ok=True)
    goals = json.loads((ROOT / "tools/bench/goals.json").read_text())

    runs = {shape: run(arguments, shape) for shape in (arguments.small, arguments.large)}
    print(f"{'model':10} {'phase':6} {'MB':>8} {'slabs':>8} {'anon':>6} {'file':>6} "
          f"{'DEVICE':>6}  bytes a parameter")
    for shape, (parameters, peaks) in runs.items():
        for phase, peak in peaks.items():
            print(f"{shape:10} {phase:6} {peak.bytes / 1e6:8.1f} {peak.slabs / 1e6:8.1f} "
                  f"{peak.anonymous / 1e6:6.1f} {peak.file / 1e6:6.1f} {peak.device / 1e6:6.1f}  "
                  f"{peak.bytes / parameters:.3f}")
    (small, small_peaks), (large, large_peaks) = runs.values()
    small_bytes, large_bytes = (max(peak.bytes for peak in peaks.values())
                                for peaks in (small_peaks, large_peaks))
    slope = (large_bytes - small_bytes) / (large - small)
    suffix = "" if arguments.moments == "32bit" else "_8bit"
    values = {
        "host_bytes_per_parameter" + suffix: slope,
        "host_bytes_constant": (small_bytes - slope * small) / 1e6,
        "host_bytes_load_over_train": max(peaks["load"].bytes / peaks["train"].bytes
                                          for peaks in (small_peaks, large_peaks))}
    results = {}
    for name, value in values.items():
        goal = goals[name]["goal"]
        met = meets(goal, value)
        print(f"{name:30} {value:8.3f} {goals[name]['unit']:6} {goal:10} {'met' if met else 'MISSED'}")
        results[name] = {"value": value, "goal": goal, "unit": goals[name]["unit"], "met": met}
    arguments.report.parent.mkdir(exist_ok=True)
    arguments.report.write_text(json.dumps({
        "moments": arguments.moments, "sequence": arguments.sequence, "figures": results,
        "runs": {shape: {"parameters": parameters,
                         "peaks": {phase: vars(peak) for phase, peak in peaks.items()}}
                 for shape, (parameters, peaks) in runs.items()}}, indent=2) + "\n")
    return 0 if all(result["met"] for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
