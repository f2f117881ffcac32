#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains with two ranks on one GPU, by mpirun and by torchrun, and compares what they print.

  ranks [--device cuda] [--device-memory SIZE] [--launchers mpirun,torchrun] [--only CHECK,...] [--report FILE]
  ranks --cpu                                by mpirun on CPUs, with MPI: to try this program, and what it compares with

With --exact, two ranks with a half of the model each (--zero 3) must print the numbers of one process with twice as many
micro-batches, which adds in the same order: those of MPI's sums. Two that share each layer (--tensor 1d) print the same
numbers whoever launched them, within TOLERANCE of one process. Of both, NCCL's own sums are compared with the exact ones,
which of two ranks are equal in fp32. Two ranks that have one GPU without --share-gpu are refused. One that is killed ends all
within ENDS_S. With ever less memory for each rank, operators find none in a rehearsal and get more, and the numbers stay.
Exit status: 0 all agreed; 1 one did not, and its line says what.
"""
import argparse
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid

sys.dont_write_bytecode = True  # A bundle holds what was put into it alone.

FOLDER = pathlib.Path(__file__).resolve().parent
MODEL = "llama"  # With a head of its own: a tied table is added up in another order by ranks.
TOLERANCE = 5e-5  # Of a loss, relative, where sums are made in another order.
STEPS = 6
COMPARED = ("loss", "grad_norm", "eval_loss")
TIMEOUT_S = 300
ENDS_S = 10
MARK = "GEMINI_RANKS_RUN"  # A variable by which the processes of one job are found.
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "RANK")
# By name: keys, and whether one process prints the same numbers.
WAYS = {"zero": (("--zero", 3), True), "tensor": (("--tensor", "1d"), False)}


def load(name, *places):
    """The Python program of that name, from the first of the places that has it."""
    path = next(place for place in places if place.exists())
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


measure = load("measure", FOLDER / "measure", FOLDER / "measure.py")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def launched(arguments, launcher, words):
    """The command that runs these words as two ranks."""
    if launcher == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port(),
                "--no-python", *words]
    command = [os.environ.get("GEMINI_MPIRUN", "mpirun"), "--oversubscribe", "--bind-to", "none", "--mca",
               "mpi_yield_when_idle", "1", "--mca", "pml", "ob1", "-n", "2"]
    if not arguments.cpu and not (arguments.bin / "gemini_mpi.so").exists():
        # Ranks without MPI find each other there.
        command += ["-x", "MASTER_ADDR=127.0.0.1", "-x", f"MASTER_PORT={free_port()}"]
    return [*command, *words]


def keys_of_device(arguments, memory=None):
    return ["--device", "cpu"] if arguments.cpu else ["--device", arguments.device, "--device-memory",
                                                       memory or arguments.device_memory]


def keys_of_ranks(arguments):
    return [] if arguments.cpu else ["--share-gpu", "--collective-timeout", 60]


def train_words(arguments, output, *more):
    data = arguments.models
    return [arguments.bin / "gemini-train", "--model", data / MODEL, "--data", data / "tokens.npy", "--output", output,
            "--overwrite", "--sequence", 64, "--threads", 1, "--log-level", "warning", *keys_of_device(arguments), *more]


def environment(**more):
    return {**measure.environment(), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **more}


def run(command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=TIMEOUT_S,
                          stdin=subprocess.DEVNULL, env=environment())


def numbers_of(output):
    """What a run wrote that is compared, in order."""
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [(key, line[key]) for line in lines for key in COMPARED if key in line]


def train(arguments, tag, launcher, *more):
    """The numbers that a run of six steps wrote; RuntimeError: it failed."""
    output = arguments.folder / tag
    words = train_words(arguments, output, "--no-save", "--steps", STEPS, "--batch", 4, "--eval-data",
                        arguments.models / "eval.npy", "--eval-every", STEPS // 2, *more)
    done = run(launched(arguments, launcher, words + keys_of_ranks(arguments)) if launcher else words)
    if done.returncode != 0:
        raise RuntimeError(f"{tag}: status {done.returncode}: {done.stderr[-1500:]}")
    return numbers_of(output)


def difference(found, expected):
    """A text; None: they are equal."""
    if found == expected:
        return None
    differ = [pair for pair in zip(found, expected) if pair[0] != pair[1]]
    return f"{len(differ)} of {len(expected)} numbers differ, first {differ[:1]}"


def relative(found, expected):
    return max(abs(a - b) / abs(b) for (key, a), (_, b) in zip(found, expected) if key != "grad_norm")


def check_numbers(arguments, launcher, way, precision):
    """What does not agree, one text each."""
    keys, like_one_process = WAYS[way]
    keys = (*keys, "--precision", precision)
    tag = f"{way}-{precision}-{launcher}"
    # Ranks of a line read the same sequences, those of shards others.
    alone = train(arguments, f"{tag}-alone", None, "--precision", precision, "--accumulate", 2 if way == "zero" else 1)
    exact = train(arguments, f"{tag}-exact", launcher, *keys, "--exact")
    wrong = []
    if like_one_process:
        unlike = difference(exact, alone)
        if unlike:
            wrong.append(f"beside one process: {unlike}")
    elif precision == "fp32" and not relative(exact, alone) < TOLERANCE:
        wrong.append(f"beside one process: {relative(exact, alone):.1e}: {exact[-1]}, {alone[-1]}")
    own = train(arguments, f"{tag}-own", launcher, *keys)
    unlike = difference(own, exact)
    if unlike and precision == "fp32":  # a + b is b + a; of 16 bits NCCL may round in between.
        wrong.append(f"sums that are not exact: {unlike}")
    arguments.exact.setdefault((way, precision), {})[launcher] = exact
    return wrong


def ranks_of(mark):
    """The process ids of a job's ranks, by rank."""
    found = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            variables = dict(one.split(b"=", 1) for one in (entry / "environ").read_bytes().split(b"\0") if b"=" in one)
            name = (entry / "comm").read_text()
        except OSError:
            continue
        if variables.get(MARK.encode()) != mark.encode() or not name.startswith("gemini-train"):
            continue
        for variable in RANK_VARIABLES:
            if variable.encode() in variables:
                found[int(variables[variable.encode()])] = int(entry.name)
                break
    return found


def check_a_kill(arguments, launcher, way):
    """Kills the second rank behind some steps: all end."""
    output, mark = arguments.folder / f"kill-{way}-{launcher}", uuid.uuid4().hex
    words = train_words(arguments, output, "--steps", 1000000, "--batch", 2, *WAYS[way][0], *keys_of_ranks(arguments))
    metrics = output / "metrics.jsonl"
    with open(arguments.folder / "said", "w+") as said:
        process = subprocess.Popen([str(word) for word in launched(arguments, launcher, words)], stdout=said, stderr=said,
                                   stdin=subprocess.DEVNULL, env=environment(**{MARK: mark}))
        try:
            begin = time.monotonic()
            while not metrics.exists() or len(metrics.read_text().splitlines()) < 3:
                if process.poll() is not None or time.monotonic() - begin > TIMEOUT_S:
                    said.seek(0)
                    return [f"it trained no three steps: {said.read()[-1500:]}"]
                time.sleep(0.05)
            ranks = ranks_of(mark)
            if sorted(ranks) != [0, 1]:
                return [f"its ranks are {ranks}"]
            os.kill(ranks[1], signal.SIGKILL)
            begin = time.monotonic()
            process.wait(timeout=ENDS_S)
            while any(pathlib.Path(f"/proc/{pid}").exists() for pid in ranks.values()):
                if time.monotonic() - begin > ENDS_S:
                    return [f"ranks live {ENDS_S} s behind the kill"]
                time.sleep(0.05)
            if process.returncode == 0:
                return ["the launcher ended with 0"]
            print(f"{way} {launcher}: ended {time.monotonic() - begin:.1f} s behind the kill, status {process.returncode}",
                  flush=True)
            return []
        except subprocess.TimeoutExpired:
            return [f"the job lives {ENDS_S} s behind the kill"]
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            for pid in ranks_of(mark).values():
                os.kill(pid, signal.SIGKILL)


def check_a_rehearsal(arguments, launcher):
    """Goes down to a DEVICE that operators of this batch do not fit into at first, and on to one that is too small."""
    output, expected, begun_again = arguments.folder / f"rehearsal-{launcher}", None, 0
    for mebibytes in range(2048, 0, -64):
        words = [arguments.bin / "gemini-train", "--model", arguments.models / MODEL, "--data",
                 arguments.models / "tokens.npy", "--output", output, "--overwrite", "--no-save", "--steps", 2, "--sequence",
                 64, "--batch", 64, "--threads", 1, "--log-level", "info", *keys_of_device(arguments, f"{mebibytes}MiB"),
                 *WAYS["zero"][0], "--exact", *keys_of_ranks(arguments)]
        done = run(launched(arguments, launcher, words))
        if done.returncode != 0:
            break
        expected = expected or numbers_of(output)
        unlike = difference(numbers_of(output), expected)
        if unlike:
            return [f"with {mebibytes} MiB: {unlike}"]
        begun_again += "operators got more memory" in done.stderr
    said = done.stderr.strip()[-600:]
    print(f"rehearsal {launcher}: {begun_again} sizes had more memory given; the last one, {mebibytes} MiB, ended with "
          f"{done.returncode}: {said}", flush=True)
    # Too little is refused, by its numbers or by a rehearsal, and never found out in a step.
    wrong = [] if done.returncode == 1 and "DEVICE" in said else [f"{mebibytes} MiB: status {done.returncode}: {said}"]
    return wrong if begun_again else [*wrong, "no size had more memory given in a rehearsal"]


def check_a_shared_gpu_is_refused(arguments, launcher):
    words = train_words(arguments, arguments.folder / "refused", "--steps", 1)
    done = run(launched(arguments, launcher, words))
    if done.returncode == 0:
        return ["two ranks trained on one GPU without --share-gpu"]
    return [] if "ranks 0 and 1 have one GPU" in done.stderr else [f"it said: {done.stderr[-1500:]}"]


def checks(arguments):
    """What is checked, by name."""
    for launcher in arguments.launchers:
        if not arguments.cpu:
            yield f"refused {launcher}", lambda launcher=launcher: check_a_shared_gpu_is_refused(arguments, launcher)
            yield f"rehearsal {launcher}", lambda launcher=launcher: check_a_rehearsal(arguments, launcher)
        for way in WAYS:
            for precision in ("fp32", "bf16"):
                yield (f"{way} {precision} {launcher}",
                       lambda launcher=launcher, way=way, precision=precision:
                       check_numbers(arguments, launcher, way, precision))
            yield f"kill {way} {launcher}", lambda launcher=launcher, way=way: check_a_kill(arguments, launcher, way)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--device-memory", default="8GiB", help="of each rank; default 8GiB")
    parser.add_argument("--cpu", action="store_true", help="on CPUs, by mpirun and MPI")
    parser.add_argument("--only", help="checks whose names begin so, not all")
    parser.add_argument("--launchers", help="default: mpirun, where there is one, and torchrun")
    parser.add_argument("--bin", type=pathlib.Path, default=FOLDER / "bin")
    parser.add_argument("--models", type=pathlib.Path, help="where models are; default: they are made")
    parser.add_argument("--report", type=pathlib.Path, default=pathlib.Path("ranks.json"))
    arguments = parser.parse_args()
    arguments.bin = arguments.bin.resolve()
    if arguments.launchers is not None:
        arguments.launchers = arguments.launchers.split(",")
    else:
        has_mpirun = shutil.which(os.environ.get("GEMINI_MPIRUN", "mpirun")) is not None
        arguments.launchers = ["mpirun"] * has_mpirun + ["torchrun"] * (not arguments.cpu)
    arguments.exact = {}  # By way and precision: the numbers of each launcher.
    with tempfile.TemporaryDirectory() as temporary:
        arguments.folder = pathlib.Path(temporary)
        if arguments.models is None:
            arguments.models = arguments.folder / "models"
            load("make_models", FOLDER / "make_models", FOLDER.parent / "trainer" / "make_models.py").main(arguments.models)
        report = {}
        only = tuple(arguments.only.split(",")) if arguments.only else ("",)
        for name, check in checks(arguments):
            if not name.startswith(only):
                continue
            try:
                report[name] = check()
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                report[name] = [str(error)]
            print(f"{name}: " + ("; ".join(report[name]) or "agrees"), flush=True)
            # Written again after each, so that what a lost machine said is kept.
            arguments.report.write_text(json.dumps(report, indent=1) + "\n")
        for (way, precision), by_launcher in arguments.exact.items():
            first, *others = by_launcher.values()
            report[f"{way} {precision} launchers"] = [unlike for unlike in (difference(other, first) for other in others)
                                                      if unlike]
        arguments.report.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if any(report.values()) or not report else 0


if __name__ == "__main__":
    sys.exit(main())
