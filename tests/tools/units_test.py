#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The systemd units of packaging/: what they expose, what they have in common, and that they are watched.

units_test.py ROOT
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

PACKAGING = pathlib.Path(sys.argv.pop(1)) / "packaging"
# What `systemd-analyze security` may say of a system service at most, from 0 to 10. Promised are 3.0 and 4.0; without
# the filter of system calls alone it says 2.1.
MOST_EXPOSED = 1.0
MOST_EXPOSED_WITH_GPU = 1.2
MUCH_EXPOSED = 4.0


def settings_of(text):
    """Each setting's last value; of lists, an empty one is left out."""
    return dict(re.findall(r"^(\w+)=(.+)$", text, re.MULTILINE))


def exposure_of(text):
    with tempfile.TemporaryDirectory() as folder:
        unit = pathlib.Path(folder) / "geminid@alice.service"
        unit.write_text(text, encoding="utf-8")
        shown = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
                               check=True, capture_output=True, text=True, env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"})
    return float(re.search(r"Overall exposure level for \S+: ([\d.]+)", shown.stdout).group(1))


class UnitsTest(unittest.TestCase):
    user = (PACKAGING / "geminid.service").read_text(encoding="utf-8")
    system = (PACKAGING / "geminid@.service").read_text(encoding="utf-8")
    gpu = (PACKAGING / "geminid-gpu.conf").read_text(encoding="utf-8")

    def test_both_are_watched_and_notify(self):
        for unit in (self.user, self.system):
            settings = settings_of(unit)
            self.assertEqual(settings["Type"], "notify")
            self.assertGreater(int(settings["WatchdogSec"]), 0)
            self.assertEqual(settings["RuntimeDirectoryMode"], "0700")

    def test_the_template_is_of_one_account(self):
        settings = settings_of(self.system)
        self.assertEqual(settings["User"], "%i")
        # Where clients of that account look: gemini/system/runtime_directory.h.
        self.assertEqual(settings["RuntimeDirectory"], "geminid/%i")
        self.assertEqual(settings["StateDirectory"], "geminid/%i")
        # Those of a person's account would go whenever this unit ends.
        self.assertNotIn("RemoveIPC", settings)

    def test_what_the_measure_hardly_counts_is_there(self):
        settings = settings_of(self.system)
        for key, value in {"ProtectSystem": "strict", "ProtectHome": "yes", "MemoryDenyWriteExecute": "yes"}.items():
            self.assertEqual(settings[key], value)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "there is no systemd-analyze")
    def test_the_template_exposes_little(self):
        exposure = exposure_of(self.system)
        print(f"exposure of geminid@: {exposure}")
        self.assertLessEqual(exposure, MOST_EXPOSED)
        # The measure itself: without its sandbox the same unit is far above.
        bare = re.sub(r"^(Protect|Private|Restrict|SystemCall|Capability|IPAddress)\w*=.*\n", "", self.system,
                      flags=re.MULTILINE)
        self.assertGreater(exposure_of(bare), MUCH_EXPOSED)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "there is no systemd-analyze")
    def test_with_a_gpu_it_exposes_little_more(self):
        before_install, install = self.system.split("[Install]")
        exposure = exposure_of(before_install + self.gpu.split("[Service]")[1] + "[Install]" + install)
        print(f"exposure of geminid@ with a GPU: {exposure}")
        self.assertLessEqual(exposure, MOST_EXPOSED_WITH_GPU)


if __name__ == "__main__":
    unittest.main()
