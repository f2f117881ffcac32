#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gemini-train by ranks that exchange by NCCL: with exact sums they end with the bytes of MPI's, however they were launched.

GEMINI_PROCESS_NCCL is a library in NCCL's place, by which processes exchange between CPUs (process_nccl.cc).
"""
import concurrent.futures
import os
import subprocess
import unittest

from nccl_job_test import agents_store, variables
from ranks_program import TIED, TIMEOUT_S, RanksTestCase, command, run_launched
from train_program import BIN, arguments, steps

LIBRARY = os.environ.get("GEMINI_PROCESS_NCCL", "")
BY_NCCL = {"transport": "nccl", "exact": True}


def keys_by_nccl(**keys):
    """Those of MPI's run, and how it is done by NCCL. None leaves one out."""
    return {key: value for key, value in {**BY_NCCL, **keys, "log_level": "info"}.items() if value is not None}


def with_library(words):
    """A command of mpirun whose ranks, and not mpirun itself, have the library."""
    words = list(words)
    at = words.index(BIN / "gemini-train")
    words[at:at] = ["env", f"GEMINI_NCCL_LIBRARY={LIBRARY}"]
    return words


class NcclTrainingTest(RanksTestCase):
    def by_nccl(self, num_ranks, name, **keys):
        output = self.directory / name
        result = run_launched(with_library(command(num_ranks, keys_by_nccl(output=output, **keys))))
        self.assertEqual(result.returncode, 0, f"{name}: {result.stderr}\n{result.stdout}")
        self.assertIn("rehearsed a step", result.stderr)  # Which is no step: the bytes below are of those alone.
        return output

    def by_torchrun(self, num_ranks, name, **keys):
        """Launched as torchrun does, with its store."""
        output = self.directory / name

        def run_rank(rank):
            return subprocess.run([BIN / "gemini-train", *arguments(keys_by_nccl(output=output, **keys))],
                                  capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL,
                                  env={**os.environ, **{key: str(value) for key, value in variables(
                                      rank, num_ranks, GEMINI_NCCL_LIBRARY=LIBRARY, **store).items()}})

        with agents_store() as store, concurrent.futures.ThreadPoolExecutor() as pool:
            results = list(pool.map(run_rank, range(num_ranks)))
        self.assertEqual([result.returncode for result in results], [0] * num_ranks,
                         "".join(result.stderr for result in results))
        return output

    def test_exact_sums_leave_the_bytes_of_mpis(self):
        self.all_leave_the_bytes_of_mpis(
            ("shards", 2, {"zero": 3, "gather_ahead": 1}),
            ("three", 3, {"zero": 2}),
            ("replicas", 2, {"zero": 0, "precision": "bf16", "model": TIED}))

    def test_so_do_those_of_ranks_that_share_layers_sequences_or_stages(self):
        self.all_leave_the_bytes_of_mpis(
            ("line", 2, {"tensor": "1d", "sequence_parallel": "megatron"}),
            ("ring", 2, {"sequence_parallel": "ring"}),
            ("pipeline", 2, {"pipeline": 2, "accumulate": 4, "pipeline_schedule": "interleaved",
                             "pipeline_chunks": 2}))

    def all_leave_the_bytes_of_mpis(self, *meshes):
        for name, num_ranks, keys in meshes:
            with self.subTest(name):
                keys = self.keys(**{"steps": 4, "eval_every": 3, **keys})
                mpi = self.ranks(num_ranks, f"{name}_mpi", **keys)
                self.assert_same_end(mpi, self.by_nccl(num_ranks, f"{name}_nccl", **keys))

    def test_torchruns_ranks_train_as_mpiruns_do(self):
        keys = self.keys(steps=4, eval_every=3, tensor="1d")
        mpi = self.ranks(2, "mpi", **keys)
        self.assert_same_end(mpi, self.by_torchrun(2, "torchrun", **keys))

    def test_nccls_own_sums_are_not_exact(self):
        keys = self.keys(steps=4, eval_every=0)
        exact, own = (steps(self.by_nccl(3, name, **{**keys, "exact": is_exact}))
                      for name, is_exact in (("exact", True), ("own", None)))
        self.assertNotEqual([line["grad_norm"] for line in exact], [line["grad_norm"] for line in own])
        for one, other in zip(exact, own):
            self.assertAlmostEqual(one["loss"], other["loss"], delta=1e-5)

    def test_what_is_sent_is_counted_as_mpis(self):
        keys = self.keys(steps=2, eval_every=0)
        mpi, nccl = steps(self.ranks(2, "mpi", **keys)), steps(self.by_nccl(2, "nccl", **keys))
        self.assertEqual([line["sent"] for line in mpi], [line["sent"] for line in nccl])

    def test_a_rank_that_dies_ends_all_and_the_next_run_goes_on(self):
        keys = self.keys(steps=40, save_every=5, eval_every=0, collective_timeout=5)
        through = self.ranks(2, "through", **keys)
        process = self.begun(with_library(command(2, keys_by_nccl(output=self.directory / "killed", **keys))))
        self.wait_for_steps(process, "killed", 12)
        self.check_a_rank_that_dies(process, "killed", 1)
        result = run_launched(with_library(command(2, {"output": self.directory / "killed", "resume": True})))
        self.assertEqual(result.returncode, 0, result.stderr)
        for file in ("model.safetensors", "optimizer.safetensors"):
            self.assert_same_file(through / "latest" / file, self.directory / "killed" / "latest" / file)


if __name__ == "__main__":
    unittest.main()
