#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the programs in the folder gpu/ beside this file, one after another, and writes what they said as JSON.

  run [--report FILE] [--timeout SECONDS] [--sanitizer TOOL] [PROGRAM...]     default: all of them

With --sanitizer (memcheck, racecheck, initcheck or synccheck) each runs below NVIDIA's compute-sanitizer, where a finding
is a failure: by default those with kernels and copies of the project's own. Tests that make mistakes on purpose, measure
time or take far too long there are left out.
The report: "host" and "programs", each with its name, result (passed, skipped, failed or timeout), exit status, seconds,
"answers" (the JSON lines that it printed), and the ends of its other text. Exit status: 0 all passed or were skipped;
1 one failed; 77 all were skipped, for there is no GPU.
"""
import argparse
import ctypes
import importlib.util
import json
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import time

FOLDER = pathlib.Path(__file__).resolve().parent
SKIPPED = 77  # The exit status of a program that needs what the machine has not.
TEXT_BYTES = 64000
FOUND = 98  # The exit status of a program in which a sanitizer found something.
SANITIZED = ("copy_engine_cuda_gpu_test", "counter_dropout_cuda_gpu_test", "device_kernels_cuda_gpu_test",
             "session_cuda_gpu_test", "update_kernel_cuda_gpu_test")
# Of theirs and others, as GoogleTest's filter has them. One waits on the host for a kernel behind it, which a sanitizer may
# have run before it returns.
NOT_SANITIZED = ("*BehindAnError*:*APointBehind*:*WithoutAWait*:*AroundAWait*:*InItsTime*:*WithinASecond*:"
                 "ForeignBytes*:CopyEngineRate*:*CapOnGpu*:TrainingOnGpu*")


def environment():
    """This process's, with the libraries of Torch and of NVIDIA's wheels, such as NCCL, where Python has them."""
    variables = dict(os.environ)
    folders = []
    for package, pattern in (("torch", "lib"), ("nvidia", "*/lib")):
        spec = importlib.util.find_spec(package)
        folders += [str(folder) for place in (spec.submodule_search_locations if spec else [])
                    for folder in sorted(pathlib.Path(place).glob(pattern))]
    if variables.get("LD_LIBRARY_PATH"):
        folders.append(variables["LD_LIBRARY_PATH"])
    if folders:
        variables["LD_LIBRARY_PATH"] = ":".join(folders)
    return variables


def hold_gpus():
    """Opens them for this process: else the driver starts a GPU anew for each program that comes to it alone."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return
    handle, index = ctypes.c_void_p(), 0
    if nvml.nvmlInit_v2() == 0:
        while nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
            index += 1


def end_of(text):
    return text.encode()[-TEXT_BYTES:].decode(errors="replace")


def parse(output):
    """The JSON objects among the lines, and all other lines."""
    answers, other = [], []
    for line in output.splitlines():
        try:
            answers.append(json.loads(line) if line.startswith("{") else None)
        except json.JSONDecodeError:
            answers.append(None)
        if answers[-1] is None:
            answers.pop()
            other.append(line)
    return answers, "\n".join(other)


def sanitizer_command(tool):
    path = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if path is None:
        raise SystemExit("run: no compute-sanitizer in PATH or /usr/local/cuda/bin: install NVIDIA's toolkit")
    # An answer that a test asks for, such as that memory is used up, is no finding.
    return [path, "--tool", tool, "--target-processes", "all", "--error-exitcode", str(FOUND),
            "--report-api-errors", "no"]


def run(program, timeout_s, variables, below=()):
    begin = time.monotonic()
    process = subprocess.Popen([*below, program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables,
                               start_new_session=True)
    try:
        output, errors = process.communicate(timeout=timeout_s)
        status = process.returncode
        result = {0: "passed", SKIPPED: "skipped"}.get(status, "failed")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # With those that it has started: they hold the GPU, too.
        output, errors = process.communicate()
        status, result = None, "timeout"
    answers, other = parse(output.decode(errors="replace"))
    return {"name": program.name, "result": result, "exit_status": status,
            "seconds": round(time.monotonic() - begin, 3), "answers": answers,
            "output": end_of(other), "errors": end_of(errors.decode(errors="replace"))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM")
    parser.add_argument("--report", type=pathlib.Path, default=pathlib.Path("gpu.json"))
    parser.add_argument("--timeout", type=float, default=580, help="of each program; default 580 s")
    parser.add_argument("--sanitizer", choices=("memcheck", "racecheck", "initcheck", "synccheck"))
    arguments = parser.parse_args()
    there = sorted(path for path in (FOLDER / "gpu").iterdir() if os.access(path, os.X_OK))
    if not there:
        parser.error(f"no program in {FOLDER / 'gpu'}")
    unknown = set(arguments.programs) - {path.name for path in there}
    if unknown:
        parser.error(f"no {', '.join(sorted(unknown))} in {FOLDER / 'gpu'}")
    report = {"host": {"system": platform.platform(), "processors": os.cpu_count()}, "programs": []}
    hold_gpus()
    variables, below = environment(), []
    if arguments.sanitizer:
        below = sanitizer_command(arguments.sanitizer)
        variables.setdefault("GTEST_FILTER", f"-{NOT_SANITIZED}")
        arguments.programs = arguments.programs or SANITIZED
        report["sanitizer"] = arguments.sanitizer
    for program in there:
        if arguments.programs and program.name not in arguments.programs:
            continue
        report["programs"].append(run(program, arguments.timeout, variables, below))
        ended = report["programs"][-1]
        print(f"{ended['name']:24} {ended['result']:8} {ended['seconds']:8.1f} s", flush=True)
        # Written again after each, so that what a lost machine said is kept.
        arguments.report.write_text(json.dumps(report, indent=1) + "\n")
    results = {program["result"] for program in report["programs"]}
    if results == {"skipped"}:
        return SKIPPED
    return 1 if results & {"failed", "timeout"} else 0


if __name__ == "__main__":
    sys.exit(main())
