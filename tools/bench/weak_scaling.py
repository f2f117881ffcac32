#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what a step of several ranks takes by the sum of its parts, with the same work for each rank:
`gemini-bench weak-scaling`.

    gemini-bench weak-scaling [--kinds dp,1d,pp] [--ranks 1,2,4,8] [--samples 5]

A small Llama is trained by gemini-train, in fp32, with one thread a rank, ZeRO stage 0, and DEVICE and HOST for all.
The model grows with the ranks, so that each has as much to do as one process with a model of one share:

  dp  the model stays, and each rank has a batch of its own. Stage 0, because its ranks hold and update all that
      the one process does; in the other stages a rank updates a part, and the sum would be too large.
  1d  heads, the width between the feed-forward matrices and the vocabulary grow, and the width between layers
      stays: what a rank has of each matrix has the sizes of the one process's, and norms are whole in both.
  pp  1F1B with 8 micro-batches; blocks grow, as many for each rank. The one process has embeddings and a head
      besides, which only the first and the last rank have. So its time counts by the multiplications that a rank
      has on the average: blocks, and a part of the head.

A step of the job stands beside the sum of its parts, which are measured right behind or before it:

  work      A step of as many such processes at once as there are ranks, without communication. Only steps count that
            began when each process had its first ones behind it, and ended before any of them was told to stop. So
            ranks that share processors and memory are counted as such: with twice as many ranks as processors it is
            about twice the time of one process.
  idle      What the schedule of a pipeline leaves of the processors: its tasks are played in time, each rank one
            after the other, as soon as what they need has come, and at each moment those that have something to do
            share the processors equally. Backward takes twice as long as forward. With a processor for each rank this
            is the formula, (p - 1) / m of a stage's time. With fewer it is less, because those that work have the
            processors of those that wait: none on one processor.
  exchange  What the ranks send in a step, as the first rank's metrics count it, without anything between: `gemini-bench
            rank-exchange`. Of each kind there are as many operations, of their mean size, because the time is
            nearly linear in the bytes. Messages go over each boundary both ways at once.

Nothing is taken off the sum because one part might hide under another. Exchange in host memory is copying and adding by
processors, so where each of them has a rank that works there is little for it to hide under, and the table has the
step by work and idle alone, too: what it is at most, whatever one thinks of the exchange. With more processors than
ranks, exchange of dp can hide under backward, and a ratio below 1 says so. Parts that are taken for less than they are:
the head of a pipeline's last stage, for which others wait, is spread over all ranks; memory that is exchanged alone is
in caches. Taken for more: idle is a part of the whole step of one process, and so of its update, which is a few
percent of the step.

Each sample runs everything once, in turns, the job first in one and its parts first in the next. A time of a sample is
the median of its steps, a ratio is one sample's, and the table has medians over the samples. With one rank the job is
one of its parts: its ratio differs from 1 by the machine's noise. The table is followed by the same as one line of JSON.
"""
import argparse
import json
import os
import pathlib
import selectors
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from fractions import Fraction

from rank_runs import TIMEOUT_S, BenchError, failure, launch, make_model

KINDS = ("dp", "1d", "pp")
MOST_RATIO = 1.25
MOST_RATIO_OF_TWO_STAGES = 1.15
MICRO_BATCHES = 8  # Of pp; dp and 1d have one.


@dataclass(frozen=True)
class Size:
    """What one rank has, and how long a run is."""
    width: int
    heads: int
    head_dim: int
    inner_width: int
    blocks: int
    vocabulary: int
    sequence: int
    batch: int
    stage_blocks: int  # Of a rank of pp, whose micro-batches are smaller.
    stage_sequence: int
    warm_up: int = 3
    measured: int = 3
    device_memory: str = "512MiB"
    host_memory: str = "512MiB"

    def config(self, shares=1, blocks=None):
        """The model of so many shares of each layer."""
        return dict(model_type="llama", hidden_size=self.width, num_attention_heads=self.heads * shares,
                    num_key_value_heads=self.heads * shares, head_dim=self.head_dim,
                    intermediate_size=self.inner_width * shares, vocab_size=self.vocabulary * shares,
                    num_hidden_layers=blocks or self.blocks,
                    max_position_embeddings=max(self.sequence, self.stage_sequence))


SIZES = {
    "full": Size(width=384, heads=6, head_dim=64, inner_width=1024, blocks=4, vocabulary=320, sequence=256, batch=2,
                 stage_blocks=2, stage_sequence=128),
    "tiny": Size(width=64, heads=2, head_dim=32, inner_width=128, blocks=2, vocabulary=512, sequence=32, batch=1,
                 stage_blocks=1, stage_sequence=32, warm_up=2, measured=2, device_memory="64MiB",
                 host_memory="128MiB"),
}


@dataclass(frozen=True)
class Job:
    """What gemini-train is told, by one process or by several ranks."""
    config: dict
    keys: tuple


def job_of(size, kind, ranks):
    """The job of so many ranks, each with the same work."""
    keys = ["--batch", size.batch, "--sequence", size.sequence]
    config = size.config()
    if kind == "1d":
        config = size.config(shares=ranks)
    if kind == "pp":
        config = size.config(blocks=ranks * size.stage_blocks)
        keys = ["--batch", 1, "--sequence", size.stage_sequence, "--accumulate", MICRO_BATCHES]
    if ranks > 1:
        keys += ["--zero", 0]
        keys += {"dp": [], "1d": ["--tensor", "1d"],
                 "pp": ["--pipeline", ranks, "--pipeline-split", ",".join([str(size.stage_blocks)] * ranks)]}[kind]
    return Job(config, tuple(keys))


def part_of_one_process(size, kind, ranks):
    """What a rank multiplies on the average, by what one process does that has a rank's share. Scores are left out,
    which makes it less."""
    if kind != "pp":
        return 1
    blocks = size.stage_blocks * size.width * (4 * size.heads * size.head_dim + 3 * size.inner_width)
    head = size.vocabulary * size.width
    return (blocks + head / ranks) / (blocks + head)


def tasks_of(rank, ranks, micro_batches):
    """The list of a rank in 1F1B: pairs of whether it is backward, and a micro-batch."""
    ahead = min(ranks - 1 - rank, micro_batches)
    tasks = [(False, i) for i in range(ahead)]
    for i in range(micro_batches - ahead):
        tasks += [(False, ahead + i), (True, i)]
    return tasks + [(True, i) for i in range(micro_batches - ahead, micro_batches)]


def playback(ranks, micro_batches, processors, forward=1, backward=2):
    """How long a step of 1F1B takes where ranks that have something to do share the processors equally, exactly."""
    lists = [tasks_of(rank, ranks, micro_batches) for rank in range(ranks)]
    done = set()
    left = {}  # By rank that works: of its task, in time of a processor.
    now = Fraction(0)
    while any(lists):
        for rank, tasks in enumerate(lists):
            if rank in left or not tasks:
                continue
            is_backward, i = tasks[0]
            other = rank + 1 if is_backward else rank - 1
            if not 0 <= other < ranks or (other, is_backward, i) in done:
                left[rank] = Fraction(backward if is_backward else forward)
        rate = min(Fraction(1), Fraction(processors, len(left)))
        least = min(left.values())
        now += least / rate
        for rank in list(left):
            left[rank] -= least
            if left[rank] == 0:
                done.add((rank, *lists[rank].pop(0)))
                del left[rank]
    return now


def idle_by_work(ranks, micro_batches, processors):
    """What is added to the time of as many jobs at once by what the schedule leaves of the processors, as a part."""
    at_once = Fraction(3 * micro_batches * max(ranks, processors), processors)
    return playback(ranks, micro_batches, processors) / at_once - 1


@dataclass(frozen=True)
class Parts:
    """Seconds of a step, and of what it consists of."""
    step: float
    work: float
    idle: float
    exchange: float

    @property
    def ratio(self):
        return self.step / (self.work + self.idle + self.exchange)

    @property
    def ratio_without_exchange(self):
        return self.step / (self.work + self.idle)


def parts_of(size, kind, ranks, processors, step, at_once, exchange):
    """By seconds that were measured: of the job's step, of a step of the processes at once, and of the exchange."""
    work = at_once * part_of_one_process(size, kind, ranks)
    idle = work * float(idle_by_work(ranks, MICRO_BATCHES, processors)) if kind == "pp" else 0.0
    return Parts(step, work, idle, exchange)


def exchanges_of(sent):
    """What gemini-bench rank-exchange is told, of what metrics say of a step. A receive is counted where it is sent."""
    return [f"{kind}:{of_kind['operations']}:{of_kind['bytes'] // of_kind['operations']}"
            for kind, of_kind in sent.items() if of_kind["bytes"] >= of_kind["operations"] > 0]


class StepsAtOnce:
    """Steps of jobs that run at the same time, as their ends are told one after the other: keeps those that began when
    each job had its first ones behind it."""

    def __init__(self, jobs, warm_up, measured):
        self.left = [warm_up] * jobs  # Of each job: so many steps before those that count.
        self.kept = [[] for _ in range(jobs)]
        self.measured, self.all_are_warm = measured, False

    def add(self, job, seconds):
        if self.left[job] > 0:
            self.left[job] -= 1
        elif self.all_are_warm:
            self.kept[job].append(seconds)
        if not self.all_are_warm and not any(self.left):
            self.all_are_warm = True
            self.left = [1] * len(self.left)  # The steps that are under way now.

    @property
    def are_enough(self):
        return min(map(len, self.kept)) >= self.measured

    @property
    def seconds(self):
        return statistics.median(seconds for of_job in self.kept for seconds in of_job)


class Process:
    """One of the jobs that run at once. Its metrics come by a pipe, so that it is known when a step ends."""

    def __init__(self, command, folder):
        folder.mkdir()
        self.pipe = folder / "metrics"
        os.mkfifo(self.pipe)
        # Also for writing, so that it has no end before the process has opened it.
        self.metrics = os.open(self.pipe, os.O_RDWR | os.O_NONBLOCK)
        self.rest = b""
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([str(word) for word in (*command, "--output", folder / "run",
                                                                "--metrics", self.pipe)],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.errors)
        self.end = os.pidfd_open(self.process.pid)

    def new_steps(self):
        """The seconds of steps that have ended since the last call."""
        *lines, self.rest = (self.rest + os.read(self.metrics, 1 << 16)).split(b"\n")
        return [json.loads(line)["seconds"] for line in lines]

    def wait(self):
        """Returns what became of it."""
        self.process.wait(TIMEOUT_S)
        self.errors.seek(0)
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, stderr=self.errors.read())

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.metrics)
        os.close(self.end)
        self.errors.close()


class Bench:
    """The programs, and a folder for models and for what runs leave."""

    def __init__(self, train, mpirun, folder, size):
        self.train, self.mpirun, self.folder, self.size = train, mpirun, folder, size
        self.models = {}  # Folders, by configuration.

    def model(self, config):
        key = json.dumps(config)
        if key not in self.models:
            folder = self.folder / f"model{len(self.models)}"
            make_model(config, folder, rows=64, sequence=self.size.sequence)
            self.models[key] = folder
        return self.models[key]

    def command(self, job, steps):
        model = self.model(job.config)
        return [self.train, "--model", model / "model", "--data", model / "data.npy", "--overwrite", "--no-save",
                "--steps", steps, "--threads", 1, "--update-threads", 1, "--log-level", "warning",
                "--device-memory", self.size.device_memory, "--host-memory", self.size.host_memory, *job.keys]

    def step(self, job, ranks):
        """The seconds of a step, and what the first rank sends in it."""
        output = self.folder / "run"
        done = launch(self.mpirun, ranks, [*self.command(job, self.size.warm_up + self.size.measured),
                                           "--output", output])
        if done.returncode != 0:
            raise BenchError(f"{ranks} ranks: {failure(done, 'gemini-train')}")
        with open(output / "metrics.jsonl", encoding="utf-8") as file:
            lines = [json.loads(line) for line in file][self.size.warm_up:]
        return statistics.median(line["seconds"] for line in lines), lines[-1].get("sent", {})

    def at_once(self, job, count):
        """The seconds of a step of each of so many processes that run at once."""
        steps = StepsAtOnce(count, self.size.warm_up, self.size.measured)
        command = self.command(job, steps=1_000_000)  # Until they are told to stop.
        processes = []
        with (tempfile.TemporaryDirectory(prefix="at-once-", dir=self.folder) as folder,
              selectors.DefaultSelector() as selector):
            try:
                for i in range(count):
                    process = Process(command, pathlib.Path(folder) / str(i))
                    processes.append(process)
                    selector.register(process.metrics, selectors.EVENT_READ, i)
                    selector.register(process.end, selectors.EVENT_READ, i)
                deadline = time.monotonic() + TIMEOUT_S
                while not steps.are_enough:
                    events = selector.select(max(0, deadline - time.monotonic()))
                    if not events:
                        raise BenchError(f"{count} jobs at once took more than {TIMEOUT_S} s")
                    for key, _ in events:
                        process = processes[key.data]
                        if key.fd == process.end:
                            raise BenchError(f"job {key.data + 1} of {count} at once: "
                                             f"{failure(process.wait(), 'gemini-train')}")
                        for seconds in process.new_steps():
                            steps.add(key.data, seconds)
                for process in processes:
                    process.process.send_signal(signal.SIGUSR1)
                for process in processes:
                    done = process.wait()
                    if done.returncode != 128 + signal.SIGUSR1:
                        raise BenchError(f"a job that was told to stop: {failure(done, 'gemini-train')}")
            finally:
                for process in processes:
                    process.close()
        return steps.seconds

    def exchange(self, sent, ranks):
        """The seconds of what is sent, alone."""
        words = exchanges_of(sent)
        if not words:
            return 0.0
        done = launch(self.mpirun, ranks, [self.train.parent / "gemini-bench", "rank-exchange", *words])
        if done.returncode != 0:
            raise BenchError(f"{ranks} ranks: {failure(done, 'gemini-bench rank-exchange')}")
        return json.loads(done.stdout)["seconds"]

    def sample(self, kind, ranks, processors, job_first):
        """The parts of a step, and what is sent in it."""
        job, one = job_of(self.size, kind, ranks), job_of(self.size, kind, 1)
        at_once = None if job_first else self.at_once(one, ranks)
        step, sent = self.step(job, ranks)
        exchange = self.exchange(sent, ranks)
        if job_first:
            at_once = self.at_once(one, ranks)
        return parts_of(self.size, kind, ranks, processors, step, at_once, exchange), sent


def row_of(kind, ranks, samples, sent):
    """What is told of samples."""
    ratios = [parts.ratio for parts in samples]
    seconds = {f"{name}_seconds": statistics.median(getattr(parts, name) for parts in samples)
               for name in ("step", "work", "idle", "exchange")}
    return {"kind": kind, "ranks": ranks, **seconds, "ratio": statistics.median(ratios), "least_ratio": min(ratios),
            "most_ratio": max(ratios),
            "ratio_without_exchange": statistics.median(parts.ratio_without_exchange for parts in samples),
            "sent": sent}


def text_of(row):
    return (f"{row['kind']:<5}{row['ranks']:>6}{row['step_seconds']:>9.3f}{row['work_seconds']:>9.3f}"
            f"{row['idle_seconds']:>9.3f}{row['exchange_seconds']:>10.4f}{row['ratio']:>8.3f}{row['least_ratio']:>8.3f}"
            f"{row['most_ratio']:>8.3f}{row['ratio_without_exchange']:>14.3f}")


def measure(bench, kinds, counts, num_samples, processors):
    """Prints a line a kind and number of ranks. Returns the same."""
    samples, sent = {}, {}
    for i in range(num_samples):
        for kind in kinds:
            for ranks in counts:
                parts, sent[kind, ranks] = bench.sample(kind, ranks, processors, job_first=i % 2 == 0)
                samples.setdefault((kind, ranks), []).append(parts)
                print(f"sample {i + 1} of {num_samples}: {kind}, {ranks} ranks: {parts.ratio:.3f}", file=sys.stderr,
                      flush=True)
    print(f"{'kind':<5}{'ranks':>6}{'step s':>9}{'work s':>9}{'idle s':>9}{'exchange':>10}{'ratio':>8}{'least':>8}"
          f"{'most':>8}{'work and idle':>14}")
    rows = [row_of(*key, of_key, sent[key]) for key, of_key in samples.items()]
    print("\n".join(map(text_of, rows)))
    return rows


def verdict(rows):
    """Says how the ratios stand to what is asked for."""
    largest = max(rows, key=lambda row: row["ratio"])
    lines = [f"largest ratio: {largest['ratio']:.3f} ({largest['kind']}, {largest['ranks']} ranks), "
             f"at most {MOST_RATIO}"]
    lines += [f"two stages, {MICRO_BATCHES} micro-batches: {row['ratio']:.3f}, at most {MOST_RATIO_OF_TWO_STAGES}"
              for row in rows if (row["kind"], row["ranks"]) == ("pp", 2)]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog="gemini-bench weak-scaling", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS), help="%(default)s")
    parser.add_argument("--ranks", default="1,2,4,8", help="%(default)s")
    parser.add_argument("--samples", type=int, default=5, help="%(default)s")
    parser.add_argument("--size", choices=SIZES, default="full", help="tiny: for a test of this program")
    parser.add_argument("--train", type=pathlib.Path, required=True, help="the program gemini-train")
    parser.add_argument("--mpirun", default="mpirun", help="the program that starts ranks")
    arguments = parser.parse_args()
    kinds = arguments.kinds.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        parser.error(f"--kinds: there is no {', '.join(unknown)}, only {', '.join(KINDS)}")
    try:
        counts = [int(count) for count in arguments.ranks.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        parser.error(f"--ranks {arguments.ranks}: write numbers of ranks, each 1 or more, as 1,2,4")
    if arguments.samples < 1:
        parser.error(f"--samples {arguments.samples}: take one or more")
    processors = len(os.sched_getaffinity(0))
    try:
        # Beside the programs and not in /tmp, which may be memory.
        with tempfile.TemporaryDirectory(prefix="weak-", dir=arguments.train.resolve().parent.parent) as folder:
            bench = Bench(arguments.train.resolve(), arguments.mpirun, pathlib.Path(folder), SIZES[arguments.size])
            rows = measure(bench, kinds, counts, arguments.samples, processors)
    except (BenchError, OSError, subprocess.TimeoutExpired) as error:
        print(f"gemini-bench weak-scaling: {error}", file=sys.stderr)
        return 1
    print(verdict(rows))
    print(json.dumps({"processors": processors, "samples": arguments.samples, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
