#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gemini-train by ranks that exchange by NCCL, on a machine without a GPU: how they find each other, whoever launched
them, and what they are refused, with one message."""
import concurrent.futures
import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import unittest

import torch.distributed

from ranks_program import MPIRUN, TIMEOUT_S, RanksTestCase, command, run_launched
from train_program import BIN, arguments

HAS_GPU = pathlib.Path("/dev/nvidia0").exists()
# A library in NCCL's place makes the CPU a device for NCCL. It is looked for when the ranks have found each other.
NO_LIBRARY = {"GEMINI_NCCL_LIBRARY": "/nonexistent/libnccl.so.2"}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def variables(rank, num_ranks, port, **more):
    """Those that torchrun sets."""
    return {"RANK": rank, "WORLD_SIZE": num_ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": num_ranks,
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test",
            "TORCHELASTIC_RESTART_COUNT": 0, **more}


@contextlib.contextmanager
def agents_store():
    """The store that torchrun serves, with what its ranks are told of it."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield {"port": store.port, "TORCHELASTIC_USE_AGENT_STORE": "True"}


class NcclJobTest(RanksTestCase):
    def keys(self, **more):
        return super().keys(**{"output": self.directory / "out", "device": "cuda", **more})

    def launched(self, by_rank, port, num_ranks=None, **more):
        """Runs the ranks with these keys, as torchrun does, and returns how each ended."""
        def run_rank(rank):
            set_here = variables(rank, num_ranks or len(by_rank), port, **more)
            return subprocess.run([BIN / "gemini-train", *arguments(by_rank[rank])], capture_output=True, text=True,
                                  timeout=TIMEOUT_S, stdin=subprocess.DEVNULL,
                                  env={**os.environ, **{name: str(value) for name, value in set_here.items()}})

        with concurrent.futures.ThreadPoolExecutor() as pool:
            return list(pool.map(run_rank, range(len(by_rank))))

    def assert_said_once(self, results, status, text):
        """By the first rank, and by all with one status."""
        errors = "".join(result.stderr for result in results)
        self.assertEqual([result.returncode for result in results], [status] * len(results), errors)
        self.assertEqual(len(self.said(errors)), 1, errors)
        self.assertIn(text, self.said(results[0].stderr)[0])
        self.assertNotIn("frame #", errors)  # LibTorch's backtraces.
        self.assertFalse((self.directory / "out").exists())

    def test_torchrun_on_cpus_is_refused(self):
        keys = self.keys(device="cpu")
        result = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python",
                                 BIN / "gemini-train", *arguments(keys)], capture_output=True, text=True,
                                timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)
        self.assertNotEqual(result.returncode, 0)
        said = self.said(result.stderr)
        self.assertEqual(len(said), 1, result.stderr)
        self.assertIn("add --device cuda, or use mpirun", said[0])

    @unittest.skipIf(HAS_GPU, "this machine has a GPU")
    def test_a_machine_without_a_gpu_is_named_once_whoever_launches_the_ranks(self):
        text = "--device cuda: "
        keys = self.keys()
        self.assert_said_once(self.launched([keys] * 2, free_port()), 2, text)
        with agents_store() as store:
            self.assert_said_once(self.launched([keys] * 2, **store), 2, text)
        result = run_launched(command(2, keys))
        self.assert_refused(result, 2, text, self.directory / "out")

    def test_what_to_install_is_said_once(self):
        keys = self.keys(device="cpu", transport="nccl")
        self.assert_said_once(self.launched([keys] * 3, free_port(), **NO_LIBRARY), 2, "install")
        words = command(2, keys)
        at = words.index(BIN / "gemini-train")
        words[at:at] = ["env", *(f"{name}={value}" for name, value in NO_LIBRARY.items())]
        self.assert_refused(run_launched(words), 2, "/nonexistent/libnccl.so.2", self.directory / "out")

    def test_nccl_between_cpus_and_mpi_between_gpus_are_refused(self):
        self.refused(2, 2, "--transport nccl with --device cpu",
                     **super().keys(device="cpu", transport="nccl"))
        self.refused(2, 2, "--transport mpi with --device cuda",
                     **super().keys(device="cuda", transport="mpi"))

    def test_a_rank_whose_keys_are_wrong_tells_the_others(self):
        plain = self.keys(device="cpu", transport="nccl")
        with agents_store() as store:
            results = self.launched([plain, {**plain, "lr": "fast"}], **store, **NO_LIBRARY)
        self.assert_said_once(results, 2, "rank 1: --lr")

    def test_a_rank_that_cannot_tell_the_others_says_it_itself(self):
        """Neither MPI nor a store is there. What the ranks of a machine find alike its first one says."""
        program = self.directory / "gemini-train"  # Beside no gemini_mpi.so.
        shutil.copy(BIN / "gemini-train", program)
        good = self.keys(device="cpu")
        texts = {0: "several ranks need MPI", 1: "rank 1: --lr", 2: ""}
        for rank, keys in enumerate((good, {**good, "lr": "fast"}, good)):
            where = {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in
                     (("RANK", rank), ("SIZE", 3), ("LOCAL_RANK", rank), ("LOCAL_SIZE", 3))}
            result = subprocess.run([program, *arguments(keys)], capture_output=True, text=True, timeout=TIMEOUT_S,
                                    stdin=subprocess.DEVNULL, env={**os.environ, **where})
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertEqual(len(self.said(result.stderr)), 1 if texts[rank] else 0, result.stderr)
            self.assertIn(texts[rank], result.stderr)

    def test_ranks_that_exchange_differently_are_named(self):
        one, other = (command(1, self.keys(device="cpu", transport=transport))[len(MPIRUN):]
                      for transport in ("mpi", "nccl"))
        at = other.index(BIN / "gemini-train")
        other[at:at] = ["env", *(f"{name}={value}" for name, value in NO_LIBRARY.items())]
        result = run_launched([*MPIRUN, *one, ":", *other])
        self.assert_refused(result, 2, "rank 1: it exchanges by nccl, and rank 0 by mpi", self.directory / "out")

    def test_a_rank_that_does_not_come_is_named(self):
        keys = self.keys(device="cpu", transport="nccl", collective_timeout=5)
        result, = self.launched([keys], free_port(), num_ranks=2, **NO_LIBRARY)
        self.assertEqual(result.returncode, 75, result.stderr)
        said, = self.said(result.stderr)
        self.assertIn("rank 0: for 5s rank 1 has not told which GPU it has: --collective-timeout is the limit", said)


if __name__ == "__main__":
    unittest.main()
