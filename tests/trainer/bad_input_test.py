#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Everything that a user can get wrong: a clear message, a status that is not 0, nothing half-written."""
import json
import os
import re
import resource
import shutil
import socket
import struct
import subprocess
import threading
import unittest

import numpy

import train_program
from train_program import BIN, KIB, MIB, MODELS, arguments, run

ERROR, USAGE = 1, 2


def rewrite(path, change):
    """Changes the header of a safetensors file, leaving its tensors' bytes."""
    data = path.read_bytes()
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size:])


class BadInputTest(train_program.TrainTest):
    def setUp(self):
        super().setUp()
        self.output = self.directory / "out"

    def refused(self, status, *words, **keys):
        """Runs; expects the status, all words in the message, and no trace in --output."""
        keys = self.keys(**{"steps": 3, "output": self.output, **keys})
        result = run(**keys)
        self.assert_refused(result, status, *words)
        return result

    def assert_refused(self, result, status, *words):
        self.assertEqual(result.returncode, status, result.stderr)
        message = result.stderr.strip().splitlines()
        self.assertTrue(message, "no message")
        for word in words:
            self.assertIn(word, result.stderr)
        self.assertNotIn("terminate called", result.stderr)
        self.assertNotIn("Exception raised from", result.stderr)  # A backtrace of Torch.
        self.assertFalse(self.output.exists(), "it left something behind")

    def copied_model(self):
        model = self.directory / "model"
        shutil.copytree(MODELS / "gpt2", model)
        return model

    # Models.
    def test_no_such_model(self):
        self.refused(ERROR, "nowhere", "No such file", model=self.directory / "nowhere")

    def test_a_directory_that_is_no_model(self):
        self.refused(ERROR, "config.json", model=self.directory)

    def test_a_model_type_that_is_unknown(self):
        model = self.copied_model()
        (model / "config.json").write_text('{"model_type": "mamba"}')
        self.refused(ERROR, "mamba", "gpt2", model=model)

    def test_a_truncated_safetensors_file(self):
        model = self.copied_model()
        path = model / "model.safetensors"
        os.truncate(path, path.stat().st_size - 1000)
        self.refused(ERROR, "model.safetensors", model=model)

    def test_a_safetensors_header_that_lies(self):
        def past_the_end(header):
            header["transformer.wpe.weight"]["data_offsets"][1] += 1 << 40

        def overlapping(header):
            header["transformer.wpe.weight"]["data_offsets"] = \
                header["transformer.wte.weight"]["data_offsets"]

        def another_shape(header):
            header["transformer.wpe.weight"]["shape"][0] *= 2

        for change in (past_the_end, overlapping, another_shape):
            with self.subTest(change.__name__):
                shutil.rmtree(self.directory / "model", ignore_errors=True)
                model = self.copied_model()
                rewrite(model / "model.safetensors", change)
                self.refused(ERROR, "model.safetensors", model=model)

    def test_a_safetensors_header_of_immense_length(self):
        model = self.copied_model()
        path = model / "model.safetensors"
        with open(path, "r+b") as file:
            file.write(struct.pack("<Q", 1 << 62))
        self.refused(ERROR, "model.safetensors", model=model)

    def test_a_parameter_that_is_missing(self):
        model = self.copied_model()
        rewrite(model / "model.safetensors",
                lambda header: header.update({"stranger": header.pop("transformer.wpe.weight")}))
        self.refused(ERROR, "wpe", model=model)

    # Data.
    def test_a_token_past_the_vocabulary(self):
        tokens = numpy.load(MODELS / "tokens.npy")
        tokens[777] = 512
        numpy.save(self.directory / "bad.npy", tokens)
        self.refused(ERROR, "token 512 at position 777", "vocabulary of 512",
                     data=self.directory / "bad.npy")
        self.refused(ERROR, "position 777", eval_data=self.directory / "bad.npy")

    def test_data_of_another_type_and_no_data(self):
        numpy.save(self.directory / "float.npy", numpy.zeros(1000, numpy.float32))
        self.refused(ERROR, "'<f4'", data=self.directory / "float.npy")
        self.refused(ERROR, "none.npy", data=self.directory / "none.npy")
        numpy.save(self.directory / "short.npy", numpy.zeros(31, numpy.uint16))
        self.refused(ERROR, "31 tokens", data=self.directory / "short.npy")

    def test_sequences_longer_than_the_model(self):
        self.refused(ERROR, "64 positions", sequence=65)
        self.refused(ERROR, "nothing to predict", sequence=1)

    # Configuration.
    def test_an_unknown_key_suggests_the_nearest(self):
        config = self.directory / "run.toml"
        config.write_text("batch = 2\nwarmup_stesp = 3\n")
        self.refused(USAGE, "run.toml:2", "did you mean 'warmup-steps'?", config=config)
        self.refused(USAGE, "did you mean '--device-memory'?", devicememory="64MiB")

    def test_values_out_of_range(self):
        self.refused(USAGE, "--lr", lr="-1")
        self.refused(USAGE, "--device-memory", "MiB", device_memory="64MB")
        self.refused(USAGE, "wants one of constant, linear, cosine", schedule="step")

    # Output.
    def test_an_output_that_cannot_be_written(self):
        (self.directory / "file").write_text("x")
        self.refused(ERROR, "file", output=self.directory / "file" / "below")
        self.refused(ERROR, "not a directory", output=self.directory / "file")
        result = self.refused(ERROR, "--output /proc/gemini", output="/proc/gemini/out")
        self.assertNotIn("step", result.stderr)  # Before any work.
        self.refused(ERROR, "none", metrics=self.directory / "none" / "metrics.jsonl")
        self.refused(ERROR, "file is there already", metrics=self.directory / "file")
        self.assertEqual((self.directory / "file").read_text(), "x")

    def test_an_output_that_is_not_empty(self):
        other = self.directory / "other"
        other.mkdir()
        (other / "thesis.txt").write_text("x")
        self.refused(ERROR, "thesis.txt", "--overwrite", output=other)
        self.assertEqual([path.name for path in other.iterdir()], ["thesis.txt"])

    def test_a_run_that_cannot_start_does_not_destroy_the_one_before(self):
        before = self.train("before", **self.keys(steps=2))
        saved = (before / "latest" / "model.safetensors").read_bytes()
        result = run(**self.keys(steps=2, output=before, overwrite=True, device_memory="1MiB"))
        self.assertEqual(result.returncode, ERROR)
        self.assertEqual((before / "latest" / "model.safetensors").read_bytes(), saved)

    def test_a_disk_without_room_for_the_checkpoints(self):
        small = self.directory / "small"
        small.mkdir()
        command = ["unshare", "-rm", "sh", "-c",
                   'mount -t tmpfs -o size=8m none "$1" || exit 99; shift; exec "$@"', "sh", small]
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no user namespaces here, in which to mount a small tmpfs")
        result = subprocess.run(
            [*command, BIN / "gemini-train",
             *arguments(self.keys(steps=3, threads=1, output=small / "out"))],
            capture_output=True, text=True, timeout=train_program.TIMEOUT_S, check=False)
        self.assert_refused(result, ERROR, "checkpoints of this run", "free")
        self.assertNotIn("1/3", result.stderr)  # Before step 1.

    # Budgets.
    def test_a_device_budget_below_the_floor_is_refused_before_the_first_step(self):
        least_chunk = 64 * KIB
        for more in ({"chunk_size": least_chunk}, {}, {"recompute": True}, {"precision": "bf16"},
                     {"model": MODELS / "opt", "accumulate": 2},
                     *({"policy": policy, "chunk_size": least_chunk}
                       for policy in ("online", "cpu", "cuda", "static"))):
            with self.subTest(**more):
                result = self.refused(ERROR, "DEVICE is", "raise --device-memory to at least",
                                      device_memory="300KiB", **more)
                self.assertNotIn("step 1", result.stderr)
                self.assertRegex(result.stderr, r"(forward|backward|recomputation|accumulation) of [a-z_.]+")
                floor = int(re.search(r"\((\d+) bytes\) together", result.stderr)[1])
                result = self.refused(ERROR, f"({floor} bytes)", device_memory=floor - least_chunk,
                                      **more)
                self.assertNotIn("step 1", result.stderr)
                self.train(f"at_the_floor_{len(list(self.directory.iterdir()))}",
                           **self.keys(**{"steps": 3, "device_memory": floor, **more}))

    def test_a_floor_that_is_named_in_units_is_one_that_runs(self):
        result = self.refused(ERROR, "DEVICE is", device_memory="300KiB")
        named = re.search(r"to at least ([\d.]+ [KM]iB)", result.stderr)[1]
        self.train("at_the_floor", **self.keys(steps=3, device_memory=named))

    def test_a_host_budget_that_does_not_hold_the_model(self):
        self.refused(ERROR, "HOST", host_memory="1MiB")

    def test_a_gpu_that_is_not_there(self):
        # The last one that CUDA could count, so that a machine with GPUs says the same.
        self.refused(ERROR, "cuda:2147483647", device="cuda:2147483647", device_memory="1GiB")
        self.refused(USAGE, "--device 'gpu'", "cuda:0", device="gpu")
        self.refused(USAGE, "--device-memory is missing", device="cuda:0", device_memory="auto",
                     daemon=self.directory / "geminid.sock")

    def test_an_nvme_directory_that_is_missing(self):
        self.refused(ERROR, "nowhere", nvme=[f"{self.directory}/nowhere:64MiB"])

    def test_a_full_nvme_directory(self):
        store = self.directory / "store"
        store.mkdir()
        # A limit on the size of files stands for a full disk: both fail fallocate and pwrite.
        result = subprocess.run(
            [BIN / "gemini-train",
             *arguments(self.keys(steps=3, threads=1, output=self.output, host_memory=6 * MIB,
                                  device_memory=6 * MIB,
                                  chunk_size=64 * 1024, nvme=[f"{store}:64MiB"]))],
            capture_output=True, text=True, timeout=train_program.TIMEOUT_S, check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (7 * MIB, 7 * MIB)))
        self.assert_refused(result, ERROR, "store")
        self.assertEqual(list(store.iterdir()), [])

    # Daemons.
    def test_a_daemon_that_is_not_there(self):
        self.refused(ERROR, "geminid", daemon=self.directory / "none.sock")

    def test_a_socket_path_that_is_too_long(self):
        self.refused(ERROR, "socket path", "shorter", daemon="/" + "x" * 200)

    def test_a_peer_that_talks_garbage(self):
        path = str(self.directory / "garbage.sock")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(path)
            listener.listen()

            def answer():
                peer, _ = listener.accept()
                with peer:
                    peer.recv(65536)
                    peer.send(b"\xff" * 300)

            thread = threading.Thread(target=answer)
            thread.start()
            self.refused(ERROR, "", daemon=path)
            thread.join()

    def test_a_daemon_that_has_less_than_is_asked_for(self):
        with train_program.Daemon(self.directory, "256MiB", "2MiB", "64MiB") as daemon:
            self.refused(ERROR, "HOST", "2 MiB free", daemon=daemon.socket, device_memory="64MiB")

    def test_what_cannot_be_written_is_an_error(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            for flag in ("--version", "--help"):
                ended = subprocess.run([BIN / "gemini-train", flag], stdout=full, timeout=30, check=False)
                self.assertEqual(ended.returncode, ERROR)

    # Training that goes wrong.
    def test_a_loss_that_is_not_finite_stops_with_step_and_tensor(self):
        model = self.copied_model()

        def poison(name):
            path = model / "model.safetensors"
            data = bytearray(path.read_bytes())
            size, = struct.unpack("<Q", data[:8])
            begin, _ = json.loads(data[8:8 + size])[name]["data_offsets"]
            data[8 + size + begin:8 + size + begin + 4] = struct.pack("<f", float("nan"))
            path.write_bytes(data)

        poison("transformer.h.2.mlp.c_fc.weight")
        for reference in ({}, {"reference": True}):
            self.refused(ERROR, "step 1", "loss is nan", "transformer.h.2.mlp.c_fc.weight",
                         model=model, **reference)

    def test_a_gradient_that_is_not_finite_stops_with_step_and_tensor(self):
        # A huge scale of the last norm: finite logits, a gradient that overflows fp32 on its way.
        model = self.copied_model()
        path = model / "model.safetensors"
        data = bytearray(path.read_bytes())
        size, = struct.unpack("<Q", data[:8])
        header = json.loads(data[8:8 + size])
        for name, value in (("transformer.ln_f.weight", 1e-30), ("transformer.wte.weight", 1e38)):
            begin, end = header[name]["data_offsets"]
            begin += 8 + size
            end += 8 + size
            values = numpy.frombuffer(bytes(data[begin:end]), "<f4")
            data[begin:end] = (numpy.sign(values) * value).astype("<f4").tobytes()
        path.write_bytes(data)
        for reference in ({}, {"reference": True}):
            result = self.refused(ERROR, "step 1", model=model, **reference)
            self.assertRegex(result.stderr, r"(gradient|loss).*(NaN|nan|inf)")


if __name__ == "__main__":
    unittest.main(verbosity=2)
