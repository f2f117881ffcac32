# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end tests of gemini-train share: running it, and reading what it left.

The environment names the binaries (GEMINI_BIN) and the checkpoints of make_models.py (GEMINI_MODELS).
"""
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import unittest

BIN = pathlib.Path(os.environ.get("GEMINI_BIN", "build/bin"))
MODELS = pathlib.Path(os.environ.get("GEMINI_MODELS", "build/trainer_models"))
KIB, MIB = 1 << 10, 1 << 20
TIMEOUT_S = 120


def arguments(keys):
    """{"batch": 2, "recompute": True, "nvme": [..]} as flags."""
    flags = []
    for key, value in keys.items():
        name = "--" + key.replace("_", "-")
        if value is True:
            flags.append(name)
        elif isinstance(value, list):
            for one in value:
                flags += [name, str(one)]
        else:
            flags += [name, str(value)]
    return flags


def run(**keys):
    """Runs gemini-train with one thread, so that the tests do not fight for cores."""
    keys.setdefault("threads", 1)
    return subprocess.run([BIN / "gemini-train", *arguments(keys)], capture_output=True, text=True,
                          timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)


def metrics(output):
    with open(pathlib.Path(output) / "metrics.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def steps(output):
    return [line for line in metrics(output) if "loss" in line]


def tensors(path):
    """The tensors of a safetensors file as bytes, read without any library."""
    data = pathlib.Path(path).read_bytes()
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    return {name: (entry["dtype"], entry["shape"],
                   data[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]])
            for name, entry in header.items() if name != "__metadata__"}


def parameter_bytes(model):
    return sum(len(data) for _, _, data in tensors(MODELS / model / "model.safetensors").values())


def is_tied(model):
    """Whether the head is the table of the embedding, so that files have no weight of its own."""
    return not {"lm_head.weight", "embed_out.weight"} & set(tensors(MODELS / model / "model.safetensors"))


class TrainTest(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="gemini-train-"))
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)

    def keys(self, model="gpt2", **more):
        keys = dict(model=MODELS / model, data=MODELS / "tokens.npy", batch=2, sequence=32, steps=20,
                    lr=1e-3, schedule="cosine", warmup_steps=2, log_level="warning")
        keys.update(more)
        return keys

    def train(self, name, **keys):
        """Runs to a successful end and returns the output directory."""
        output = self.directory / name
        result = run(output=output, **keys)
        self.assertEqual(result.returncode, 0, f"{name}: {result.stderr}\n{result.stdout}")
        return output

    def without_dropout(self, name, **changes):
        """A copy of a model of three layers, and its configuration: draws of dropout are not Python's."""
        model = self.directory / f"{name}_without_dropout"
        shutil.copytree(MODELS / "three_layers" / name, model)
        config = json.loads((model / "config.json").read_text())
        for key in config:
            if "drop" in key and "layerdrop" not in key:
                config[key] = 0.0
        config.update(changes)
        (model / "config.json").write_text(json.dumps(config))
        return model, config

    def named_bytes(self, refused):
        """How much DEVICE a run was refused for."""
        self.assertIn("raise --device-memory", refused.stderr)
        return int(re.search(r"\((\d+) bytes\) together", refused.stderr)[1])

    def random_tiers(self, name, draw, chunks, bytes_of_parameters):
        """Where a process that has so many parameters may keep them and how they move, but for its DEVICE."""
        placement = {"chunk_size": draw.choice(chunks),
                     "recompute": draw.random() < 0.5,
                     "policy": draw.choice(("auto", "static", "cpu", "cuda", "online"))}
        if placement["policy"] == "static":
            placement["param_fraction"] = draw.random()
            placement["optimizer_fraction"] = draw.random()
        if draw.random() < 0.7:
            store = self.directory / name
            store.mkdir()
            placement["nvme"] = [f"{store}:256MiB"]
            if draw.random() < 0.3:
                placement["optimizer_tier"] = "nvme"
            else:  # The chunks of an update and of copies under way beside a part of the model, or all of it.
                placement["host_memory"] = (28 * placement["chunk_size"]
                                            + int(bytes_of_parameters * draw.uniform(1, 7)))
        return {key: value for key, value in placement.items() if value is not False}

    def assert_same_file(self, one, other):
        """Byte equality; names the first tensors that differ."""
        if pathlib.Path(one).read_bytes() == pathlib.Path(other).read_bytes():
            return
        left, right = tensors(one), tensors(other)
        self.assertEqual(list(left), list(right))
        differ = [name for name in left if left[name] != right[name]]
        self.fail(f"{one} and {other} differ in {len(differ)} of {len(left)} tensors: {differ[:5]}")


class Daemon:
    """A geminid of its own for a `with` block, with more `flags`."""

    def __init__(self, directory, device, host, nvme, *flags):
        self.socket = pathlib.Path(directory) / "geminid" / "geminid.sock"
        store = pathlib.Path(directory) / "daemon_store"
        store.mkdir()
        self.process = subprocess.Popen(
            [BIN / "geminid", "--runtime-dir", self.socket.parent, "--state-dir",
             pathlib.Path(directory) / "daemon_state", "--device-memory", str(device),
             "--host-memory", str(host), "--nvme", f"{store}:{nvme}", *flags],
            stderr=subprocess.PIPE, text=True)
        self.log = []

    def __enter__(self):
        for line in self.process.stderr:  # Blocks until it is ready, or ends.
            self.log.append(line)
            if "ready on" in line:
                return self
        self.process.wait()
        raise RuntimeError("geminid did not start: " + "".join(self.log))

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.stderr.read()
        self.process.wait(timeout=30)
        self.process.stderr.close()
