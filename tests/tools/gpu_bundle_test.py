#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/gpu-bundle makes a folder that runs elsewhere, and its `run` reports whatever a program does.

gpu_bundle_test.py ROOT
"""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

FAT_BINARY = struct.pack("<I", 0xBA55ED50)
ROOT = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else pathlib.Path()


def kernels_of(program):
    """The compute capabilities, times ten, that a program's fat binaries have machine code for, and PTX.

    A fat binary: its magic number, the sizes of its header and of the rest; then entries, each with its kind, the sizes of
    its header and of its content, and the capability at byte 28.
    """
    data, found = program.read_bytes(), {1: set(), 2: set()}
    at = data.find(FAT_BINARY)
    while at >= 0:
        header, size = struct.unpack_from("<HQ", data, at + 6)
        entry, end = at + header, at + header + size
        while header == 16 and entry < end <= len(data):
            kind, _, entry_header, content = struct.unpack_from("<HHIQ", data, entry)
            found[kind].add(struct.unpack_from("<I", data, entry + 28)[0])
            entry += entry_header + content
        at = data.find(FAT_BINARY, at + 4)
    return found[2], found[1]


class GpuBundleTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="gpu bundle ")
        cls.bundle = pathlib.Path(cls.temporary.name) / "bundle"
        cls.made = subprocess.run([ROOT / "tools/gpu-bundle", cls.bundle], capture_output=True,
                                  text=True, check=False)
        if cls.made.returncode != 0:
            raise AssertionError(cls.made.stdout + cls.made.stderr)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def run_bundle(self, *programs, timeout=60):
        report = self.bundle.parent / "report.json"
        report.unlink(missing_ok=True)
        done = subprocess.run([self.bundle / "run", "--report", report, "--timeout", str(timeout),
                               *programs], capture_output=True, text=True, check=False)
        programs = json.loads(report.read_text())["programs"] if report.exists() else []
        return done, {program["name"]: program for program in programs}

    def add(self, name, text):
        program = self.bundle / "gpu" / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        self.addCleanup(program.unlink)

    def test_it_is_small_and_has_every_program(self):
        size = sum(file.stat().st_size for file in self.bundle.rglob("*"))
        self.assertLess(size, 60 << 20)
        built = {file.name for file in (ROOT / "build/gpu").iterdir()}
        self.assertEqual({file.name for file in (self.bundle / "gpu").iterdir()}, built)
        for program in ("run", "measure", "observe", "families", "ranks"):
            self.assertTrue(os.access(self.bundle / program, os.X_OK), program)

    def test_its_programs_find_what_debian_alone_has_in_it(self):
        for program in (self.bundle / "gpu").iterdir():
            linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
            self.assertNotIn("not found", linked)
            self.assertNotIn("libcuda.so", linked)  # The driver's, which a machine may lack.
            for line in linked.splitlines():
                if "absl" in line:
                    self.assertIn(str(self.bundle), line)

    @unittest.skipUnless((ROOT / "build/bin/gemini-train").exists(), "built without Torch")
    def test_its_kernels_are_for_every_gpu_since_turing(self):
        for program in ("bin/gemini-train", "gpu/update_kernel_cuda_gpu_test"):
            machine_code, portable = kernels_of(self.bundle / program)
            self.assertEqual(machine_code, {75, 80, 86, 89, 90, 100, 120}, program)
            self.assertEqual(portable, {120}, program)  # What newer ones compile when the program starts.

    def test_a_program_without_a_gpu_is_skipped_or_answers(self):
        done, programs = self.run_bundle("entry_point_probe")
        self.assertEqual(list(programs), ["entry_point_probe"])
        ended = programs["entry_point_probe"]
        self.assertEqual(done.returncode, 77 if ended["result"] == "skipped" else 0, done.stderr)
        self.assertIn(ended["result"], ("skipped", "passed"), ended)

    def test_what_programs_do_is_in_the_report(self):
        self.add("answers", """echo '{"question": 1}'; echo '{broken'; echo text; echo error >&2""")
        self.add("fails", "exit 3")
        self.add("hangs", "echo '{\"begun\": true}'; while :; do :; done")
        done, programs = self.run_bundle("answers", "fails", "hangs", timeout=2)
        self.assertEqual(done.returncode, 1)
        self.assertEqual({name: program["result"] for name, program in programs.items()},
                         {"answers": "passed", "fails": "failed", "hangs": "timeout"})
        self.assertEqual(programs["answers"]["answers"], [{"question": 1}])
        self.assertEqual(programs["answers"]["output"], "{broken\ntext")
        self.assertEqual(programs["answers"]["errors"], "error\n")
        self.assertEqual(programs["fails"]["exit_status"], 3)
        self.assertEqual(programs["hangs"]["answers"], [{"begun": True}])

    @unittest.skipUnless((ROOT / "build/bin/gemini-train").exists(), "built without Torch")
    def test_it_measures_training(self):
        report = self.bundle.parent / "measure.json"
        done = subprocess.run([sys.executable, self.bundle / "measure", "--model", "opt-tiny", "--device", "cpu",
                               "--host-memory", "64MiB", "--tokens", "128,256", "--no-uncapped",
                               "--report", report], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        runs = json.loads(report.read_text())["runs"]
        self.assertEqual([run["tokens_a_step"] for run in runs], [128, 256])
        for run in runs:
            self.assertAlmostEqual(run["tokens_per_second"] * run["seconds"], run["tokens_a_step"],
                                   delta=run["tokens_a_step"] / 2)  # Medians of each.
            self.assertEqual(run["device_budget_bytes"], 16 << 20)
            self.assertGreater(run["fetch_bytes"], 0)

    @unittest.skipUnless((ROOT / "build/bin/gemini-train").exists(), "built without Torch")
    def test_a_model_is_kept_and_a_deadline_ends_the_runs(self):
        report, folder = self.bundle.parent / "kept.json", self.bundle.parent / "model"
        command = [sys.executable, self.bundle / "measure", "--model", "opt-tiny", "--device", "cpu",
                   "--host-memory", "64MiB", "--no-uncapped", "--model-folder", folder, "--report", report]
        done = subprocess.run(command + ["--tokens", "128", "--deadline", "0"], capture_output=True, text=True,
                              check=False)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        written = (folder / "model.safetensors").stat().st_mtime_ns
        # Cut short in the middle of its steps, of which there are far too many.
        done = subprocess.run(command + ["--tokens", "128", "--steps", "1000000", "--deadline", "20"],
                              capture_output=True, text=True, check=False,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})  # Not slowed down by who else computes.
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        run, = json.loads(report.read_text())["runs"]
        self.assertTrue(run["cut_short"])
        self.assertGreater(run["measured_steps"], 0)
        self.assertEqual((folder / "model.safetensors").stat().st_mtime_ns, written)

    @unittest.skipUnless((ROOT / "build/bin/gemini-train").exists(), "built without Torch")
    def test_it_sees_a_step_and_what_a_kill_leaves(self):
        folder = self.bundle.parent / "observed"
        done = subprocess.run([sys.executable, self.bundle / "observe", "--model", "opt-tiny", "--device", "cpu",
                               "--device-memory", "3MiB", "--host-memory", "64MiB", "--device-bandwidth", "64MiB/s",
                               "--tokens", "256", "--kills", "2", "--folder", folder],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        report = json.loads((folder / "observed.json").read_text())
        self.assertGreater(report["step"]["side_by_side_seconds"], 0)
        self.assertEqual(len(report["kills"]), 2)
        self.assertIn("gemini-train run", (folder / "memstat.txt").read_text())
        self.assertEqual(json.loads((folder / "memstat.json").read_text())["tenants"][0]["label"], "gemini-train run")
        self.assertIn("traceEvents", json.loads((folder / "trace.json").read_text()))

    def compare_families(self, *more):
        report = self.bundle.parent / "families.json"
        done = subprocess.run([sys.executable, self.bundle / "families", "--models", ROOT / "build/tests/trainer_models",
                               "--only", "mixtral", "--device", "cpu", "--device-memory", "64MiB", "--report", report,
                               *more], capture_output=True, text=True, check=False)
        return done, json.loads(report.read_text())

    @unittest.skipUnless((ROOT / "build/bin/gemini-train").exists(), "built without Torch")
    def test_placements_of_a_family_are_compared(self):
        done, report = self.compare_families()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(report, {"mixtral fp32": [], "mixtral bf16": []})

    @unittest.skipUnless((ROOT / "build/bin/gemini-train").exists(), "built without Torch")
    def test_a_placement_with_other_numbers_and_one_that_fails_are_named(self):
        programs = self.bundle.parent / "programs"
        programs.mkdir()
        program = programs / "gemini-train"
        # Of what is recomputed other losses come out, and routed experts fail.
        program.write_text(r"""#!/bin/sh
            loss=2 output=
            for word; do
              [ "$last" = --output ] && output=$word
              last=$word
              [ "$word" = --recompute ] && loss=3
              [ "$word" = routed ] && echo no experts >&2 && exit 1
            done
            mkdir -p "$output"; printf '{"loss": %s, "grad_norm": 1}\n' "$loss" >"$output/metrics.jsonl"
            """)
        program.chmod(0o755)
        done, report = self.compare_families("--bin", programs)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        for texts in report.values():
            self.assertIn("recomputed: 1 of 2 numbers differ", texts[0])
            self.assertIn("no experts", texts[1])
            self.assertEqual(len(texts), 2)

    def compare_ranks(self, *more):
        report = self.bundle.parent / "ranks.json"
        done = subprocess.run([sys.executable, self.bundle / "ranks", "--cpu", "--models", ROOT / "build/tests/trainer_models",
                               "--launchers", "mpirun", "--report", report, *more], capture_output=True, text=True,
                              check=False)
        return done, json.loads(report.read_text())

    @unittest.skipUnless((ROOT / "build/bin/gemini_mpi.so").exists(), "built without Torch or MPI")
    def test_ranks_are_compared_and_one_is_killed(self):
        done, report = self.compare_ranks("--only", "zero fp32,kill tensor")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(report, {"zero fp32 mpirun": [], "kill tensor mpirun": [], "zero fp32 launchers": []})
        self.assertIn("behind the kill, status", done.stdout)

    @unittest.skipUnless((ROOT / "build/bin/gemini_mpi.so").exists(), "built without Torch or MPI")
    def test_ranks_with_other_numbers_are_named(self):
        programs = self.bundle.parent / "programs of ranks"
        programs.mkdir()
        program = programs / "gemini-train"
        # Ranks get another loss than one process, and others without exact sums.
        program.write_text(r"""#!/bin/sh
            loss=2.0 output= exact=0.5
            [ -z "$OMPI_COMM_WORLD_RANK" ] || loss=3.0
            for word; do
              [ "$last" = --output ] && output=$word
              [ "$word" = --exact ] && exact=0.25
              last=$word
            done
            mkdir -p "$output"; printf '{"loss": %s, "grad_norm": %s}\n' "$loss" "$exact" >"$output/metrics.jsonl"
            """)
        program.chmod(0o755)
        done, report = self.compare_ranks("--bin", programs, "--only", "zero fp32,tensor fp32")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("beside one process: 2 of 2 numbers differ", report["zero fp32 mpirun"][0])
        self.assertIn("sums that are not exact: 1 of 2", report["zero fp32 mpirun"][1])
        self.assertIn("beside one process: 5.0e-01", report["tensor fp32 mpirun"][0])

    def test_a_run_that_fails_is_in_the_report(self):
        report = self.bundle.parent / "failed.json"
        done = subprocess.run([sys.executable, self.bundle / "measure", "--model", "opt-tiny", "--device", "cpu",
                               "--device-memory", "100KiB", "--host-memory", "64MiB", "--tokens", "128",
                               "--no-uncapped", "--report", report], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("DEVICE", json.loads(report.read_text())["runs"][0]["error"])

    def test_a_sanitizers_finding_is_a_failure(self):
        self.add("fine", "echo '{\"filter\": \"'$GTEST_FILTER'\"}'")
        self.add("faulty", "echo faulty")
        tools = self.bundle.parent / "tools"
        tools.mkdir()
        sanitizer = tools / "compute-sanitizer"
        # One that finds something in one of them.
        sanitizer.write_text('#!/bin/sh\nfor program; do :; done\n"$program"\necho "$1 $2" >&2\n'
                             'case "$program" in *faulty) exit 98 ;; esac\n')
        sanitizer.chmod(0o755)
        report = self.bundle.parent / "sanitized.json"
        command = [self.bundle / "run", "--sanitizer", "racecheck", "--report", report, "fine", "faulty"]
        done = subprocess.run(command, capture_output=True, text=True, check=False,
                              env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"})
        self.assertEqual(done.returncode, 1, done.stderr)
        programs = {program["name"]: program for program in json.loads(report.read_text())["programs"]}
        self.assertEqual((programs["fine"]["result"], programs["faulty"]["result"]), ("passed", "failed"))
        self.assertIn("--tool racecheck", programs["faulty"]["errors"])
        self.assertTrue(programs["fine"]["answers"][0]["filter"].startswith("-"))
        done = subprocess.run(command, capture_output=True, text=True, check=False,
                              env={**os.environ, "PATH": "/usr/bin:/bin"})
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("no compute-sanitizer", done.stderr)

    def test_a_program_that_is_not_there_is_named(self):
        done, programs = self.run_bundle("no_such_probe")
        self.assertEqual(programs, {})
        self.assertIn("no_such_probe", done.stderr)
        self.assertNotEqual(done.returncode, 0)

    def test_a_folder_that_is_no_bundle_is_left_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            kept = pathlib.Path(folder) / "thesis.txt"
            kept.write_text("three years")
            (pathlib.Path(folder) / "run").write_text("of a bundle, by its name alone")
            done = subprocess.run([ROOT / "tools/gpu-bundle", folder], capture_output=True, text=True,
                                  check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("it also holds thesis.txt", done.stderr)
            self.assertEqual(kept.read_text(), "three years")


if __name__ == "__main__":
    unittest.main()
