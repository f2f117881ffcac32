# SPDX-License-Identifier: Apache-2.0
"""How far a run of tools/prepare_data.py has come, for whoever watches it on a terminal."""
import sys


class Progress:
    """Shows which part of the input was read, in percent, on stderr if that is a terminal."""

    def __init__(self, total_bytes, num_passes=1):
        """Expects `total_bytes` of input, all of which is read `num_passes` times."""
        self.total_bytes = total_bytes
        self._num_passes = num_passes
        self._done_bytes = 0
        self._shown = -1
        self._is_watched = sys.stderr.isatty()  # Asked once, because it is a call of the system.

    def add(self, num_bytes):
        """Counts bytes that were read, and shows the percentage where it has changed."""
        self._done_bytes += num_bytes
        percent = 100 * self._done_bytes // max(self._num_passes * self.total_bytes, 1)
        if self._is_watched and percent != self._shown:
            self._shown = percent
            print(f"\r{percent:3d} % of {self.total_bytes / 2**20:.1f} MiB", end="",
                  file=sys.stderr)

    def end(self):
        """Ends the line, if one was shown, so that other text may follow."""
        if self._shown >= 0:
            print(file=sys.stderr)
        self._shown = -1
