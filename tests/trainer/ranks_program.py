# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end tests of gemini-train by mpirun share: running several ranks, and reading what they left."""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

import numpy

import train_program
from train_program import BIN, MODELS, arguments, metrics, tensors

MPIRUN = [os.environ.get("GEMINI_MPIRUN", "mpirun"), "--oversubscribe", "--bind-to", "none",
          # ob1: else Open MPI looks for InfiniBand adapters for 0.2 s a run.
          "--mca", "mpi_yield_when_idle", "1", "--mca", "pml", "ob1"]
SESSIONS = tempfile.TemporaryDirectory(prefix="gemini-ranks-")
TIMEOUT_S = 120
PRELOADED = os.environ.get("GEMINI_KILL_AT_COLLECTIVE", "")  # kill_at_collective.so.
# Adam makes steps of the learning rate from rounding alone where gradients are near zero, unless this is larger.
EPSILON = 1e-3
CHUNK = 16 * train_program.KIB  # A small one: the floor of DEVICE is then what operators need.
MOST_TRIES = 40  # A step names what one allocation lacked, and on a ring meets the next one.
# Weights of the head are of their own, so that gradients are added in one order by one process and by ranks.
UNTIED, TIED = "llama", "gpt2"


def command(num_ranks, keys):
    return [*MPIRUN, "-n", str(num_ranks), BIN / "gemini-train", *arguments(keys)]


def environment():
    """The variables of one run of mpirun.

    Its session has a folder of its own: runs side by side share a folder by default, and one that ends removes it
    while another starts, which then fails.
    """
    return {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_orte_tmpdir_base": tempfile.mkdtemp(dir=SESSIONS.name)}


def run_launched(words):
    """Runs a command of mpirun to its end."""
    return subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL,
                          env=environment())


def run_ranks(num_ranks, **keys):
    return run_launched(command(num_ranks, keys))


class RanksTestCase(train_program.TrainTest):
    def keys(self, model=UNTIED, **more):
        return super().keys(model, **{"steps": 6, "eval_data": MODELS / "eval.npy", "eval_every": 4, **more})

    def ranks(self, num_ranks, name, **keys):
        """Runs to a successful end and returns the output directory."""
        output = self.directory / name
        result = run_ranks(num_ranks, output=output, **keys)
        self.assertEqual(result.returncode, 0, f"{name}: {result.stderr}\n{result.stdout}")
        return output

    def run_preloaded(self, num_ranks, output, **keys):
        """Runs with kill_at_collective.so, to which keys in capitals are variables."""
        library = self.directory / "kill_at_collective.so"
        with contextlib.suppress(FileExistsError):
            library.symlink_to(PRELOADED)  # LD_PRELOAD takes no path with a space.
        variables = {"LD_PRELOAD": str(library), **{key: str(keys.pop(key)) for key in list(keys) if key.isupper()}}
        words = command(num_ranks, self.keys(output=output, **keys))
        # By env, for mpirun itself is not to have them.
        at = words.index(BIN / "gemini-train")
        words[at:at] = ["env", *(f"{key}={value}" for key, value in variables.items())]
        return run_launched(words)

    def all_refused(self, status, cases):
        """refused(), side by side, of (number of ranks, text, keys): mpirun ends slowly."""
        with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
            outputs = [self.directory / f"refused_{i}" for i in range(len(cases))]
            runs = [pool.submit(run_ranks, num_ranks, output=output, **keys)
                    for output, (num_ranks, _, keys) in zip(outputs, cases)]
        for output, (_, text, _), run in zip(outputs, cases, runs):
            with self.subTest(text):
                self.assert_refused(run.result(), status, text, output)

    def refused(self, num_ranks, status, text, **keys):
        """One message, from one rank, and no output."""
        output = self.directory / "refused"
        return self.assert_refused(run_ranks(num_ranks, output=output, **keys), status, text, output)

    def assert_refused(self, result, status, text, output):
        said = self.said(result.stderr)
        self.assertEqual((result.returncode, len(said)), (status, 1), result.stderr)
        self.assertIn(text, said[0])
        if status != 75:  # Else the first rank may have ended in the middle of what it did.
            self.assertFalse(output.exists())
        return said[0]

    def assert_same_end(self, one, other):
        for file in ("model.safetensors", "optimizer.safetensors", "trainer_state.json"):
            self.assert_same_file(one / "latest" / file, other / "latest" / file)
        of_step = [[(line["step"], line.get("loss"), line.get("grad_norm"), line.get("eval_loss"))
                    for line in metrics(output)] for output in (one, other)]
        self.assertEqual(*of_step)

    def started(self, num_ranks, name, **keys):
        return self.begun(command(num_ranks, self.keys(output=self.directory / name, **keys)))

    def begun(self, words):
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   stdin=subprocess.DEVNULL, env=environment())
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.stdout.close)
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        """Ends what a failed case left running: mpirun ends its ranks, stopped ones too."""
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=30)

    def wait_for_steps(self, process, name, count):
        path = self.directory / name / "metrics.jsonl"
        while not path.exists() or len(path.read_text().splitlines()) < count:
            try:
                process.wait(timeout=0.02)
                self.fail(f"it ended before: {process.stderr.read()}")
            except subprocess.TimeoutExpired:
                pass

    def wait_until_gone(self, ranks):
        end = time.monotonic() + 10
        while any(pathlib.Path(f"/proc/{pid}").exists() for pid in ranks.values()):
            self.assertLess(time.monotonic(), end, ranks)

    def wait_until_free(self, daemon):
        """Returns when memstat shows all of the daemon's memory free, with the seconds until it was asked."""
        begin = time.monotonic()
        end = begin + 10
        while True:
            asked = time.monotonic() - begin
            shown = subprocess.run([BIN / "memstat", "--socket", daemon.socket, "--json"], capture_output=True,
                                   text=True, timeout=20, check=True)
            tiers = json.loads(shown.stdout)["tiers"].values()
            if all(tier["free_bytes"] == tier["capacity_bytes"] for tier in tiers):
                return asked
            self.assertLess(time.monotonic(), end, shown.stdout)

    def said(self, errors):
        return [line for line in errors.splitlines() if line.startswith("gemini-train: ")]

    def check_a_rank_that_fails_alone(self, num_ranks, failing, model=MODELS / UNTIED, data=MODELS / "tokens.npy",
                                      **keys):
        folders = [self.directory / name for name in ("others", "its_own")]
        for folder in folders:
            folder.mkdir()
            shutil.copy(data, folder)
        keys = self.keys(model=model.resolve(), data=f"/proc/self/cwd/{data.name}", output=self.directory / "out",
                         **{"steps": 100000, "eval_every": 0, **keys})
        keys.pop("eval_data", None)
        program = [BIN.resolve() / "gemini-train", *arguments(keys)]
        launch = []
        for count, folder in ((failing, folders[0]), (1, folders[1]), (num_ranks - failing - 1, folders[0])):
            if count > 0:
                launch += [":", "-n", str(count), "-wdir", folder, *program]
        process = self.begun([*MPIRUN, *launch[1:]])
        self.wait_for_steps(process, "out", 3)
        # One rank alone loses its data: the path is another file there.
        os.truncate(folders[1] / data.name, 1000)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 75, errors)
        self.assertEqual(len(self.said(errors)), 1, errors)
        self.assertRegex(self.said(errors)[0], f"rank {failing}: step [0-9]+: .*{data.name}")

    def check_a_rank_that_dies(self, process, name, rank):
        """Kills it behind some steps: the others end, and at most one of them says why."""
        self.wait_for_steps(process, name, 3)
        ranks = self.children(process)
        os.kill(ranks[rank], signal.SIGKILL)
        _, errors = process.communicate(timeout=10)
        self.assertIn(process.returncode, (75, 128 + signal.SIGKILL), errors)
        self.assertLessEqual(len(self.said(errors)), 1, errors)
        self.wait_until_gone(ranks)

    def check_the_next_run_goes_on(self, num_ranks, rank, **keys):
        """A run of which a rank dies ends, behind --resume, with the bytes of one that went through."""
        keys = {"steps": 40, "save_every": 5, "eval_every": 0, **keys}
        through = self.started(num_ranks, "through", **keys)
        process = self.started(num_ranks, "killed", **keys)
        self.wait_for_steps(process, "killed", 12)
        self.check_a_rank_that_dies(process, "killed", rank)
        result = run_ranks(num_ranks, output=self.directory / "killed", resume=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        _, errors = through.communicate(timeout=TIMEOUT_S)
        self.assertEqual(through.returncode, 0, errors)
        for file in ("model.safetensors", "optimizer.safetensors"):
            self.assert_same_file(*(self.directory / name / "latest" / file for name in ("through", "killed")))

    def check_a_rank_that_stops(self, num_ranks, stopped, **keys):
        """The others end behind the time for a collective, and one of them says who stopped."""
        name = f"stopped_{stopped}"
        process = self.started(num_ranks, name, steps=100000, eval_every=0, collective_timeout=5, **keys)
        self.wait_for_steps(process, name, 3)
        ranks = self.children(process)
        os.kill(ranks[stopped], signal.SIGSTOP)
        start = time.monotonic()
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 75, errors)
        self.assertLess(time.monotonic() - start, 5 + 10)
        self.assertEqual(len(self.said(errors)), 1, errors)
        self.assertRegex(self.said(errors)[0], f"rank {stopped} has not|waits for rank {stopped} ")
        self.wait_until_gone(ranks)

    def children(self, process):
        """The ranks' process ids, by rank."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
                status = (entry / "stat").read_text()
            except (OSError, NotADirectoryError):
                continue
            if int(status.rsplit(")", 1)[1].split()[1]) != process.pid:
                continue
            for variable in environment:
                if variable.startswith(b"OMPI_COMM_WORLD_RANK="):
                    found[int(variable.split(b"=")[1])] = int(entry.name)
        return found


class SharingRanksTestCase(RanksTestCase):
    """Of ranks that share layers or sequences: what they compute differs from one process's by rounding."""

    def keys(self, model=UNTIED, **more):
        short = {"steps": 4, "eval_every": 3, "eval_data": MODELS / "eval_short.npy"}
        return super().keys(model, **{"epsilon": EPSILON, **short, **more})

    def assert_close(self, one, other, loss=1e-5, norm=1e-5, parameters=1e-4):
        """Relative losses and norms, and absolute parameters of fp32."""
        lines, others = metrics(one), metrics(other)
        self.assertEqual(len(lines), len(others))
        for line, same in zip(lines, others):
            for key, relative in (("loss", loss), ("eval_loss", loss), ("grad_norm", norm)):
                self.assertAlmostEqual(line.get(key, 0), same.get(key, 0), delta=relative * line.get(key, 0), msg=key)
        values, same = (tensors(output / "latest" / "model.safetensors") for output in (one, other))
        self.assertEqual(values.keys(), same.keys())
        for name, (dtype, shape, data) in values.items():
            self.assertEqual((dtype, shape), same[name][:2], name)
            if dtype == "F32":
                difference = numpy.frombuffer(data, "<f4") - numpy.frombuffer(same[name][2], "<f4")
                self.assertLess(abs(difference).max(), parameters, name)

    def check_no_more_is_foretold(self, num_ranks, name, **keys):
        """Returns the bytes of DEVICE below which a run is refused before its first step: no more than a step takes
        where there is plenty."""
        said = self.refused(num_ranks, 1, "raise --device-memory", device_memory="64KiB", **keys)
        self.assertRegex(said, "too small: (forward|backward|adding up the gradients) of [a-z0-9_. ]+ needs")
        known = int(re.search(r"\((\d+) bytes\) together", said)[1])
        took = train_program.steps(self.ranks(num_ranks, name, **keys))[-1]
        self.assertLessEqual(known, took["non_model_peak_bytes"] + took["pinned_peak_bytes"])
        return known

    def train_in_little(self, num_ranks, name, room, **keys):
        """Trains in so much more DEVICE than the least that the ranks name, before the first step or within one: what
        is foretold may be too little. Returns the output directory."""
        budget = CHUNK
        for _ in range(MOST_TRIES):
            result = run_ranks(num_ranks, output=self.directory / name, overwrite=True, device_memory=budget, **keys)
            if result.returncode == 0:
                break
            budget = self.named_bytes(result) + room
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.directory / name

    def check_beside_ranks_that_share_nothing(self, sharing, cases, num_apart=2):
        for name, (bars, keys) in cases.items():
            with self.subTest(name):
                apart = self.ranks(num_apart, f"apart_{name}", **self.keys(**keys))
                shared = self.ranks(4, f"shared_{name}", **sharing, **self.keys(**keys))
                self.assert_close(apart, shared, **bars)

    def check_other_meshes_go_on(self, num_ranks, sharing, cases):
        """Other ranks resume what these have begun, and end where these do, those like them with the same bits."""
        more = {"schedule": "constant", "steps": 3}
        first = self.ranks(num_ranks, "first", **sharing, **self.keys(**more))
        through = self.ranks(num_ranks, "through", **sharing, **self.keys(**dict(more, steps=6)))
        for name, others, keys in cases:
            with self.subTest(name):
                shutil.copytree(first, self.directory / name, symlinks=True)
                going = dict(keys, output=self.directory / name, resume=True, steps=6)
                result = run_ranks(others, **going) if others > 1 else train_program.run(**going)
                self.assertEqual(result.returncode, 0, result.stderr)
                if name == "same":
                    for file in ("model.safetensors", "optimizer.safetensors"):
                        self.assert_same_file(through / "latest" / file, self.directory / name / "latest" / file)
                else:
                    self.assert_close(through, self.directory / name, loss=1e-6, parameters=2e-5)
