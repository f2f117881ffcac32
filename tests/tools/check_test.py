#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests which builds tools/check makes and which tests it runs, by its arguments: beside a tools/setup.sh that
builds nothing and a ctest that only says how it was called."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

CHECK = pathlib.Path(__file__).resolve().parents[2] / "tools/check"
SETUP = """gemini_root=$PWD gemini_build_dir=$PWD/build
gemini_say() { :; }
gemini_fail() { echo "failed: $1; $3"; exit 1; }
gemini_step() { echo "step $1"; }
gemini_setup() { :; }
gemini_configure() { gemini_build_dir=$PWD/$2; }
gemini_build() { echo "build $(basename "$gemini_build_dir") ${*:-all}"; }
"""
CTEST = """#!/usr/bin/env bash
[[ ! -e fails-in-$(basename "$2") ]] || exit 8
echo "test $(basename "$2") ${*:4}"
"""
JOBS = len(os.sched_getaffinity(0))


class CheckTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.clone = pathlib.Path(folder.name)
        (self.clone / "tools").mkdir()
        (self.clone / ".venv/bin").mkdir(parents=True)
        (self.clone / "build-fuzz/fuzz").mkdir(parents=True)
        (self.clone / "build-fuzz/fuzz/plan_fuzz").touch()
        shutil.copy(CHECK, self.clone / "tools/check")
        (self.clone / "tools/setup.sh").write_text(SETUP)
        ctest = self.clone / ".venv/bin/ctest"
        ctest.write_text(CTEST)
        ctest.chmod(0o755)

    def check(self, *arguments, code=0, **environment):
        # OMP_NUM_THREADS would be the number of cores that nproc tells.
        given = {name: value for name, value in os.environ.items()
                 if not name.startswith(("GEMINI_", "OMP_"))}
        process = subprocess.run(["tools/check", *arguments], cwd=self.clone, text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 env=dict(given, **environment))
        self.assertEqual(process.returncode, code, process.stdout)
        return process.stdout.splitlines()

    BUILD = "build build all all_verify_interface_header_sets verify_torch_headers"
    RELEASE = [BUILD, f"test build -j {JOBS}"]
    SANITIZED = ["build build-asan all", f"test build-asan -j {JOBS}",
                 "build build-tsan all", f"test build-tsan -j {JOBS}"]

    def test_without_arguments_the_release_and_both_sanitizers_are_tested(self):
        self.assertEqual(self.check(), self.RELEASE + self.SANITIZED)

    def test_release_alone(self):
        self.assertEqual(self.check("--release"), self.RELEASE)

    def test_arguments_of_ctest_are_for_the_release_alone(self):
        self.assertEqual(self.check("-R", "layout"), [self.BUILD, f"test build -j {JOBS} -R layout"])

    def test_long_adds_the_fuzzers_and_the_hook(self):
        self.assertEqual(self.check("--long", GEMINI_FUZZ_SECONDS="7"),
                         self.RELEASE + self.SANITIZED +
                         ["build build-fuzz fuzzers", "step Fuzz: plan_fuzz, 7 s",
                          "build build-asan-torch hook_tests",
                          f"test build-asan-torch -j {JOBS} -L ^hook$"])

    def test_the_number_of_tests_at_a_time_can_be_given(self):
        tests = [line for line in self.check(GEMINI_TEST_JOBS="5") if line.startswith("test")]
        self.assertEqual(tests, [f"test {build} -j 5"
                                 for build in ("build", "build-asan", "build-tsan")])

    def test_what_fails_ends_it_and_says_how_to_run_it_again(self):
        (self.clone / "fails-in-build-asan").touch()
        lines = self.check(code=1)
        self.assertEqual(lines[:3], self.RELEASE + self.SANITIZED[:1])
        self.assertIn("below ASAN and UBSan", lines[3])
        self.assertIn("ctest --test-dir build-asan --rerun-failed", lines[3])
        self.assertEqual(len(lines), 4)


if __name__ == "__main__":
    unittest.main()
