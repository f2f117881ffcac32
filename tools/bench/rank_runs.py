# SPDX-License-Identifier: Apache-2.0
"""What the scripts of this folder share that start several ranks by mpirun, or models that need no training before."""
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
# All ranks are on this machine: mpirun looks for no network. Ranks of a run that is refused are killed at once.
MPIRUN_FLAGS = ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", "--mca", "pml", "ob1",
                "--mca", "odls_base_sigkill_timeout", "0"]
TIMEOUT_S = 1800


class BenchError(Exception):
    """What ends a benchmark; the text is the whole message."""


def make_model(config, folder, rows, sequence):
    """Makes folder/model, of the configuration and with random weights, and folder/data.npy."""
    made = subprocess.run([sys.executable, HERE / "families_baseline.py", "make", json.dumps(config), folder,
                           "--rows", str(rows), "--sequence", str(sequence)], capture_output=True, text=True,
                          env=dict(os.environ, HF_HUB_OFFLINE="1"))
    if made.returncode != 0:
        raise BenchError(f"making the model failed: {made.stderr.strip()[-600:]}")


def launch(mpirun, num_ranks, words):
    """Runs a program to its end, by mpirun where it has several ranks, and returns what became of it."""
    launcher = [mpirun, *MPIRUN_FLAGS, "-n", str(num_ranks)] if num_ranks > 1 else []
    return subprocess.run([*launcher, *map(str, words)], capture_output=True, text=True, timeout=TIMEOUT_S,
                          stdin=subprocess.DEVNULL,
                          env=dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1"))


def failure(done, program):
    """What a program said that failed, in a line."""
    said = [line for line in done.stderr.splitlines() if line.startswith(f"{program}: ")]
    return f"{program} ended with {done.returncode}: {said[0] if said else done.stderr.strip()[-600:]}"
