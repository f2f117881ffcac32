#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a model of random weights under a cap of a GPU's memory, and without one, and writes what it took as JSON.

  measure [--model NAME] [--device cuda:0] [--device-memory SIZE] [--host-memory SIZE] [--tokens N,N,...] [--steps N]
          [--no-capped | --no-uncapped] [--deadline SECONDS] [--model-folder FOLDER] [--report FILE]

For each number of tokens a step: tokens a second (median of the last steps), bytes over the link, stalls by cause, the
peak of the GPU's memory by NVML and whether the cap held, and the part of the roofline that was reached: the larger of the
step's arithmetic at the rate of a matrix product measured here, and its bytes at the link's rate measured here. Arithmetic:
8 operations a parameter and token, for blocks are computed twice (recompute); `model_flops_part` counts 6.
Exit status: 0 all ran below their caps; 1 one failed, and its "error" says why, or exceeded its cap.
"""
import argparse
import contextlib
import ctypes
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

import numpy

sys.dont_write_bytecode = True  # A bundle holds what was put into it alone.

FOLDER = pathlib.Path(__file__).resolve().parent
# On-line, with the first plans while the GPU is divided, and with those by the times and rates that they measured: by then
# HOST is registered with the driver, too (`registered_host_bytes`), or the steps are no measure.
WARM_STEPS = 10


def opt(layers, width, heads, vocabulary, positions):
    config = {"model_type": "opt", "vocab_size": vocabulary, "max_position_embeddings": positions,
              "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
              "ffn_dim": 4 * width, "word_embed_proj_dim": width, "pad_token_id": 1,
              "activation_function": "relu", "dropout": 0.0, "attention_dropout": 0.0,
              "do_layer_norm_before": True}
    tensors = [("embed_tokens.weight", (vocabulary, width)),
               ("embed_positions.weight", (positions + 2, width))]
    for i in range(layers):
        for name, rows, columns in (("self_attn.k_proj", width, width), ("self_attn.v_proj", width, width),
                                    ("self_attn.q_proj", width, width), ("self_attn.out_proj", width, width),
                                    ("fc1", 4 * width, width), ("fc2", width, 4 * width)):
            tensors += [(f"layers.{i}.{name}.weight", (rows, columns)), (f"layers.{i}.{name}.bias", (rows,))]
        for name in ("self_attn_layer_norm", "final_layer_norm"):
            tensors += [(f"layers.{i}.{name}.weight", (width,)), (f"layers.{i}.{name}.bias", (width,))]
    tensors += [("final_layer_norm.weight", (width,)), ("final_layer_norm.bias", (width,))]
    return config, [("model.decoder." + name, shape) for name, shape in tensors]


def gpt2(layers, width, heads, vocabulary, positions):
    config = {"model_type": "gpt2", "vocab_size": vocabulary, "n_positions": positions, "n_embd": width,
              "n_layer": layers, "n_head": heads, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    tensors = [("wte.weight", (vocabulary, width)), ("wpe.weight", (positions, width))]
    for i in range(layers):
        for name, rows, columns in (("attn.c_attn", width, 3 * width), ("attn.c_proj", width, width),
                                    ("mlp.c_fc", width, 4 * width), ("mlp.c_proj", 4 * width, width)):
            tensors += [(f"h.{i}.{name}.weight", (rows, columns)), (f"h.{i}.{name}.bias", (columns,))]
        for name in ("ln_1", "ln_2"):
            tensors += [(f"h.{i}.{name}.weight", (width,)), (f"h.{i}.{name}.bias", (width,))]
    tensors += [("ln_f.weight", (width,)), ("ln_f.bias", (width,))]
    return config, [("transformer." + name, shape) for name, shape in tensors]


# With the cap, the sequence that steps are made of, and the tokens of a micro-batch: the loss alone takes three times
# vocabulary x tokens x 4 bytes.
MODELS = {
    "opt-6.7b": (opt(32, 4096, 32, 50272, 2048), "24GiB", 2048, 8192),
    "gpt2-xl": (gpt2(48, 1600, 25, 50257, 1024), "6GiB", 1024, 4096),
    "opt-tiny": (opt(4, 128, 4, 512, 64), "16MiB", 64, 8192),
}


def write_model(folder, config, tensors):
    """A checkpoint of bf16: the same few million random numbers again and again."""
    noise = numpy.random.default_rng(1).standard_normal(1 << 22, numpy.float32) * 0.02
    block = (noise.view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes()
    header, at = {}, 0
    for name, shape in tensors:
        size = 2 * int(numpy.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors:
            left = 2 * int(numpy.prod(shape))
            if name.endswith("norm.weight") or ".ln_" in name and name.endswith("weight"):
                file.write(numpy.full(shape, 0x3F80, numpy.uint16).tobytes())  # One.
                continue
            while left > 0:
                left -= file.write(block[:left])
    (folder / "config.json").write_text(json.dumps(config))


def write_tokens(path, config, count):
    numpy.save(path, numpy.random.default_rng(2).integers(4, config["vocab_size"], count).astype(numpy.uint16))


@contextlib.contextmanager
def model_folder(arguments, config, tensors):
    """A folder with the model in it: a temporary one, unless one to keep is named."""
    folder = arguments.model_folder or pathlib.Path(tempfile.mkdtemp())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Written last, so it says that the rest is there.
        if not (folder / "config.json").exists():
            write_model(folder, config, tensors)
        yield folder
    finally:
        if arguments.model_folder is None:
            shutil.rmtree(folder)


class PeakOfGpu:
    """The most that NVML says is in use, of the whole GPU, while this is open; None without NVML."""

    def __init__(self, index):
        self.peak = self.before = None
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        self.handle = ctypes.c_void_p()
        if self.nvml.nvmlInit_v2() or self.nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(self.handle)):
            return
        self.peak = self.before = self.used()

    def used(self):
        memory = (ctypes.c_ulonglong * 3)()  # Total, free, used.
        return None if self.nvml.nvmlDeviceGetMemoryInfo(self.handle, memory) else memory[2]

    def __enter__(self):
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def run(self):
        while self.before is not None and not self.ended.wait(0.01):
            self.peak = max(self.peak, self.used() or 0)

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()

    def bytes(self):
        return None if self.before is None else self.peak - self.before


def rates(device):
    """What the machine can do, by a process of its own, whose context is gone afterwards."""
    done = subprocess.run([sys.executable, __file__, "--rates", device], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"measure: the GPU's rates cannot be measured: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def measure_rates(device):
    """Operations a second of a bf16 product of 8,192, and bytes a second of pinned copies, alone and both at once."""
    import torch
    gpu = torch.device(device)

    def seconds(call, repeat):
        call()
        times = []
        for _ in range(5):
            torch.cuda.synchronize(gpu)
            begin = time.perf_counter()
            for _ in range(repeat):
                call()
            torch.cuda.synchronize(gpu)
            times.append((time.perf_counter() - begin) / repeat)
        return statistics.median(times)

    size = 8192
    a, b = (torch.randn(size, size, device=gpu, dtype=torch.bfloat16) for _ in range(2))
    flops = 2 * size ** 3 / seconds(lambda: a @ b, 10)
    count = 1 << 30
    near, far = (torch.empty(count, dtype=torch.uint8, device=gpu) for _ in range(2))
    host_in, host_out = (torch.empty(count, dtype=torch.uint8, pin_memory=True) for _ in range(2))
    side = torch.cuda.Stream(gpu)

    def both():
        near.copy_(host_in, non_blocking=True)
        with torch.cuda.stream(side):
            host_out.copy_(far, non_blocking=True)

    return {"name": torch.cuda.get_device_name(gpu), "matmul_flops": flops,
            "host_to_device": count / seconds(lambda: near.copy_(host_in, non_blocking=True), 2),
            "device_to_host": count / seconds(lambda: host_out.copy_(far, non_blocking=True), 2),
            "each_of_both": count / seconds(both, 2)}


def environment():
    """As the programs beside this get it: in a bundle `run` is run_all.py."""
    name = "run" if (FOLDER / "run").exists() else "run_all.py"
    loader = importlib.machinery.SourceFileLoader("run_all", str(FOLDER / name))
    run_all = importlib.util.module_from_spec(importlib.util.spec_from_loader("run_all", loader))
    loader.exec_module(run_all)
    variables = run_all.environment()
    variables["LD_LIBRARY_PATH"] = f"{FOLDER / 'lib'}:{variables.get('LD_LIBRARY_PATH', '')}"
    return variables


def batches_of(model, tokens):
    """Sequences of a micro-batch, and micro-batches of a step, that come to about so many tokens."""
    _, _, sequence, most_tokens = MODELS[model]
    micro = min(max(tokens, sequence), most_tokens) // sequence
    return micro, max(1, tokens // sequence // micro)


def train_command(arguments, folder, tokens, device_memory, steps):
    """Of a gemini-train with the model and the tokens in `folder`, whose metrics go to run/metrics.jsonl there."""
    micro, accumulate = batches_of(arguments.model, tokens)
    sequence = MODELS[arguments.model][2]
    command = [arguments.bin / "gemini-train", "--model", folder, "--data", folder / "tokens.npy",
               "--output", folder / "run", "--overwrite", "--no-save", "--steps", steps, "--batch", micro,
               "--accumulate", accumulate, "--sequence", sequence, "--precision", "bf16", "--recompute",
               "--device", arguments.device, "--device-memory", device_memory,
               "--host-memory", arguments.host_memory, "--lr", "1e-5"]
    if accumulate > 1:
        command += ["--micro-batch-schedule", "vertical"]
    return [str(word) for word in command]


def steps_in(folder):
    """The lines of metrics that a run has written by now."""
    path = folder / "run" / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    steps = [json.loads(line) for line in lines if line.endswith("\n")]
    return [step for step in steps if "loss" in step]


def bytes_of(size):
    """Of "24GiB"; None: of "auto"."""
    for unit, power in (("KiB", 10), ("MiB", 20), ("GiB", 30)):
        if size.endswith(unit):
            return int(float(size[:-3]) * (1 << power))
    return None


def train(arguments, folder, tokens, device_memory, timeout_s):
    """One run of gemini-train; what its last steps took: of one that was cut short, if some of them were measured."""
    command = train_command(arguments, folder, tokens, device_memory, WARM_STEPS + arguments.steps)
    index = int(arguments.device.partition(":")[2] or 0)
    micro, accumulate = batches_of(arguments.model, tokens)
    result = {"tokens_a_step": micro * accumulate * MODELS[arguments.model][2], "device_memory": device_memory}
    shutil.rmtree(folder / "run", ignore_errors=True)
    with PeakOfGpu(index) as peak:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment())
            status, log = done.returncode, done.stderr
        except subprocess.TimeoutExpired as expired:
            status, log = None, (expired.stderr or b"").decode(errors="replace")
    result["gpu_peak_bytes"] = peak.bytes()
    cap_bytes = bytes_of(device_memory)
    if arguments.device.startswith("cuda") and cap_bytes is not None and peak.bytes() is not None:
        result["cap_held"] = peak.bytes() <= cap_bytes
    steps = steps_in(folder)[WARM_STEPS:]
    if status != 0 and (status is not None or not steps):
        return {**result, "error": log[-2000:] if status is not None else f"not done after {timeout_s} s: {log[-2000:]}"}

    def median(key):
        return statistics.median(step[key] for step in steps)

    causes = steps[-1]["stall_seconds_by_cause"]
    return {**result, "seconds": median("seconds"), "tokens_per_second": median("tokens_per_second"),
            "fetch_bytes": median("fetch_bytes"), "evict_bytes": median("evict_bytes"),
            "stall_seconds": median("stall_seconds"),
            "stall_seconds_by_cause": {cause: statistics.median(step["stall_seconds_by_cause"][cause] for step in steps)
                                       for cause in causes},
            "device_budget_bytes": steps[-1]["device_budget_bytes"],
            "non_model_peak_bytes": steps[-1]["non_model_peak_bytes"],
            "host_bytes": steps[-1]["host_bytes"], "cut_short": status is None,
            "measured_steps": len(steps),
            "planned_rounds": sum(step["planned_rounds"] for step in steps),
            "divergences": sum(sum(step["divergences"].values()) for step in steps),
            # Of all steps, the warm ones, too: a plan made anew among those that are measured is seen.
            "registered_host_bytes": [step["registered_host_bytes"] for step in steps_in(folder)],
            "seconds_of_steps": [step["seconds"] for step in steps_in(folder)],
            "loss": steps[-1]["loss"], "log": log[-2000:]}


def compare(run, machine, num_parameters):
    """Adds the parts of the roofline that the run reached."""
    if "error" in run or machine is None:
        return
    computing = 8 * num_parameters * run["tokens_a_step"] / machine["matmul_flops"]
    copying = max(run["fetch_bytes"] / machine["host_to_device"], run["evict_bytes"] / machine["device_to_host"],
                  max(run["fetch_bytes"], run["evict_bytes"]) / machine["each_of_both"])
    run["roofline_part"] = max(computing, copying) / run["seconds"]
    run["model_flops_part"] = computing * 6 / 8 / run["seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rates", metavar="DEVICE", help="print the rates of that GPU, and nothing else")
    parser.add_argument("--model", choices=MODELS, default="opt-6.7b")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--device-memory", help="the cap; default: of the model")
    parser.add_argument("--host-memory", default="auto")
    parser.add_argument("--tokens", default="4096,8192,16384,32768")
    parser.add_argument("--steps", type=int, default=10, help=f"that are measured, behind {WARM_STEPS} others")
    parser.add_argument("--no-capped", action="store_true", help="leave out the runs under the cap")
    parser.add_argument("--no-uncapped", action="store_true", help="leave out the runs without a cap")
    parser.add_argument("--bin", type=pathlib.Path, default=FOLDER / "bin")
    parser.add_argument("--model-folder", type=pathlib.Path,
                        help="where the model is written, and found when it is there; default: a temporary one")
    parser.add_argument("--timeout", type=float, default=500, help="of one run, seconds")
    parser.add_argument("--deadline", type=float, default=float("inf"),
                        help="no run begins, or goes on, so many seconds after the start")
    parser.add_argument("--report", type=pathlib.Path, default=pathlib.Path("measure.json"))
    arguments = parser.parse_args()
    if arguments.rates:
        print(json.dumps(measure_rates(arguments.rates)))
        return 0
    (config, tensors), cap, sequence, _ = MODELS[arguments.model]
    if arguments.model == "opt-tiny" and arguments.device.startswith("cuda"):
        cap = "2GiB"  # CUDA itself takes most of one.
    end = time.monotonic() + arguments.deadline
    num_parameters = sum(int(numpy.prod(shape)) for _, shape in tensors)
    report = {"model": arguments.model, "parameters": num_parameters, "machine": None, "runs": []}
    failed = False
    with model_folder(arguments, config, tensors) as folder:
        all_tokens = [int(count) for count in arguments.tokens.split(",")]
        write_tokens(folder / "tokens.npy", config, max(all_tokens) * (WARM_STEPS + arguments.steps) + sequence)
        if arguments.device.startswith("cuda"):
            report["machine"] = rates(arguments.device)
        caps = [] if arguments.no_capped else [arguments.device_memory or cap]
        for device_memory in caps + ([] if arguments.no_uncapped else ["auto"]):
            for tokens in all_tokens:
                left_s = end - time.monotonic()
                if left_s <= 0:
                    break
                run = train(arguments, folder, tokens, device_memory, min(arguments.timeout, left_s))
                compare(run, report["machine"], num_parameters)
                failed |= "error" in run or not run.get("cap_held", True)
                report["runs"].append(run)
                # Written again after each, so that what a lost machine said is kept.
                arguments.report.write_text(json.dumps(report, indent=1) + "\n")
                shown = {key: run.get(key) for key in ("tokens_a_step", "device_memory", "tokens_per_second",
                                                       "roofline_part", "gpu_peak_bytes", "cap_held", "error")}
                print(json.dumps(shown), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
