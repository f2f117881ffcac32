# SPDX-License-Identifier: Apache-2.0
"""Kills gemini-train twenty times in the middle of its work, with a second job on the same daemon.

The literal times are lease_death_test's, which measures beside the kernel; here it is the real trainer,
seen through memstat: every byte comes back, the daemon lives, and the other job ends with the bits that
it has alone.
"""
import json
import random
import subprocess
import time
import unittest

from train_program import BIN, MIB, Daemon, TrainTest, arguments, tensors

KILLS = 20
# Long enough for any machine; the times that were measured are printed.
PATIENCE_S = 20


def status(daemon):
    shown = subprocess.run([BIN / "memstat", "--socket", daemon.socket, "--json"],
                           capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    return json.loads(shown.stdout)


def wait_for(condition):
    """Polls memstat, which is its own pause, until `condition` holds. Returns the seconds waited."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > PATIENCE_S:
            raise AssertionError(f"not within {PATIENCE_S} s")
    return time.monotonic() - start


class KillTest(TrainTest):
    def start(self, daemon, name, **keys):
        keys = self.keys(**keys, daemon=daemon.socket, space=name, output=self.directory / name,
                         device_memory="8MiB", host_memory="64MiB", threads=1)
        return subprocess.Popen([BIN / "gemini-train", *arguments(keys)], stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def finish(self, job):
        _, errors = job.communicate(timeout=300)
        self.assertEqual(job.returncode, 0, errors)

    def test_every_byte_comes_back_and_the_other_job_is_unaffected(self):
        delays = random.Random(7)
        waits = []
        with Daemon(self.directory, "64MiB", "512MiB", "64MiB") as daemon:
            survivor = self.start(daemon, "survivor", steps=150)
            wait_for(lambda: any(space["step"] > 0 for space in status(daemon)["spaces"]))
            for kill in range(KILLS):
                job = self.start(daemon, f"victim-{kill}", steps=100000)
                wait_for(lambda: any(space["name"].startswith("victim")
                                     for space in status(daemon)["spaces"]))
                try:
                    job.wait(delays.uniform(0, 0.5))
                    self.fail(f"it ended before it was killed: {job.stderr.read()}")
                except subprocess.TimeoutExpired:
                    job.kill()
                job.communicate()

                def all_free():
                    now = status(daemon)
                    others = [tenant for tenant in now["tenants"] if tenant["pid"] == job.pid]
                    return not others and now["tiers"]["HOST"]["reclaiming_bytes"] == 0

                waits.append(wait_for(all_free))
                host = status(daemon)["tiers"]["HOST"]
                self.assertEqual(host["capacity_bytes"], host["leased_bytes"] + host["free_bytes"])
                self.assertLessEqual(host["leased_bytes"], 64 * MIB)
            chunks = subprocess.run(
                [BIN / "memstat", "--socket", daemon.socket, "chunks", "survivor", "--json"],
                capture_output=True, text=True, timeout=PATIENCE_S)
            # It may have ended meanwhile: then its space is gone, and memstat says so.
            if chunks.returncode == 0:
                shown = json.loads(chunks.stdout)
                self.assertEqual([chunk["chunk"] for chunk in shown], list(range(len(shown))))
                self.assertTrue(any(chunk["state"] != "FREE" for chunk in shown))
                self.assertFalse(any("invalid" in chunk for chunk in shown))
            else:
                self.assertIn("survivor", chunks.stderr)
            self.finish(survivor)
            alone = self.start(daemon, "alone", steps=150)
            self.finish(alone)
            wait_for(lambda: not status(daemon)["tenants"])
            for tier in status(daemon)["tiers"].values():
                self.assertEqual(tier["free_bytes"], tier["capacity_bytes"])
        print(f"seconds until memstat shows all free, {KILLS} kills: "
              f"median {sorted(waits)[KILLS // 2]:.3f}, most {max(waits):.3f}")
        self.assertEqual(tensors(self.directory / "survivor/latest/model.safetensors"),
                         tensors(self.directory / "alone/latest/model.safetensors"))


if __name__ == "__main__":
    unittest.main()
