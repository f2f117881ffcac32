# SPDX-License-Identifier: Apache-2.0
"""A geminid and a gemini-train of one's own, to be looked at while they run."""
import os
import pathlib
import pty
import re
import signal
import subprocess

WAIT_S = 60


class Daemon:
    """A geminid with its files under `directory`, for a `with` block."""

    def __init__(self, binaries, directory, device_memory, host_memory):
        pathlib.Path(directory).mkdir(parents=True, exist_ok=True)
        self.socket = pathlib.Path(directory) / "run" / "geminid.sock"
        self.command = [
            str(pathlib.Path(binaries) / "geminid"), "--runtime-dir", str(self.socket.parent),
            "--state-dir", "", "--device-memory", str(device_memory), "--host-memory", str(host_memory)]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True)
        log = []
        for line in self.process.stderr:  # Blocks until it is ready, or ends.
            log.append(line)
            if "ready on" in line:
                return self
        self.process.wait()
        raise RuntimeError("geminid did not start: " + "".join(log))

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.stderr.read()
        self.process.stderr.close()
        self.process.wait(timeout=WAIT_S)


class Training:
    """A gemini-train for a `with` block. It has a terminal, for there it tells every step."""

    def __init__(self, binaries, keys):
        self.command = [str(pathlib.Path(binaries) / "gemini-train")]
        for key, value in keys.items():
            flag = "--" + key.replace("_", "-")
            self.command += [flag] if value is True else [flag, str(value)]
        self.text = ""

    def __enter__(self):
        self.terminal, other_end = pty.openpty()
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=other_end,
                                        stderr=other_end)
        os.close(other_end)
        return self

    def wait_for_step(self, step):
        """Returns when so many steps are done. RuntimeError: it ended before."""
        while not any(int(done) >= step for done in re.findall(r"(\d+)/\d+ loss", self.text)):
            try:
                part = os.read(self.terminal, 65536)
            except OSError:  # EIO: nobody has the other end any more.
                part = b""
            if not part:
                raise RuntimeError(f"gemini-train ended before step {step} with "
                                   f"{self.process.wait()}: {self.text}")
            self.text += part.decode(errors="replace")

    def __exit__(self, *_):
        # Killed, for what it would save is of no use.
        self.process.kill()
        self.process.wait(timeout=WAIT_S)
        os.close(self.terminal)
