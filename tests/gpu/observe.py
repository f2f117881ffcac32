#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains below a geminid, keeps what can be seen of it, and kills it in the middle of steps.

  observe [--model NAME] [--device cuda:0] [--device-memory SIZE] [--host-memory SIZE] [--tokens N] [--kills N]
          [--folder FOLDER]

Into the folder: memstat.txt and memstat.json (what memstat shows while it trains), trace.json (its last step, for
ui.perfetto.dev) and observed.json: for how much of that step operators, copies to the device and copies from it ran side by
side, stalls by cause; and of each kill -9 the seconds until memstat shows no job and all of DEVICE free, and until NVML
shows no more in use than before the job, but for 32 MiB, with the bytes that were left then.
Exit status: 0 all was seen, and each kill freed all within a second; 1 not, and the report says what.
"""
import argparse
import contextlib
import importlib.machinery
import importlib.util
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True  # A bundle holds what was put into it alone.

FOLDER = pathlib.Path(__file__).resolve().parent
LIMIT_S = 1.0  # From the kill.
GIVE_UP_S = 20.0
SLACK_BYTES = 32 << 20  # What the driver itself may have taken meanwhile, as in the probes.
STEPS_BEFORE_A_KILL = 3
WAIT_S = 300  # For the daemon, and for steps.


def load_measure():
    """What is beside this: `measure` in a bundle, else measure.py."""
    name = "measure" if (FOLDER / "measure").exists() else "measure.py"
    loader = importlib.machinery.SourceFileLoader("measure", str(FOLDER / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("measure", loader))
    loader.exec_module(module)
    return module


measure = load_measure()


@contextlib.contextmanager
def daemon(arguments, folder, device_memory):
    """A geminid with nothing kept from before; its socket."""
    socket = folder / "daemon" / "geminid.sock"
    command = [arguments.bin / "geminid", "--runtime-dir", socket.parent, "--state-dir", "",
               "--device", "host" if arguments.device == "cpu" else arguments.device,
               "--device-memory", device_memory, "--host-memory", arguments.host_memory]
    log_path = folder / "geminid.log"
    with open(log_path, "w") as log:
        process = subprocess.Popen([str(word) for word in command], stderr=log, env=measure.environment())
    try:
        wait_for(lambda: "ready on" in log_path.read_text(), process, lambda: log_path.read_text())
        yield socket
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(is_so, process, why):
    """Looks again and again. RuntimeError: the process ended, or it takes too long."""
    end = time.monotonic() + WAIT_S
    while not is_so():
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"it ended with {process.poll()}, or took more than {WAIT_S} s: {why()[-2000:]}")
        time.sleep(0.05)


@contextlib.contextmanager
def training(arguments, folder, device_memory, socket, steps):
    """A gemini-train that goes on until it is ended, with `steps` steps done."""
    command = measure.train_command(arguments, folder, arguments.tokens, device_memory, 1_000_000)
    command += ["--daemon", str(socket)]
    if arguments.device_bandwidth:
        command += ["--device-bandwidth", arguments.device_bandwidth]
    log_path = folder / "train.log"
    shutil.rmtree(folder / "run", ignore_errors=True)
    with open(log_path, "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=measure.environment())
    try:
        wait_for(lambda: len(measure.steps_in(folder)) >= steps, process, lambda: log_path.read_text())
        yield process
    finally:
        process.kill()
        process.wait()


def memstat(arguments, socket, *words):
    command = [arguments.bin / "memstat", "--socket", socket, *words]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True,
                          env=measure.environment(), timeout=60).stdout


def spans(events, process, rows):
    """[begin, end] of the events in those rows of a process of a trace, in microseconds, one after another."""
    pids = [event["pid"] for event in events if event["name"] == "process_name" and event["args"]["name"] == process]
    names = {event["tid"]: event["args"]["name"] for event in events
             if event["name"] == "thread_name" and event["pid"] in pids}
    found = sorted((event["ts"], event["ts"] + event["dur"]) for event in events
                   if event["ph"] == "X" and event["pid"] in pids and names.get(event["tid"]) in rows
                   and not event["name"].startswith("wait: "))
    merged = []
    for begin, end in found:
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return merged


def both(first, second):
    """Where spans of both are."""
    common, i, j = [], 0, 0
    while i < len(first) and j < len(second):
        begin, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if begin < end:
            common.append([begin, end])
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return common


def seconds_of(intervals):
    return sum(end - begin for begin, end in intervals) * 1e-6


def look(arguments, socket, folder):
    """What can be seen of the job that runs."""
    state = json.loads(memstat(arguments, socket, "--json"))
    (folder / "memstat.json").write_text(json.dumps(state, indent=1) + "\n")
    (folder / "memstat.txt").write_text(memstat(arguments, socket))
    memstat(arguments, socket, "trace", "run", "-o", folder / "trace.json")
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    lanes = {lane: spans(events, "actual", {lane}) for lane in ("operator", "fetch", "evict")}
    copies = both(lanes["fetch"], lanes["evict"])
    return {"seconds": {lane: seconds_of(of) for lane, of in lanes.items()},
            "copies_both_ways_seconds": seconds_of(copies),
            "side_by_side_seconds": seconds_of(both(lanes["operator"], copies))}


def kill(arguments, socket, process, idle, gpu):
    """Ends the job as a crash does; how soon everybody sees that its memory is free."""
    process.kill()
    begin = time.monotonic()
    seen = {"memstat_seconds": None, "nvml_seconds": None if gpu.before is not None else 0.0, "bytes_left": None}
    while None in (seen["memstat_seconds"], seen["nvml_seconds"]) and time.monotonic() - begin < GIVE_UP_S:
        if seen["memstat_seconds"] is None and is_idle(json.loads(memstat(arguments, socket, "--json"))):
            seen["memstat_seconds"] = time.monotonic() - begin
        left = 0 if gpu.before is None else (gpu.used() or 0) - idle
        if seen["nvml_seconds"] is None and left <= SLACK_BYTES:
            seen["nvml_seconds"] = time.monotonic() - begin
        seen["bytes_left"] = max(left, 0)
    process.wait()
    return seen


def is_idle(state):
    device = state["tiers"]["DEVICE"]
    return not state["tenants"] and device["free_bytes"] == device["capacity_bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", choices=measure.MODELS, default="gpt2-xl")
    parser.add_argument("--device", default="cuda:0", help="a GPU, or cpu: then host memory plays DEVICE")
    parser.add_argument("--device-memory", help="the cap; default: of the model")
    parser.add_argument("--device-bandwidth", help="of host memory that plays DEVICE, such as 1GiB/s")
    parser.add_argument("--host-memory", default="48GiB")
    parser.add_argument("--tokens", type=int, default=4096, help="a step")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--bin", type=pathlib.Path, default=FOLDER / "bin")
    parser.add_argument("--model-folder", type=pathlib.Path, help="as of measure")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("observed"))
    arguments = parser.parse_args()
    (config, tensors), cap, sequence, _ = measure.MODELS[arguments.model]
    device_memory = arguments.device_memory or cap
    out = arguments.folder
    out.mkdir(parents=True, exist_ok=True)
    report = {"model": arguments.model, "device_memory": device_memory, "kills": [], "errors": []}
    with measure.model_folder(arguments, config, tensors) as folder, tempfile.TemporaryDirectory() as runtime:
        measure.write_tokens(folder / "tokens.npy", config, 64 * max(arguments.tokens, sequence))
        try:
            with daemon(arguments, pathlib.Path(runtime), device_memory) as socket:
                index = int(arguments.device.partition(":")[2] or 0)
                gpu = measure.PeakOfGpu(index)  # Its level: a daemon without a job.
                with training(arguments, folder, device_memory, socket, measure.WARM_STEPS + 2) as process:
                    report["step"] = look(arguments, socket, out)
                    steps = measure.steps_in(folder)
                    report["stall_seconds_by_cause"] = steps[-1]["stall_seconds_by_cause"]
                    report["kills"].append(kill(arguments, socket, process, gpu.before, gpu))
                for _ in range(arguments.kills - 1):
                    with training(arguments, folder, device_memory, socket, STEPS_BEFORE_A_KILL) as process:
                        report["kills"].append(kill(arguments, socket, process, gpu.before, gpu))
        except (RuntimeError, subprocess.SubprocessError, OSError, ValueError) as error:
            report["errors"].append(f"{error} {getattr(error, 'stderr', '') or ''}")
    for kind in ("memstat", "nvml"):
        late = [seen for seen in report["kills"] if seen[f"{kind}_seconds"] is None or seen[f"{kind}_seconds"] > LIMIT_S]
        if late:
            report["errors"].append(f"{len(late)} of {len(report['kills'])} kills: {kind} saw memory in use after "
                                    f"{LIMIT_S:g} s")
    if "step" in report and report["step"]["side_by_side_seconds"] <= 0:
        report["errors"].append("no moment of the step has computing and copies both ways")
    (out / "observed.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({key: report.get(key) for key in ("step", "kills", "errors")}))
    return 1 if report["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
