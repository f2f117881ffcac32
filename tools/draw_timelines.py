#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the pictures of docs/timeline.md: trains a small GPT-2 shape over a link of a given bandwidth, once
placed on demand and once by plans, and draws the last step of each.

    .venv/bin/python tools/draw_timelines.py [--output docs]

Writes timeline_step.svg (both, to one scale), timeline_plan.svg (the planned one beneath what happened) and,
with --keep DIR, the two trace files for ui.perfetto.dev. Needs a build in build/, and an idle machine.
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import draw_timeline
import live_training

MIB = 2**20
SHAPE = {"n_positions": 128, "n_embd": 256, "n_layer": 8, "n_head": 4, "vocab_size": 2048}
# The first steps follow a plan of times that were foretold.
STEP = 12


def make_model(directory):
    import numpy
    import torch
    import transformers
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(1)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        **SHAPE, bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    model.save_pretrained(directory / "model")
    tokens = numpy.random.default_rng(2).integers(0, SHAPE["vocab_size"], 100_000)
    numpy.save(directory / "tokens.npy", tokens.astype(numpy.uint16))
    return 4 * model.num_parameters()


def record(binaries, directory, policy, options, output):
    """Trains until STEP steps are done and writes the last one to `output`."""
    device = f"{options.device_mib}MiB"
    keys = dict(model=directory / "model", data=directory / "tokens.npy",
                output=directory / f"out-{policy}", steps=100_000, batch=2, sequence=128, lr=1e-4,
                recompute=True, threads=1, policy=policy, device_memory=device,
                host_memory="512MiB", chunk_size="256KiB", log_level="warning",
                device_bandwidth=f"{options.bandwidth_mib}MiB/s")
    with live_training.Daemon(binaries, directory / policy, device, "512MiB") as daemon:
        with live_training.Training(binaries, dict(keys, daemon=daemon.socket)) as job:
            job.wait_for_step(STEP)
            memstat = [str(binaries / "memstat"), "--socket", str(daemon.socket)]
            status = subprocess.run([*memstat, "--json"], capture_output=True, text=True, check=True)
            space = json.loads(status.stdout)["spaces"][0]["name"]
            subprocess.run([*memstat, "trace", space, "-o", str(output)], check=True)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--bandwidth-mib", type=int, default=250, help="MiB a second, each direction")
    parser.add_argument("--device-mib", type=int, default=24, help="MiB of DEVICE memory")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the trace files")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        parameter_bytes = make_model(directory)
        print(f"{parameter_bytes / MIB:.1f} MiB of parameters, {options.device_mib} MiB of DEVICE, "
              f"{options.bandwidth_mib} MiB/s each direction")
        for policy in ("online", "auto"):
            record(options.build / "bin", directory, policy, options, directory / f"{policy}.json")
        before, after = directory / "online.json", directory / "auto.json"
        draw_timeline.main([str(options.output / "timeline_step.svg"), f"on demand={before}",
                            f"by a plan={after}"])
        draw_timeline.main([str(options.output / "timeline_plan.svg"), f"what happened={after}",
                            f"what the plan foretold={after}@planned"])
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            for path in (before, after):
                shutil.copy(path, options.keep)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
