#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests what tools/demo prepares and says, on small sizes.

demo_test.py [GEMINI_TRAIN]: without that program, no test trains.
"""
import contextlib
import io
import json
import pathlib
import re
import sys
import tempfile
import unittest
from unittest import mock

import numpy
import safetensors.numpy

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
import demo_answers
import make_demo_chats
import make_demo_model
import run_demo

TRAIN = sys.argv.pop(1) if len(sys.argv) > 1 and pathlib.Path(sys.argv[1]).is_file() else None
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


class ChatDemoTest(unittest.TestCase):
    SMALL = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
             "max_position_embeddings": 128}
    CHATS = [{"prompt": f"What is {thing}?", "completion": f"It is {what}."} for thing, what in (
        ("grass", "green"), ("the sky", "blue above us"), ("snow", "white, and cold"))]

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for patch in (mock.patch.dict(make_demo_chats.SHAPE, self.SMALL),
                      mock.patch.object(run_demo, "CHAT_SEQUENCE", 64)):
            patch.start()
            self.addCleanup(patch.stop)

    def demo(self, *arguments):
        """Returns the status of tools/demo --messages, and what it said."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = run_demo.main(["--work", str(self.folder / "work"), "--packages", "/none",
                                  "--gemini-train", str(TRAIN), "--messages", *arguments])
        return code, said.getvalue()

    def chats(self):
        path = self.folder / "chats.jsonl"
        path.write_text("".join(json.dumps(chat) + "\n" for chat in self.CHATS))
        return str(path)

    @unittest.skipIf(TRAIN is None, "there is no gemini-train")
    def test_answers_of_chats_are_learnt_and_shown_beside_those_before(self):
        code, said = self.demo(self.chats(), "--steps", "60")
        self.assertEqual(code, 0, said)
        first, last = map(float, re.search(r"answers went from (\S+) to (\S+)\.\n", said).groups())
        self.assertLess(last, first / 2)
        for chat in self.CHATS:
            self.assertRegex(said, f"{re.escape(chat['prompt'])}\n  before +after\n"
                                   f"  .* {re.escape(chat['completion'])}\n")
        self.assertIn("3 of 3 answers are now those of the chats", said)

    @unittest.skipIf(TRAIN is None, "there is no gemini-train")
    def test_answers_that_are_not_learnt_fail_with_both_losses(self):
        code, said = self.demo(self.chats(), "--steps", "2")
        self.assertEqual(code, 1, said)
        self.assertRegex(said, r"demo: the loss of the answers went from \d.\d+ to \d.\d+ "
                               "in 2 steps, which is not below half")
        self.assertIn("0 of 3 answers", said)

    def test_chats_about_documents_are_headings_and_first_sentences(self):
        sections = make_demo_chats.sections_of("""# A tool
Makes `one` thing,
and [another](page.md). And more.

## A list
- of things.

## A program
```
# Not a heading
Runs. This is no sentence.
```
**It** runs.

## A table
| a | b |

## No end
And so on
""")
        self.assertEqual(list(sections), [("A tool", "Makes one thing, and another."),
                                          ("A program", "It runs.")])

    def test_the_projects_documents_make_enough_chats(self):
        chats = make_demo_chats.chats_of(run_demo.DOCS.glob("*.md"))
        self.assertGreater(len(chats), 30)
        self.assertEqual(chats, make_demo_chats.chats_of(run_demo.DOCS.glob("*.md")))

    def test_an_answer_without_a_question_is_generated(self):
        tokenizer = make_demo_chats.train_tokenizer([[{"role": "user", "content": "a b c"}]])
        make_demo_chats.make_model(tokenizer, self.folder / "model")
        answers = demo_answers.answers_of(self.folder / "model",
                                          [[{"role": "assistant", "content": "a"}]])
        self.assertEqual(len(answers), 1)
        self.assertNotEqual(answers[0], "")

    def test_more_rows_take_more_steps_within_bounds(self):
        rows = self.folder / "rows.safetensors"
        for num_rows, num_steps in ((1, 150), (10, 200), (1000, 300)):
            safetensors.numpy.save_file({"tokens": numpy.zeros(1)}, rows, {"rows": str(num_rows)})
            self.assertEqual(run_demo.chat_steps(rows), num_steps)

    def test_chats_that_cannot_be_read_are_named(self):
        self.assertEqual(self.demo("none.jsonl"),
                         (1, "== Demo data: chats, tokenizer and checkpoint\n\n"
                             "demo: none.jsonl: No such file or directory\n"))


if __name__ == "__main__":
    unittest.main(argv=[word for word in sys.argv if word])  # Of a build without gemini-train one is empty.
