#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests tools/setup.sh in a clone of nothing but itself, in a path with a space, with its own cache
and an environment that pins no package (so that nothing is downloaded)."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SETUP = pathlib.Path(__file__).resolve().parents[2] / "tools/setup.sh"


class SetupTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = pathlib.Path(folder.name) / "ca che"
        self.clone = self.make_clone("one clone")

    def make_clone(self, name):
        clone = self.cache.parent / name
        (clone / "tools").mkdir(parents=True)
        shutil.copy(SETUP, clone / "tools/setup.sh")
        (clone / "tools/requirements.txt").write_text("# none\n")
        return clone

    def start(self, script, clone=None):
        return subprocess.Popen(
            ["bash", "-c", f"set -euo pipefail; . tools/setup.sh; {script}", "tools/check"],
            cwd=clone or self.clone, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=dict(os.environ, XDG_CACHE_HOME=str(self.cache)))

    def call(self, script, clone=None):
        process = self.start(script, clone)
        output, _ = process.communicate(timeout=200)
        return process.returncode, output

    def venvs(self):
        return sorted((self.cache / "gemini").glob("venv-*[!k]"))  # Not the .lock files.

    def test_an_environment_is_made_once_linked_and_shared_between_clones(self):
        code, output = self.call("gemini_install_venv")
        self.assertEqual(code, 0, output)
        self.assertIn("installing", output)
        venv, = self.venvs()
        self.assertEqual(os.readlink(self.clone / ".venv"), str(venv))
        made = (venv / ".complete").stat().st_mtime_ns
        for clone in (self.clone, self.make_clone("other clone")):
            code, output = self.call('gemini_install_venv; "$gemini_python" -c "print(6 * 7)"', clone)
            self.assertEqual(code, 0, output)
            self.assertIn("is complete", output)
            self.assertIn("42", output)
        self.assertEqual((venv / ".complete").stat().st_mtime_ns, made)
        # Other pins, another environment; the first stays.
        (self.clone / "tools/requirements.txt").write_text("--no-index\n")
        self.assertEqual(self.call("gemini_install_venv")[0], 0)
        self.assertEqual(len(self.venvs()), 2)
        self.assertNotEqual(os.readlink(self.clone / ".venv"), str(venv))

    def test_an_interrupted_installation_is_not_taken_for_complete(self):
        self.assertEqual(self.call("gemini_install_venv")[0], 0)
        venv, = self.venvs()
        (venv / ".complete").unlink()
        (venv / "rest").touch()
        code, output = self.call("gemini_install_venv")
        self.assertEqual(code, 0, output)
        self.assertTrue((venv / ".complete").exists())
        self.assertFalse((venv / "rest").exists())

    def test_a_failed_installation_says_its_step_log_and_advice_and_leaves_no_stamp(self):
        (self.clone / "tools/requirements.txt").write_text("./no-such-package\n")
        code, output = self.call("gemini_install_venv; echo went on")
        self.assertEqual(code, 1, output)
        for part in ("failed: Python: installing", "build/logs/venv.log", "what to do: check the net"):
            self.assertIn(part, output)
        self.assertNotIn("went on", output)
        self.assertFalse((self.clone / ".venv").exists())
        self.assertFalse(any((venv / ".complete").exists() for venv in self.venvs()))

    def test_two_clones_that_start_together_install_once(self):
        clones = [self.clone, self.make_clone("other clone")]
        processes = [self.start("gemini_install_venv", clone) for clone in clones]
        outputs = [process.communicate(timeout=200)[0] for process in processes]
        self.assertEqual([process.returncode for process in processes], [0, 0], outputs)
        self.assertEqual(sum(output.count("installing torch") for output in outputs), 1, outputs)
        self.assertEqual({os.readlink(clone / ".venv") for clone in clones},
                         {str(self.venvs()[0])})

    def test_a_folder_in_the_place_of_the_link_is_not_removed(self):
        (self.clone / ".venv").mkdir()
        (self.clone / ".venv/mine").touch()
        code, output = self.call("gemini_install_venv")
        self.assertEqual(code, 1, output)
        self.assertIn("move it away", output)
        self.assertTrue((self.clone / ".venv/mine").exists())

    def test_only_missing_packages_are_named(self):
        code, output = self.call("gemini_packages=(bash gemini-none coreutils); "
                                 "gemini_missing_packages")
        self.assertEqual((code, output), (0, "gemini-none\n"))

    def test_a_failing_step_shows_its_output_and_ends_the_script(self):
        code, output = self.call('gemini_step "Do it" it "buy a disk" bash -c "echo out; exit 7"; '
                                 "echo went on")
        self.assertEqual(code, 1)
        self.assertIn("== Do it\nout\n", output)
        self.assertIn("check: failed: Do it", output)
        self.assertIn("what to do: buy a disk", output)
        self.assertNotIn("went on", output)
        self.assertEqual((self.clone / "build/logs/it.log").read_text(), "out\n")

    def test_jobs_are_at_least_one_and_no_more_than_cores(self):
        jobs = int(self.call("gemini_jobs")[1])
        self.assertTrue(1 <= jobs <= os.cpu_count(), jobs)
        self.assertEqual(self.call("GEMINI_JOBS=5 gemini_jobs"), (0, "5\n"))


if __name__ == "__main__":
    unittest.main()
