#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ranks_plan_test.py MEMSTAT: runs `memstat plan --ranks` for machines that nobody has here."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

MEMSTAT = sys.argv.pop(1)


def gpt(blocks, width, heads):
    return {"model_type": "gpt2", "n_embd": width, "n_layer": blocks, "n_head": heads, "vocab_size": 51200,
            "n_positions": 2048}


# Parameters in billions, and the sizes of Narayanan et al. (SC 2021), table 1.
MODELS = {7.5: gpt(36, 4096, 32), 39: gpt(48, 8192, 64), 145.6: gpt(80, 12288, 96), 1008: gpt(128, 25600, 160)}
# Models that a run does not share in all ways. Each has 16 heads and 16 blocks, so that all would divide.
ENCODER = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 16, "num_attention_heads": 16}
OTHERS = {"tiny": {**gpt(2, 64, 4), "vocab_size": 512, "attn_pdrop": 0.0},
          "small": {**gpt(16, 1024, 16), "vocab_size": 8192},
          "bert": {"model_type": "bert", "max_position_embeddings": 512, **ENCODER},
          "vit": {"model_type": "vit", "image_size": 240, "patch_size": 16, **ENCODER},
          "trunk": {"model_type": "pair_trunk"}}


class RanksPlanTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.TemporaryDirectory(prefix="gemini-ranks-")
        for billions, config in {**MODELS, **OTHERS}.items():
            folder = pathlib.Path(cls.root.name) / str(billions)
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(config))

    @classmethod
    def tearDownClass(cls):
        cls.root.cleanup()

    def plan(self, billions, *flags, status=0, memstat=MEMSTAT):
        done = subprocess.run([memstat, "plan", "--model", f"{self.root.name}/{billions}", *map(str, flags)],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout or done.stderr

    def json(self, *arguments, **more):
        billions, *flags = arguments
        at = flags.index("--") if "--" in flags else len(flags)
        return json.loads(self.plan(billions, *flags[:at], "--json", *flags[at:], **more))

    def test_what_a_rank_holds_follows_from_its_keys(self):
        gpus = ("--gpu", "a100-80", "--ranks", 64, "--sequence", 2048)
        found = self.json(7.5, *gpus, "--batch", 1, status=0)
        self.assertEqual(found["mesh"], "pp 1 x dp 64 x sp 1 x tp 1, data alone, ZeRO 3, 1 x 1 sequences")
        # 14 bytes a parameter of 7.5 billion, in 64 parts.
        held = sum(found["memory"][f"{name}_bytes"] for name in ("parameters", "gradients", "states"))
        self.assertAlmostEqual(held / (14 * 7.47e9 / 64), 1, delta=0.01)
        # Keys stand behind --, in place of the flags that say the same.
        found = self.json(7.5, "--gpu", "a100-80", "--ranks", 64, "--", "--precision", "bf16", "--pipeline", 2,
                          "--tensor", "1d", "--tensor-size", 8, "--accumulate", 8, "--batch", 1, "--sequence", 2048)
        self.assertEqual(found["mesh"], "pp 2 x dp 4 x sp 1 x tp 8, pipeline and 1d, ZeRO 1, 8 x 1 sequences")
        seconds = found["step_seconds"]
        self.assertAlmostEqual(sum(value for name, value in seconds.items() if name != "total"), seconds["total"])
        self.assertGreater(seconds["idle"], 0)
        self.assertAlmostEqual(found["tokens_per_second"], 8 * 4 * 2048 / seconds["total"], delta=1)

    def test_schedules_that_no_run_has_are_foretold(self):
        keys = ("--gpu", "a100-80", "--ranks", 8, "--", "--precision", "bf16", "--pipeline", 4, "--accumulate", 16,
                "--batch", 1, "--sequence", 2048, "--pipeline-schedule")
        idle = {schedule: self.json(7.5, *keys, schedule)["step_seconds"]["idle"] for schedule in ("1f1b", "zb-h1")}
        self.assertLess(idle["zb-h1"], idle["1f1b"])

    def test_the_key_of_host_memory_is_of_each_rank(self):
        gpus = ("--gpu", "rtx3090", "--ranks", 2, "--batch", 1, "--sequence", 1024, "--recompute", "--host", "256GiB")
        keys = ("--gpu", "rtx3090", "--ranks", 2, "--", "--precision", "bf16", "--batch", 1, "--sequence", 1024,
                "--recompute", "--host-memory", "128GiB")
        self.assertEqual(self.json(7.5, *gpus)["memory"], self.json(7.5, *keys)["memory"])

    def test_what_does_not_fit_lacks_memory(self):
        text = self.plan(145.6, "--gpu", "a100-80", "--ranks", 8, "--batch", 1, "--sequence", 2048, status=1)
        self.assertRegex(text, r"memory +[0-9.]+ [GT]iB, DEVICE has [0-9.]+ GiB, it lacks [0-9.]+ [GT]iB: ")

    def test_what_gpus_lack_lies_in_the_host_of_their_node(self):
        asked = (7.5, "--gpu", "rtx3090", "--ranks", 2, "--batch", 1, "--sequence", 1024, "--recompute")
        self.assertFalse(self.json(*asked, status=1)["fits"])
        found = self.json(*asked, "--host", "256GiB")
        self.assertTrue(found["fits"])
        memory = found["memory"]
        self.assertGreaterEqual(memory["host_bytes"] + 1, memory["needed_bytes"] - memory["device_bytes"])
        self.assertEqual(memory["lacking_bytes"], 0)
        self.assertFalse(self.json(*asked, "--host", "16GiB", status=1)["fits"])

    def test_what_is_asked_for_wrongly_is_refused(self):
        ranks = ("--gpu", "a100-80", "--ranks")
        for text, flags in {
                "3 ranks do not divide": (*ranks, 3, "--", "--pipeline", 2),
                "attention heads, 32, do not divide by 6": (*ranks, 6, "--", "--tensor", "1d"),
                "37 stages": (*ranks, 37, "--", "--pipeline", 37),
                "--network is missing": ("--gpu", "rtx4090", "--ranks", 16),
                "--search requires --ranks": ("--gpu", "a100-80", "--search"),
                "--gpus-per-node is at least 1": (*ranks, 8, "--gpus-per-node", 0),
                "write it as 12GiB/s": (*ranks, 8, "--link", "fast"),
                "the model has 2048 positions": (*ranks, 8, "--sequence", 4096),
                "both are 1 or more": (*ranks, 8, "--batch", 0),
                "--step-sequences": (*ranks, 8, "--search", "--step-sequences", 0),
                "--batch excludes --search": (*ranks, 8, "--search", "--batch", 4),
                "leave --nvme and --optimizer-tier out": (*ranks, 8, "--nvme", "1TiB"),
                "zigzag alone is foretold": (*ranks, 8, "--", "--sequence-parallel", "ring", "--sequence-layout",
                                             "contiguous"),
                "nothing is gathered where it is used": (*ranks, 8, "--", "--zero", 1, "--gather-ahead", 1),
                "'1,2' has 3 blocks": (*ranks, 2, "--", "--pipeline", 2, "--pipeline-split", "1,2")}.items():
            with self.subTest(text):
                self.assertIn(text, self.plan(7.5, *flags, status=2))

    def test_links_that_are_given_come_before_the_tables(self):
        keys = ("--", "--tensor", "1d", "--batch", 4, "--sequence", 2048, "--precision", "bf16")
        layers = [self.json(7.5, "--gpu", "a100-80", "--ranks", 8, *link, *keys)["step_seconds"]["layers"]
                  for link in ((), ("--link", "1GiB/s"))]
        self.assertGreater(layers[1], 100 * layers[0])

    def test_ten_thousand_ranks_are_foretold_at_once(self):
        begin = time.monotonic()
        self.plan(1008, "--gpu", "h100", "--ranks", 10240, "--", "--precision", "bf16", "--pipeline", 64,
                  "--tensor", "1d", "--tensor-size", 8, "--accumulate", 512, "--batch", 1, "--sequence", 2048,
                  "--sequence-parallel", "megatron")
        self.assertLess(time.monotonic() - begin, 2)

    def test_a_search_answers_in_time_with_meshes_that_fit(self):
        for billions, ranks in ((7.5, 64), (39, 512), (1008, 2048), (1008, 10240)):
            with self.subTest(billions=billions, ranks=ranks):
                begin = time.monotonic()
                found = self.json(billions, "--gpu", "h100", "--ranks", ranks, "--sequence", 2048, "--search")
                self.assertLess(time.monotonic() - begin, 10)
                self.assertEqual(len(found["best"]), 3)
                speeds = [one["tokens_per_second"] for one in found["best"]]
                self.assertEqual(speeds, sorted(speeds, reverse=True))
                for one in found["best"] + [way["found"] for way in found["best_of_each_way"]]:
                    self.assertTrue(one["fits"], one["mesh"])
                    self.assertEqual(one["ranks"], ranks)
                    self.assertLessEqual(one["tokens_per_second"], speeds[0])

    def test_a_search_tries_no_way_that_a_run_refuses(self):
        grids, axis = {"2d", "2.5d", "3d"}, {"ulysses", "ring"}
        parts, lines = {"1d with parts of sequences"}, {"1d"}
        classifies = ("--task", "sequence-classification")
        for model, task, refused in (("small", (), set()), ("small", classifies, grids | axis),
                                     ("bert", (), grids | axis), ("bert", classifies, grids | axis),
                                     ("vit", (), grids | axis | parts),
                                     ("trunk", (), grids | axis | parts | lines)):
            with self.subTest(model, task=task):
                found = self.json(model, "--gpu", "h100", "--ranks", 64, "--step-sequences", 512, "--search", *task)
                ways = {way for kind in found["best_of_each_way"] for way in kind["way"].split(" and ")}
                all_ways = grids | axis | parts | lines
                self.assertEqual(ways & all_ways, all_ways - refused)
                self.assertIn("pipeline", ways)

    def test_a_way_that_a_run_refuses_is_refused(self):
        for model, text, keys in (("bert", "no forecast has ranks share a model of this task by 2d",
                                   ("--tensor", "2d")),
                                  ("vit", "by a ring: use 1d, ZeRO or a pipeline", ("--sequence-parallel", "ring")),
                                  ("trunk", "by 1d: use ZeRO or a pipeline", ("--tensor", "1d"))):
            with self.subTest(model):
                asked = ("--gpu", "h100", "--ranks", 4, "--", *keys, "--batch", 4)
                self.assertIn(text, self.plan(model, *asked, status=2))

    def test_a_task_has_its_own_head(self):
        # A head that is no table is a matrix of two labels, so that stage 0 holds that much more.
        held = []
        for task in ("causal", "sequence-classification"):
            self.assertIn(f"(gpt2, {task})", self.plan("small", "--gpu", "h100", "--ranks", 4, "--task", task))
            found = self.json("small", "--gpu", "h100", "--ranks", 4, "--", "--task", task, "--zero", 0, "--batch", 1)
            held.append(found["memory"]["parameters_bytes"])
        self.assertEqual(held[1] - held[0], 4 * 2 * 1024)  # In fp32.
        self.assertIn("which has masked, sequence-classification",
                      self.plan("bert", "--gpu", "h100", "--ranks", 4, "--task", "causal", status=1))

    def rates(self, *counts):
        """A file of gemini-bench ranks, of a machine of two processors."""
        file = pathlib.Path(self.root.name) / "rates"
        file.write_text("".join(json.dumps(dict(
            ranks=count, processors=2, flops_per_second=1e11 / count, attention_flops_per_second=4e10 / count,
            memory_bytes_per_second=1e10 / count, kernel_ns=4000, latency_seconds=2e-5,
            link_bytes_per_second=4e9 / count, sum_bytes_per_second=4e9 / count, copy_bytes_per_second=3e9 / count,
            update_elements_per_second=3e8 / count, device_update_elements_per_second=3e8 / count)) + "\n" for count in counts))
        return file

    def test_few_ranks_that_were_measured_are_run_without_memory(self):
        asked = ("small", "--ranks", 4, "--measured", self.rates(4, 32), "--device", "4GiB", "--", "--tensor", "1d",
                 "--tensor-size", 2, "--zero", 0, "--batch", 1, "--sequence", 128)
        found = self.json(*asked)
        if not pathlib.Path(MEMSTAT).with_name("gemini-trace").exists():
            self.assertEqual(found["by"], "formulas")
            self.assertIn("there is no", found["why_formulas"])
            return
        self.assertEqual((found["by"], found["ranks"]), ("dry run", 4))
        # Half of the layers' 16 (12 h^2 + 13 h) parameters and of the table's, and of what is whole; 16 bytes each.
        held = 4 * 4 * (16 * (6 * 1024 * 1024 + 9 * 1024) + 4096 * 1024 + 2048 * 1024)
        self.assertAlmostEqual(found["memory"]["host_bytes"] / held, 1, delta=0.03)
        self.assertGreater(found["memory"]["device_peak_bytes"], held / 4)
        seconds = found["step_seconds"]
        self.assertAlmostEqual(sum(value for name, value in seconds.items() if name != "total"), seconds["total"])
        # Four ranks on two processors share them.
        self.assertGreater(seconds["sharing"], seconds["computing"] / 2)
        self.assertEqual(sum(sent["bytes"] for sent in found["sent"].values()), found["sent_bytes"])
        at = asked.index("--")
        self.assertIn("by a dry run of each rank: computing", self.plan(*asked))
        # A DEVICE that is too small is an answer, too.
        small = (*asked[:at - 1], "4MiB", *asked[at:])
        found = self.json(*small, status=1)
        self.assertEqual((found["by"], found["ranks"], found["fits"]), ("dry run", 4, False))
        self.assertRegex(found["misfit"], "^rank [0-3]: DEVICE is .* too small: ")
        memory = found["memory"]
        self.assertEqual(memory["device_bytes"], 4 << 20)
        self.assertEqual(memory["lacking_bytes"], memory["device_floor_bytes"] - (4 << 20))
        self.assertIn(f"({memory['device_floor_bytes']} bytes) together", found["misfit"])
        self.assertIn(f"does not fit: {found['misfit']}\n", self.plan(*small, status=1))
        self.assertTrue(self.json(*asked[:at - 1], 2 * memory["device_floor_bytes"], *asked[at:])["fits"])

    def test_the_host_memory_of_ranks_that_were_measured_is_of_each(self):
        # They are on one machine, however many: nobody says how many ranks a node has.
        keys = ("--", "--batch", 1, "--sequence", 64, "--zero", 0)
        asked = ("tiny", "--ranks", 9, "--measured", self.rates(9, 32), "--device", "64MiB", *keys)
        if pathlib.Path(MEMSTAT).with_name("gemini-trace").exists():
            needed = self.json(*asked)["memory"]["host_bytes"]
            for lacking in (0, 4096):
                found = self.json(*asked, "--host-memory", needed - lacking, status=1 if lacking else 0)
                self.assertEqual((found["by"], found["memory"]["lacking_bytes"]), ("dry run", lacking))
        asked = ("tiny", "--ranks", 32, "--measured", self.rates(9, 32), "--device", "1MiB")
        by_key = self.json(*asked, *keys, "--host-memory", "64KiB", status=1)["memory"]
        by_flag = self.json(*asked, "--host", "2MiB", *keys, status=1)["memory"]
        self.assertEqual(by_key, by_flag)
        self.assertEqual(by_key["host_bytes"], 64 << 10)

    def test_threads_that_a_run_has_are_told_beside_those_of_the_rates(self):
        rates = pathlib.Path(self.root.name) / "many-processors"
        rates.write_text(self.rates(2).read_text().replace('"processors": 2', '"processors": 128'))
        asked = ("tiny", "--ranks", 2, "--measured", rates, "--device", "1GiB", "--", "--batch", 1, "--sequence", 2048)
        peaks = {}
        for keys, threads in ((), 64), (("--threads", 1), 1), (("--threads", 64), 64):
            found = self.json(*asked, *keys)
            self.assertEqual((found["threads"], found["threads_of_rates"]), (threads, 1))
            self.assertEqual(f"the run has {threads}, and rates were measured with 1:" in self.plan(*asked, *keys),
                             threads > 1)
            peaks[keys] = found["memory"].get("device_peak_bytes")
        if found["by"] == "dry run":
            # Attention has scores of 256 rows and 512 keys for each thread, and twice in backward.
            default, one, all_of_them = peaks.values()
            self.assertEqual(default, all_of_them)
            self.assertGreater(default, one + 32 * 2 * 256 * 512 * 4)

    def test_a_trace_program_that_does_not_answer_is_not_waited_for(self):
        folder = pathlib.Path(self.root.name) / "silent"
        folder.mkdir()
        memstat = shutil.copy(MEMSTAT, folder)
        program = folder / "gemini-trace"
        program.write_text("#!/bin/sh\nexec sleep 600\n")
        program.chmod(0o700)
        limit = ("--trace-limit", 1)
        asked = ("tiny", "--ranks", 4, "--measured", self.rates(4), "--device", "64MiB", *limit, "--", "--batch", 1)
        found = self.json(*asked, memstat=memstat)
        self.assertEqual(found["by"], "formulas")
        self.assertIn("gemini-trace: it did not answer within 1s: --trace-limit", found["why_formulas"])
        self.assertIn("not by a dry run of each rank: ", self.plan(*asked, memstat=memstat))
        # One GPU has no formulas.
        self.assertIn("it did not answer within 1s", self.plan(
            "tiny", "--gpu", "rtx3090", "--host", "8GiB", *limit, status=1, memstat=memstat))

    def test_many_ranks_that_were_measured_have_formulas(self):
        asked = ("small", "--ranks", 32, "--measured", self.rates(4, 32), "--device", "4GiB", "--", "--batch", 1)
        found = self.json(*asked)
        self.assertEqual((found["by"], found["why_formulas"]), ("formulas", "more than 16 ranks are not run"))
        self.assertIn("by formulas, and not by a dry run of each rank: more than 16", self.plan(*asked))

    def test_a_search_says_that_it_is_by_formulas(self):
        found = self.json("small", "--gpu", "h100", "--ranks", 8, "--search")
        self.assertEqual({one["by"] for one in [found, *found["best"]]}, {"formulas"})
        self.assertNotIn("why_formulas", found)
        asked = ("small", "--ranks", 4, "--measured", self.rates(4), "--device", "4GiB", "--search")
        found = self.json(*asked)
        self.assertEqual((found["by"], found["why_formulas"]),
                         ("formulas", "a search tries more meshes than can be run"))
        self.assertIn("not by a dry run of each rank: a search tries more", self.plan(*asked))

    def test_a_search_in_which_none_fits_says_what_lacks_least(self):
        text = self.plan(1008, "--gpu", "a100-80", "--ranks", 8, "--sequence", 2048, "--search", status=1)
        self.assertIn("none fits. This one lacks the least:\npp ", text)


if __name__ == "__main__":
    unittest.main()
