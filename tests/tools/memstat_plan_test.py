#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""memstat_plan_test.py MEMSTAT: runs `memstat plan` on models that nobody has here.

Only config.json files are written: the program has nothing else to go by. Its time is that of its
processor, so that other tests beside this one do not matter.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

MEMSTAT = str(pathlib.Path(sys.argv[1]).resolve())
MOST_SECONDS = 1.0

GPT2_XL = {"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25, "vocab_size": 50257}


def opt(hidden, layers, heads):
    return {"model_type": "opt", "hidden_size": hidden, "word_embed_proj_dim": hidden,
            "num_hidden_layers": layers, "num_attention_heads": heads, "ffn_dim": 4 * hidden}


def run(folder, config, *flags):
    """Returns exit status, output, errors and processor seconds."""
    folder = pathlib.Path(folder)
    folder.mkdir(exist_ok=True)
    if config is not None:
        (folder / "config.json").write_text(
            config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    before = os.times()
    # No daemon's directory to be found in: it must not look for one.
    # The socket is an option of memstat itself.
    socket = flags[flags.index("--socket"):] if "--socket" in flags else ()
    flags = flags[:len(flags) - len(socket)]
    done = subprocess.run([MEMSTAT, *socket, "plan", "--model", str(folder), *flags], text=True,
                          capture_output=True, timeout=60,
                          env={"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": "/nonexistent"})
    after = os.times()
    seconds = (after.children_user - before.children_user +
               after.children_system - before.children_system)
    return done.returncode, done.stdout, done.stderr, seconds


def check(condition, *shown):
    if not condition:
        print(*shown, sep="\n")
        raise AssertionError


def check_large_model(root, name, config, parameters, flags, expected):
    status, text, errors, seconds = run(root / name, config, *flags)
    print(text, f"{name}: {seconds:.2f} s\n", sep="")
    check(status == 0 and errors == "", status, errors)
    check(seconds < MOST_SECONDS, f"{name} took {seconds} s of processor time")
    for line in [f"{parameters:,} parameters", "fits           yes", "DEVICE floor", "tokens/s",
                 "busy           compute", "bottleneck", "stalls", "helps most", *expected]:
        check(line in text, f"{name}: '{line}' is missing")

    status, text, _, _ = run(root / name, None, *flags, "--json")
    found = json.loads(text)
    check(status == 0 and found["fits"] is True, found)
    check(found["parameters"] == parameters, found["parameters"])
    prediction = found["prediction"]
    check(prediction["step_ns"] >= prediction["compute_ns"] > 0, prediction)
    # What lies in HOST and on NVME is every state, at its bytes a parameter and the chunks' padding.
    width = {"bf16": 14, "fp16": 16, "fp32": 16}[found["precision"]]
    states = sum(found["host"].values()) + sum(found["nvme"].values())
    check(1.0 <= states / (width * parameters) < 1.1, states / parameters)
    check(found["device_floor_bytes"] <= found["given_bytes"]["DEVICE"], found)
    check(prediction["device_peak_bytes"] <= found["given_bytes"]["DEVICE"], found)
    return found


def main(root):
    small = check_large_model(
        root, "gpt2-xl", GPT2_XL, 1_557_611_200,
        ["--gpu", "rtx2060", "--device", "6GiB", "--host", "32GiB", "--batch", "4",
         "--sequence", "1024", "--recompute"], ["in fp16 on rtx2060"])
    check(sum(small["nvme"].values()) == 0, small["nvme"])

    # 12 L h^2 + 13 L h + (50272 + 2050 + 2) h, as every OPT.
    middle = check_large_model(
        root, "opt-18b", opt(6144, 40, 48), 18_444_066_816,
        ["--gpu", "rtx3090", "--device", "24GiB", "--host", "64GiB", "--nvme", "1TiB", "--batch", "8",
         "--sequence", "1024", "--recompute"], ["NVMe read", "GiB written", "--host"])
    check(middle["needed_bytes"] > 14 * 18_444_066_816, middle["needed_bytes"])
    check(sum(middle["nvme"].values()) > 100 << 30, middle["nvme"])

    large = check_large_model(
        root, "opt-70b", opt(8192, 86, 64), 69_694_144_512,
        ["--gpu", "rtx3090", "--device", "24GiB", "--host", "64GiB", "--nvme", "1TiB", "--batch", "4",
         "--sequence", "1024", "--recompute"], ["bottleneck     NVMe"])
    check(large["prediction"]["step_ns"] > middle["prediction"]["step_ns"], "70B is slower than 18B")

    # A job that does not fit: where, by how much, and what would do.
    status, text, _, _ = run(root / "gpt2-xl", None, "--gpu", "rtx2060", "--host", "32GiB",
                             "--batch", "8")
    check(status == 1, status)
    for line in ["fits           NO: DEVICE is", "too small: ", "lm_head", "fits with", "--batch"]:
        check(line in text, text)
    status, text, _, _ = run(root / "opt-18b", None, "--gpu", "rtx3090", "--host", "64GiB",
                             "--nvme", "100GiB", "--batch", "1", "--recompute")
    check(status == 1 and "HOST and NVME are" in text and "--nvme" in text, text)

    # Everything by hand, and a step of many micro-batches.
    status, text, errors, _ = run(
        root / "gpt2-xl", None, "--device", "24GiB", "--host", "64GiB", "--tflops", "40",
        "--memory-bandwidth", "700GiB/s", "--pcie", "12GiB/s", "--accumulate", "16", "--batch", "2",
        "--precision", "fp32", "--chunk-size", "4MiB", "--update-rate", "5e8")
    check(status == 0, errors)
    check("in fp32 on a GPU of the rates given" in text and "chunks         4 MiB" in text, text)
    check("simulated with 4 micro-batches" in text, text)

    # Moments in 8 bits: 8 bytes a parameter and their scales.
    status, text, errors, _ = run(root / "gpt2-xl", None, "--gpu", "rtx3090", "--host", "64GiB",
                                  "--precision", "bf16", "--moments", "8bit", "--recompute", "--json")
    check(status == 0, errors)
    found = json.loads(text)
    states = (sum(found["host"].values()) + sum(found["nvme"].values())) / found["parameters"]
    check(8.0 <= states < 8.8, states)

    # Masters and moments on NVMe, though HOST has room: 10 bytes a parameter, both ways in each step.
    status, text, errors, _ = run(root / "gpt2-xl", None, "--gpu", "rtx3090", "--host", "64GiB",
                                  "--nvme", "64GiB", "--precision", "bf16", "--optimizer-tier",
                                  "nvme", "--recompute", "--json")
    check(status == 0, errors)
    found = json.loads(text)
    check(10 <= sum(found["nvme"].values()) / found["parameters"] < 10.8, found["nvme"])
    check(found["nvme"]["parameters_bytes"] + found["nvme"]["gradients_bytes"] == 0, found["nvme"])
    check(found["prediction"]["nvme_read_bytes"] == sum(found["nvme"].values()), found["prediction"])

    # A machine without a GPU, by the rates that a geminid keeps; a plan for whoever reads plans.
    costs = root / "costs.host"
    costs.write_text("host_to_device 5e9\ndevice_to_host 5e9\nnvme_read 1e9\nnvme_write 1e9\n"
                     "update_elements_per_second 2e8\ncopy_latency_ns 40000\n", encoding="utf-8")
    plan = root / "made.plan"
    status, text, errors, _ = run(root / "gpt2-xl", None, "--gpu", "cpu", "--device", "24GiB", "--host",
                                  "64GiB", "--tflops", "1", "--memory-bandwidth", "20GiB/s", "--costs",
                                  str(costs), "--batch", "1", "--plan-file", str(plan))
    check(status == 0 and "in fp32 on cpu" in text and "1,557,611,200" in text, status, text, errors)
    check(plan.stat().st_size > 10_000, plan.stat().st_size)

    # Wrong flags, with what to do.
    gpu = ["--gpu", "rtx3090", "--host", "64GiB"]
    for flags, message in [
            (["--gpu", "rtx309", "--host", "1GiB"], "did you mean 'rtx3090'"),
            (["--gpu", "rtx3090"], "--host is missing"),
            (["--host", "1GiB"], "give --gpu NAME"),
            ([*gpu, "--moments", "8bits"], "--moments 8bits: it is fp32 or 8bit"),
            ([*gpu, "--precision", "bf61"], "did you mean 'bf16'"),
            (["--gpu", "rtx2060", "--host", "1GiB", "--precision", "bf16"], "use --precision fp16"),
            (["--gpu", "rtx3090", "--host", "64GB"], "--host 64GB"),
            ([*gpu, "--pcie", "12GiB"], "write it as 12GiB/s"),
            ([*gpu, "--sequence", "4096"], "1024 positions"),
            ([*gpu, "--chunk-size", "5000"], "multiple of 4KiB"),
            ([*gpu, "--batch", "0"], "must be at least 1"),
            ([*gpu, "--costs", "/nonexistent"], "it is no cost model"),
            ([*gpu, "--kernel-time", "-1"], "--kernel-time must be above 0"),
            (["--gpu", "cpu", "--host", "1GiB"], "give --gpu NAME"),
            ([*gpu, "--no-such-flag"], "--no-such-flag")]:
        status, text, errors, _ = run(root / "gpt2-xl", None, *flags)
        check(status == 2 and message in errors and text == "", flags, status, errors)
    status, _, errors, _ = run(root / "gpt2-xl", None, "--space", "job", "--socket", "/nonexistent")
    check(status == 1 and "memstat plan: " in errors and "/nonexistent" in errors, errors)
    status, _, errors, _ = run(root / "mamba", {"model_type": "mamba"}, *gpu)
    check(status == 1 and "supported are cohere, gemma" in errors, errors)
    status, _, errors, _ = run(root / "llama", {"model_type": "llama"}, *gpu)
    check(status == 1 and "GPT-2 and OPT alone" in errors, errors)
    status, _, errors, _ = run(root / "broken", "{", *gpu)
    check(status == 1 and "not a JSON object" in errors, errors)
    status, _, errors, _ = run(root / "empty", None, *gpu)
    check(status == 1 and "config.json" in errors, errors)

    done = subprocess.run([MEMSTAT, "plan", "--gpu", "list"], text=True, capture_output=True,
                          check=True)
    check("rtx3090" in done.stdout and "GB/s" in done.stdout, done.stdout)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder_name:
        main(pathlib.Path(folder_name))
    print("memstat plan: all as expected")
