#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`memstat trace` of a gemini-train that runs over a geminid."""
import collections
import json
import pathlib
import subprocess
import sys
import unittest

from train_program import BIN, MIB, TrainTest, parameter_bytes

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import live_training

LANES = {"operator", "fetch", "evict", "update", "nvme read", "nvme write", "device update"}


class Process:
    """One process of a trace file."""

    def __init__(self, events, name):
        pids = [event["pid"] for event in events
                if event["name"] == "process_name" and event["args"]["name"] == name]
        assert len(pids) == 1, f"{len(pids)} processes '{name}'"
        own = [event for event in events if event["pid"] == pids[0]]
        self.rows = {event["tid"]: event["args"]["name"] for event in own
                     if event["name"] == "thread_name"}
        self.spans = [event for event in own if event["ph"] == "X"]
        self.counters = [event for event in own if event["ph"] == "C"]

    def lane(self, lane, waits=False):
        return [event for event in self.spans if self.rows[event["tid"]] == lane
                and event["name"].startswith("wait: ") == waits]

    def moved(self, lane):
        return sum(event["args"]["bytes"] for event in self.lane(lane))


class MemstatTraceTest(TrainTest):
    def entered(self, context):
        self.addCleanup(context.__exit__)
        return context.__enter__()

    def live(self, **keys):
        self.daemon = self.entered(live_training.Daemon(BIN, self.directory, 2 * MIB, 64 * MIB))
        keys = self.keys(steps=1_000_000, threads=1, daemon=self.daemon.socket, chunk_size="64KiB",
                         device_memory=2 * MIB, host_memory=64 * MIB, recompute=True,
                         output=self.directory / "out", **keys)
        return self.entered(live_training.Training(BIN, keys))

    def memstat(self, *arguments):
        return subprocess.run([BIN / "memstat", "--socket", self.daemon.socket, *arguments],
                              capture_output=True, text=True, timeout=60)

    def trace(self, *arguments):
        output = self.directory / "trace.json"
        done = self.memstat("trace", "out", "-o", output, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(output.read_text(encoding="utf-8"))["traceEvents"], done.stdout

    def assert_rows_do_not_overlap(self, process):
        ends = {}
        for event in sorted(process.spans, key=lambda event: event["ts"]):
            # To the microsecond's thousandth, in which the file is.
            self.assertGreaterEqual(event["ts"] + 2e-3, ends.get(event["tid"], 0.0), event)
            ends[event["tid"]] = event["ts"] + event["dur"]

    def test_the_last_round_lies_beside_what_its_plan_foretold(self):
        job = self.live(device_bandwidth="32MiB/s")
        job.wait_for_step(6)
        events, said = self.trace()
        actual, planned = Process(events, "actual"), Process(events, "planned")
        self.assertIn("1 round of out", said)
        self.assertIn("the plan is made by", said)
        for process in (actual, planned):
            self.assertEqual(set(process.rows.values()), LANES)
            self.assert_rows_do_not_overlap(process)
            names = [event["name"] for event in process.lane("operator")]
            self.assertEqual(names, [f"operator {i}" for i in range(len(names))])
            self.assertEqual(len(process.counters), len(names))
            self.assertTrue(process.lane("fetch") and process.lane("evict"))
            most = max(event["args"]["bytes"] for event in process.counters)
            self.assertTrue(0 < most <= 2 * MIB, most)
        self.assertEqual(len(actual.lane("operator")), len(planned.lane("operator")))
        self.assertTrue(planned.lane("update"))
        # At such a bandwidth the link is what a step waits for, and both say so. One wait for room may be
        # the longest of a round: what makes room goes over the link, too.
        for process in (actual, planned):
            waits = collections.Counter()
            for event in process.lane("operator", waits=True):
                waits[event["name"]] += event["dur"]
            self.assertGreater(waits["wait: transfer"], 0.6 * sum(waits.values()), waits)
        # A planned round moves what was foretold. Gradients leave, that of the tied table twice, or what
        # was updated by them on DEVICE.
        for lane in ("fetch", "evict"):
            self.assertAlmostEqual(actual.moved(lane) / planned.moved(lane), 1.0, delta=0.1)
        self.assertGreater(actual.moved("evict") / parameter_bytes("gpt2"), 0.9)

        # More rounds, in one file.
        job.wait_for_step(8)
        events, said = self.trace("--rounds", "2")
        self.assertIn("2 rounds of out", said)
        both = Process(events, "actual")
        self.assertEqual(len(both.lane("operator")), 2 * len(actual.lane("operator")))
        # Those of a step may have ended before the next one's first operator, and are between two rounds then.
        self.assertTrue(both.lane("update"))

    def test_without_a_plan_there_is_what_happened(self):
        job = self.live(policy="online", device_bandwidth="32MiB/s")
        job.wait_for_step(3)
        events, said = self.trace()
        self.assertIn("no plan was made", said)
        actual = Process(events, "actual")
        self.assert_rows_do_not_overlap(actual)
        waits = actual.lane("operator", waits=True)
        # Gradients wait for the link too, allocations for room.
        self.assertIn("wait: online", {event["name"] for event in waits})
        self.assertNotIn("planned", [event["args"]["name"] for event in events
                                     if event["name"] == "process_name"])
        done = self.memstat("trace", "out", "-o", self.directory / "no", "--phase", "eval")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no plan was made for phase 'eval'", done.stderr)

    def test_what_cannot_be_shown_is_told_and_leaves_the_file_alone(self):
        job = self.live()
        job.wait_for_step(1)
        file = self.directory / "kept.json"
        file.write_text("kept", encoding="utf-8")
        done = self.memstat("trace", "nobody", "-o", file)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no space 'nobody'", done.stderr)
        self.assertIn("open are: out", done.stderr)
        self.assertEqual(file.read_text(encoding="utf-8"), "kept")
        done = self.memstat("trace", "out", "-o", self.directory / "missing" / "trace.json")
        self.assertEqual(done.returncode, 1)
        self.assertIn("missing", done.stderr)
        self.assertEqual(self.memstat("trace", "out").returncode, 2)
        self.assertEqual(self.memstat("trace", "out", "-o", file, "--rounds", "0").returncode, 2)
        self.assertEqual(sorted(path.name for path in self.directory.glob("*.partial")), [])


if __name__ == "__main__":
    unittest.main()
