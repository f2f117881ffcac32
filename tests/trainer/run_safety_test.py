#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gemini-train deletes and replaces only what a run made, and what goes wrong beside training does not end it."""
import fcntl
import json
import os
import pty
import shlex
import shutil
import signal
import subprocess
import unittest

import numpy
import safetensors.numpy

import train_program
from train_program import MODELS, metrics, run, steps


class RunSafetyTest(train_program.TrainTest):
    def start(self, **keys):
        return subprocess.Popen(
            [train_program.BIN / "gemini-train", *train_program.arguments(dict(keys, threads=1))],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait_for(self, process, path):
        while not path.exists():
            try:
                process.wait(timeout=0.02)
                return
            except subprocess.TimeoutExpired:
                pass

    def state(self, output):
        return json.loads((output / "latest" / "trainer_state.json").read_text())

    def files(self, directory):
        return {str(path): path.stat().st_mtime_ns for path in directory.rglob("*")}

    def test_what_a_run_reads_is_not_in_the_output_that_it_clears(self):
        output = self.train("out", **self.keys(steps=2))
        shutil.copy(MODELS / "tokens.npy", output / "tokens.npy")
        before = self.files(output)
        link = self.directory / "link"
        link.symlink_to(output)
        for key, path in {"model": output / "latest", "data": output / "tokens.npy",
                          "eval_data": link / "tokens.npy"}.items():
            for target in (output, f"{output}/", link):
                with self.subTest(key=key, output=str(target)):
                    keys = self.keys(steps=2, overwrite=True, output=target)
                    keys[key] = path
                    result = run(**keys)
                    self.assertEqual(result.returncode, 1, result.stderr)
                    self.assertIn(f"--{key.replace('_', '-')} {path} lies in --output", result.stderr)
                    self.assertEqual(self.files(output), before)
        # So are files that a model's directory links to, and data that --metrics would empty.
        linked = self.directory / "linked"
        linked.mkdir()
        for file in (output / "latest").iterdir():
            (linked / file.name).symlink_to(file.resolve())
        result = run(**dict(self.keys(steps=2, overwrite=True, output=output), model=linked))
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stderr, rf"--model {linked}/\S+ lies in --output")
        copied = self.directory / "tokens.npy"
        shutil.copy(MODELS / "tokens.npy", copied)
        result = run(**dict(self.keys(steps=2, overwrite=True, output=output), data=copied, metrics=copied))
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn(f"--data {copied} is the file that --metrics writes, too", result.stderr)
        self.assertEqual(copied.read_bytes(), (MODELS / "tokens.npy").read_bytes())
        self.assertEqual(self.files(output), before)
        # Beside it, with a name that begins alike, nothing is refused, nor are metrics in the model's folder.
        shutil.copytree(output / "latest", self.directory / "out-model")
        kept = self.directory / "out-model/metrics.jsonl"
        keys = dict(self.keys(steps=2, overwrite=True, output=output), model=kept.parent, metrics=kept)
        for more in (keys, dict(output=output, resume=True, steps=3)):
            result = run(**more)
            self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(kept.read_text().splitlines()), 3)

    def test_metrics_replace_nothing_that_another_wrote(self):
        other = self.train("other", **self.keys(steps=2))
        output = self.train("out", **self.keys(steps=2))
        note = self.directory / "note"
        note.write_text("buy milk\n")
        before = [self.files(output), self.files(other)]
        for path, says in ((note, "no run wrote its line 1"),
                           (other / "metrics.jsonl", "lies in the folder of another run")):
            for keys in (self.keys(steps=2, overwrite=True, output=output), dict(output=output, resume=True, steps=3)):
                with self.subTest(says, resume=keys.get("resume", False)):
                    result = run(**dict(keys, metrics=path))
                    self.assertEqual(result.returncode, 1, result.stderr)
                    self.assertIn(says, result.stderr)
                    self.assertEqual([self.files(output), self.files(other)], before)
                    self.assertEqual(note.read_text(), "buy milk\n")

    def test_an_interrupted_evaluation_is_made_behind_the_resume(self):
        keys = self.keys(steps=40, eval_every=1)
        output = self.directory / "out"
        process = self.start(**keys, eval_data=MODELS / "eval.npy", output=output)
        self.wait_for(process, output / "metrics.jsonl")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=train_program.TIMEOUT_S)
        self.assertEqual(process.returncode, 130, errors)
        result = run(output=output, resume=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        evaluated = [line["step"] for line in metrics(output) if "eval_loss" in line]
        self.assertEqual(evaluated, list(range(1, 41)))

    def test_a_run_killed_in_its_last_evaluation_evaluates_when_it_is_resumed(self):
        output = self.train("out", **self.keys(steps=4, save_every=4), eval_data=MODELS / "eval.npy")
        lines = (output / "metrics.jsonl").read_text().splitlines(keepends=True)
        self.assertIn("eval_loss", lines[-1])
        (output / "metrics.jsonl").write_text("".join(lines[:-1]))
        state = self.state(output)
        self.assertEqual(state["evaluated_step"], 4)
        (output / "latest" / "trainer_state.json").write_text(json.dumps({**state, "evaluated_step": 0}))
        result = run(output=output, resume=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual((output / "metrics.jsonl").read_text(), "".join(lines))
        self.assertEqual(self.state(output), state)
        losses = [line["loss"] for line in steps(output)]
        self.assertIn(f"Loss         {losses[0]:.4f} at step 1, {losses[-1]:.4f} at the end", result.stdout)

    def test_what_was_trained_is_saved_before_it_is_evaluated(self):
        output, data = self.directory / "out", self.directory / "eval.npy"
        shutil.copy(MODELS / "eval.npy", data)
        process = self.start(**self.keys(steps=300), eval_data=data, output=output)
        self.wait_for(process, output / "metrics.jsonl")
        os.truncate(data, 1000)
        _, errors = process.communicate(timeout=train_program.TIMEOUT_S)
        self.assertEqual(process.returncode, 1, errors)
        self.assertIn("step 300: ", errors)
        self.assertIn(data.name, errors)
        self.assertEqual(self.state(output)["step"], 300)
        shutil.copy(MODELS / "eval.npy", data)
        result = run(output=output, resume=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("eval_loss", metrics(output)[-1])
        self.assertEqual(self.state(output)["evaluated_step"], 300)

    def test_saving_nothing_is_of_one_call(self):
        output = self.train("out", **self.keys(steps=2))
        for more, saved in ({"steps": 3, "no_save": True}, 2), ({"steps": 4}, 4):
            result = run(output=output, resume=True, **more)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(self.state(output)["step"], saved)

    def test_an_overwriting_run_that_did_nothing_recommends_no_other_runs_checkpoint(self):
        output = self.train("out", **self.keys(steps=2))
        broken = self.directory / "broken"
        shutil.copytree(output / "latest", broken)
        tensors = safetensors.numpy.load_file(broken / "model.safetensors")
        tensors = {name: numpy.full_like(tensor, numpy.nan) for name, tensor in tensors.items()}
        safetensors.numpy.save_file(tensors, broken / "model.safetensors")
        result = run(**dict(self.keys(steps=2), model=broken, output=output, overwrite=True))
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertNotIn("--resume goes on", result.stderr)
        self.assertEqual(self.state(output)["step"], 2)

    def test_an_evaluation_behind_its_save_is_kept_and_made_once(self):
        output = self.train("out", **self.keys(steps=3, save_every=3), eval_data=MODELS / "eval.npy")
        lines = (output / "metrics.jsonl").read_text()
        self.assertIn("eval_loss", lines.splitlines()[-1])
        result = run(output=output, resume=True, log_level="info")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("eval loss", result.stderr)
        self.assertEqual((output / "metrics.jsonl").read_text(), lines)
        result = run(output=output, resume=True, steps=6)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue((output / "metrics.jsonl").read_text().startswith(lines))
        evaluated = [line["step"] for line in metrics(output) if "eval_loss" in line]
        self.assertEqual(evaluated, [3, 6])

    def test_a_daemon_that_dies_costs_no_step(self):
        keys = self.keys(steps=100000, schedule="constant", warmup_steps=0)
        keys.update(device_memory="8MiB", host_memory="64MiB")
        output = self.directory / "out"
        with train_program.Daemon(self.directory, "64MiB", "512MiB", "64MiB") as daemon:
            process = self.start(**keys, daemon=daemon.socket, output=output)
            self.wait_for(process, output / "metrics.jsonl")
            daemon.process.kill()
            _, errors = process.communicate(timeout=train_program.TIMEOUT_S)
        self.assertEqual(process.returncode, 1, errors)
        self.assertIn("the server is gone", errors)
        done = self.state(output)["step"]
        self.assertEqual(steps(output)[-1]["step"], done)
        self.assertIn(f"--resume goes on from {output}/checkpoint-{done}", errors)
        through = self.train("through", **dict(keys, steps=done))
        for file in ("model.safetensors", "optimizer.safetensors"):
            self.assert_same_file(through / "latest" / file, output / "latest" / file)

    def test_a_closed_terminal_saves(self):
        output = self.directory / "out"
        process = self.start(**self.keys(steps=100000), output=output)
        self.wait_for(process, output / "metrics.jsonl")
        process.send_signal(signal.SIGHUP)
        _, errors = process.communicate(timeout=train_program.TIMEOUT_S)
        self.assertEqual(process.returncode, 129, errors)
        state = json.loads((output / "latest" / "trainer_state.json").read_text())
        self.assertEqual(state["step"], steps(output)[-1]["step"])

    def wait_for_end(self, output):
        """Returns when no gemini-train holds `output` any more."""
        directory = os.open(output, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(directory, fcntl.LOCK_EX)
        os.close(directory)

    def test_a_terminal_that_closes_under_a_shell_saves(self):
        # The shell hangs up on its jobs, and the kernel on the terminal's.
        output = self.directory / "out"
        command = [train_program.BIN / "gemini-train",
                   *train_program.arguments(dict(self.keys(steps=100000), output=output, threads=1))]
        shell, terminal = pty.fork()
        if shell == 0:
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
        os.write(terminal, (shlex.join(map(str, command)) + "\n").encode())
        while not (output / "metrics.jsonl").exists():
            os.read(terminal, 4096)  # What is not read blocks who writes it.
        os.close(terminal)
        os.waitpid(shell, 0)
        self.wait_for_end(output)
        state = json.loads((output / "latest" / "trainer_state.json").read_text())
        self.assertEqual(state["step"], steps(output)[-1]["step"])

    def test_a_log_that_nobody_reads_any_more_does_not_end_a_run(self):
        output = self.directory / "out"
        keys = dict(self.keys(steps=30, save_every=1, keep=1, log_level="info"), output=output)
        process = self.start(**keys)
        self.wait_for(process, output / "metrics.jsonl")
        process.stderr.close()
        process.stdout.close()
        self.assertEqual(process.wait(timeout=train_program.TIMEOUT_S), 0)
        self.assertTrue((output / "checkpoint-30").is_dir())

    def test_metrics_that_are_a_pipe_stay_one_when_a_run_is_resumed(self):
        output, pipe = self.directory / "out", self.directory / "pipe"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        self.train("out", **self.keys(steps=2, metrics=pipe, overwrite=True))
        result = run(output=output, resume=True, steps=4)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(pipe.is_fifo())
        lines = os.read(reader, 1 << 20).decode().splitlines()
        self.assertEqual([json.loads(line)["step"] for line in lines], [1, 2, 3, 4])

    def test_a_pipe_that_is_full_loses_lines_and_keeps_no_run_waiting(self):
        pipe = self.directory / "pipe"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
        result = run(**self.keys(steps=8, output=self.directory / "out", metrics=pipe))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr.count("the metrics have gaps from step "), 1, result.stderr)
        steps_read = [json.loads(line)["step"] for line in os.read(reader, 1 << 20).decode().splitlines()]
        self.assertEqual(steps_read, list(range(1, len(steps_read) + 1)))
        self.assertLess(len(steps_read), 8)

    def test_housekeeping_that_fails_warns_once_and_training_goes_on(self):
        output = self.train("out", **self.keys(steps=2))
        (output / "latest").unlink()
        (output / "latest" / "mine").mkdir(parents=True)  # No link can be renamed over it.
        result = run(output=output, resume=True, steps=6, save_every=1)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr.count("the checkpoint is complete, but: "), 1, result.stderr)
        self.assertEqual([line["step"] for line in steps(output)], [1, 2, 3, 4, 5, 6])
        self.assertTrue((output / "checkpoint-6").is_dir())

    def test_a_leftover_that_stays_warns_once_and_training_goes_on(self):
        output = self.directory / "out"
        stays = output / ".deleting-1" / "mounted"
        stays.mkdir(parents=True)
        command = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs none "$1" || exit 99; shift; exec "$@"',
                   "sh", stays]
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no user namespaces here, in which to mount a tmpfs that stays")
        result = subprocess.run(
            [*command, train_program.BIN / "gemini-train",
             *train_program.arguments(self.keys(steps=3, threads=1, output=output, overwrite=True))],
            capture_output=True, text=True, timeout=train_program.TIMEOUT_S, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr.count("what a dead run left stays"), 1, result.stderr)
        self.assertIn(".deleting-1", result.stderr)
        self.assertEqual([line["step"] for line in steps(output)], [1, 2, 3])
        self.assertTrue((output / "latest").is_dir())


if __name__ == "__main__":
    unittest.main()
