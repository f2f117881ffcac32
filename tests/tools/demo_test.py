#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests what tools/demo prepares and says: make_demo_model.py and run_demo.py, on small sizes."""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
import make_demo_model
import run_demo

SMALL = {"n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
STEP = {"step": 1, "loss": 9.0, "tokens_per_second": 100.0, "device_budget_bytes": 64 * 2**20,
        "device_peak_bytes": 60 * 2**20, "fetch_bytes": 2**20, "evict_bytes": 2**19,
        "stall_seconds": 0.25}


class DemoTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def packages(self, name, reverse):
        root = self.folder / name
        for i in sorted(range(40), reverse=reverse):
            path = root / f"p{i % 7}" / f"m{i}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"def f{i}():\n    return {i}\n" * 20)
        (root / "empty.py").write_text("\n")
        (root / "latin.py").write_bytes(b"# \xe9\n")
        (root / "big.py").write_text("x = 1\n" * 100_000)
        return root

    def small_model(self):
        corpus = self.folder / "corpus.txt"
        make_demo_model.make_corpus(self.packages("source", False), corpus, 10_000)
        model = self.folder / "model"
        num_parameters = make_demo_model.make_model(
            make_demo_model.train_tokenizer(corpus, 300), model, SMALL, 300)
        return model, num_parameters

    def test_the_corpus_depends_on_names_and_contents_alone(self):
        first, second = self.folder / "1.txt", self.folder / "2.txt"
        make_demo_model.make_corpus(self.packages("a", False), first, 10_000)
        make_demo_model.make_corpus(self.packages("b", True), second, 10_000)
        self.assertEqual(first.read_bytes(), second.read_bytes())
        self.assertGreaterEqual(len(first.read_bytes()), 10_000)
        self.assertLess(len(first.read_bytes()), 11_000)
        self.assertNotIn(b"x = 1", first.read_bytes())

    def test_the_model_loads_in_transformers_with_its_tokenizer(self):
        import transformers
        model, num_parameters = self.small_model()
        loaded = transformers.AutoModelForCausalLM.from_pretrained(model)
        self.assertEqual(loaded.num_parameters(), num_parameters)
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        ids = tokenizer("def f1():\n    return 1\n")["input_ids"]
        self.assertEqual(tokenizer.decode(ids), "def f1():\n    return 1\n")
        self.assertLess(max(ids), loaded.config.vocab_size)

    def test_the_demo_model_has_about_30_million_parameters(self):
        width, layers = make_demo_model.SHAPE["n_embd"], make_demo_model.SHAPE["n_layer"]
        parameters = (12 * width * width * layers +
                      (make_demo_model.VOCABULARY + make_demo_model.SHAPE["n_positions"]) * width)
        self.assertAlmostEqual(parameters / 1e6, 30, delta=2)

    def test_parameter_sizes_are_those_of_the_checkpoint(self):
        model, num_parameters = self.small_model()
        sizes = run_demo.tensor_sizes(model)
        self.assertEqual(sum(sizes.values()), num_parameters)
        self.assertEqual(max(sizes.values()), 300 * 32)

    def test_bad_checkpoints_are_refused_with_what_to_do(self):
        empty = self.folder / "empty"
        empty.mkdir()
        with self.assertRaisesRegex(run_demo.DemoError, "save_pretrained"):
            run_demo.tensor_sizes(empty)
        with self.assertRaisesRegex(run_demo.DemoError, "config.json: No such file"):
            run_demo.read_config(empty)
        (empty / "config.json").write_text('{"model_type": "bert"}')
        with self.assertRaisesRegex(run_demo.DemoError, "gpt2 and opt"):
            run_demo.read_config(empty)
        for content in (b"", b"\x01\x02", b"\xff" * 8 + b"{}", b"\x02" + b"\x00" * 7 + b"[["):
            (empty / "model.safetensors").write_bytes(content)
            with self.assertRaisesRegex(run_demo.DemoError, "no safetensors file"):
                run_demo.tensor_sizes(empty)

    def test_tokens_are_made_once_for_each_text(self):
        model, _ = self.small_model()
        text = self.folder / "corpus.txt"
        with contextlib.redirect_stdout(io.StringIO()):
            first = run_demo.tokens_for(model, text, self.folder)
            made = first.stat().st_mtime_ns
            self.assertEqual(run_demo.tokens_for(model, text, self.folder), first)
            self.assertEqual(first.stat().st_mtime_ns, made)
            text.write_text(text.read_text() + "more\n")
            self.assertNotEqual(run_demo.tokens_for(model, text, self.folder), first)

    def test_steps_are_read_from_metrics_that_a_killed_run_left(self):
        metrics = self.folder / "metrics.jsonl"
        steps = [dict(STEP, step=1 + i, loss=9.0 - i,
                      device_peak_bytes=STEP["device_peak_bytes"] + (i == 1) * 2**20)
                 for i in range(4)]
        lines = [json.dumps(step) for step in steps]
        lines.insert(2, json.dumps({"step": 2, "eval_loss": 5.0}))
        metrics.write_text("\n".join(lines) + '\n{"step": 5, "lo')
        read = run_demo.read_metrics(metrics)
        self.assertEqual(read, steps)
        self.assertEqual(run_demo.mean_loss(read[-2:]), 6.5)
        text = run_demo.comparison(read, 100 * 2**20)
        for part in ("parameters are 100.0 MiB", "400.0 MiB with gradients", "At most 61.0 MiB"):
            self.assertIn(part, text)

    def test_activations_are_estimated_above_what_was_measured(self):
        config = dict(make_demo_model.SHAPE, vocab_size=make_demo_model.VOCABULARY)
        largest = 4 * make_demo_model.VOCABULARY * config["n_embd"]
        estimate = run_demo.activation_bytes(config, largest, run_demo.BATCH, run_demo.SEQUENCE)
        # 48 MiB: what gemini-train reported as activations and temporaries of this shape.
        self.assertGreater(estimate, 48 * 2**20)
        self.assertLess(estimate, 53 * 2**20)

    def test_what_the_user_mistyped_is_said_without_a_traceback(self):
        arguments = ["--work", str(self.folder / "work"), "--packages", str(self.packages("p", False)),
                     "--gemini-train", "/none"]
        for more, message in ((["--model", "./none", "--text", "x"], "no such folder"),
                              (["--model", str(self.folder), "--text", "none.txt"],
                               "none.txt: no such file")):
            error = io.StringIO()
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(error):
                self.assertEqual(run_demo.main(arguments + more), 1)
            self.assertIn(message, error.getvalue())


if __name__ == "__main__":
    unittest.main()
