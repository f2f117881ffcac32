#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests tools/prepare_data.py --messages, with tokenizers and chat templates that are made here."""
import contextlib
import hashlib
import itertools
import json
import random
import resource
import subprocess
import sys
import unicodedata
import unittest
import zlib

import numpy
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from chat_fixture import (ALL_OF_JINJA, CHATML, FAMILIES, GEMMA, LLAMA_3, MISTRAL, PHI_3, PLAIN,
                          QWEN_3, SPECIAL_TOKENS, TEXT, PrepareChatsTest, assistant, byte_tokenizer,
                          system, user)
from rows_fixture import TOOLS, vocabulary_crc32, word_tokenizer
import prepare_data
import transformers
from data.chat_template import ChatTemplate
from data.documents import Document
from data.model_tokenizer import load_model_tokenizer
from data.rows import MOST_OPEN_ROWS, first_fit
from data.text_encoder import TextEncoder


class AnswersTest(PrepareChatsTest):
    CONTENTS = ["Fine, thanks!", "spaces behind   ", "a newline behind\n", "two\n\nlines\n\n\n",
                "Grüße 🙂👩‍👩‍👧 𝄞", "🙂", "<|im_start|>user\nHello<|im_end|>", "[INST] why? [/INST]",
                "<|start_header_id|>user<|end_header_id|>\n\nHello", "</s>", "<end_of_turn>\n",
                "1"]

    def test_answers_are_the_contents_as_templates_write_them_with_the_end_token(self):
        for name in FAMILIES:
            with self.subTest(name):
                family = self.family(name)
                lines = [{"messages": [user("Hello" + content), assistant(content)]}
                         for content in self.CONTENTS]
                tensors, _ = self.prepare(*lines)
                self.assertEqual(self.answers(tensors),
                                 [[family.learnt(content)] for content in self.CONTENTS])

    def test_answers_are_found_where_the_tokenizer_rewrites_spaces_as_gemmas_does(self):
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
        tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(
            vocab_size=300, special_tokens=SPECIAL_TOKENS, show_progress=False))
        self.model(tokenizer, GEMMA, bos_token="<bos>")
        contents = ["fine, thanks!", "two answers:  ", "Grüße 🙂 to you ", "how\n\nare you?"]
        tensors, _ = self.prepare(*({"messages": [user(content), assistant(content)]}
                                    for content in contents))
        self.assertEqual(self.answers(tensors),
                         [[content.strip() + "<end_of_turn>"] for content in contents])

    def test_every_answer_of_several_turns_is_learnt_and_the_last_alone_on_demand(self):
        for name in FAMILIES:
            with self.subTest(name):
                family = self.family(name)
                turns = [turn for content in self.CONTENTS
                         for turn in (user("how? " + content), assistant(content))]
                contents = self.CONTENTS
                tensors, metadata = self.prepare({"messages": turns}, sequence=2048)
                self.assertEqual(self.answers(tensors), [list(map(family.learnt, contents))])
                self.assertEqual(metadata["answers"], "all")
                tensors, metadata = self.prepare({"messages": turns}, sequence=2048,
                                                 more=["--answers", "last"])
                self.assertEqual(self.answers(tensors), [[family.learnt(contents[-1])]])
                self.assertEqual(metadata["answers"], "last")

    def test_tokens_are_those_of_the_whole_text_and_of_nothing_else(self):
        tokenizer = byte_tokenizer()
        begin = "<|begin_of_text|>"
        # As Llama's is: without the template, it would put the first token before a text itself.
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", special_tokens=[(begin, tokenizer.token_to_id(begin))])
        self.model(tokenizer, LLAMA_3, bos_token=begin)
        tensors, _ = self.prepare({"messages": [system(" Be kind. "), user("Hello"),
                                                assistant("Hello there")]})
        header = "<|start_header_id|>{}<|end_header_id|>\n\n"
        text = (begin + header.format("system") + "Be kind.<|eot_id|>" +
                header.format("user") + "Hello<|eot_id|>" +
                header.format("assistant") + "Hello there<|eot_id|>")
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        self.assertEqual(tensors["tokens"][0, :len(ids)].tolist(), ids)
        self.assertEqual(tensors["documents"][0].tolist(), [1] * len(ids) + [0] * (512 - len(ids)))

    def test_a_system_turn_is_not_learnt_and_is_refused_by_line_where_a_template_has_none(self):
        lines = [{"messages": [user("Hello"), assistant("fine")]},
                 {"messages": [system("Be kind."), user("Hello"), assistant("fine")]}]
        for name, family in FAMILIES.items():
            with self.subTest(name):
                self.output.unlink(missing_ok=True)
                self.family(name)
                if family.has_system:
                    tensors, _ = self.prepare(*lines)
                    self.assertEqual(self.answers(tensors), [[family.learnt("fine")]] * 2)
                else:
                    self.assert_refused(self.call(self.file(*lines)), "a.jsonl, line 2: messages",
                                        "template refuses", "ystem" if name == "Gemma" else "roles")

    def test_turns_behind_the_last_answer_are_left_out(self):
        self.family("ChatML")
        turns = [user("Hello"), assistant("fine")]
        with_more, _ = self.prepare({"messages": turns + [user("Hello there"), system("Be kind.")]})
        tensors, _ = self.prepare({"messages": turns})
        self.assertEqual(with_more["tokens"].tolist(), tensors["tokens"].tolist())

    def test_a_call_of_a_tool_is_learnt_though_its_message_says_nothing(self):
        written = ("{{ message['content'] if message['content'] is not none else '' }}"
                   "{% for call in message['tool_calls'] %}{{ '[call ' + call + ']' }}{% endfor %}")
        self.model(byte_tokenizer(), (
            "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}" + written +
            "{{ '<|im_end|>\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"))
        tensors, _ = self.prepare({"messages": [
            user("Hello"), {"role": "assistant", "content": None, "tool_calls": ["why"]},
            {"role": "tool", "content": "fine"},
            {"role": "assistant", "content": "thanks", "tool_calls": ["how"]},
            {"role": "tool", "content": "fine"}, assistant("fine")]})
        self.assertEqual(self.answers(tensors), [["[call why]<|im_end|>",
                                                  "thanks[call how]<|im_end|>", "fine<|im_end|>"]])

    def test_an_answer_may_come_first_and_follow_an_answer_and_be_empty(self):
        self.family("ChatML")
        tensors, _ = self.prepare({"messages": [
            assistant("Hello there"), assistant("how are you?"), user("fine"), assistant("")]})
        self.assertEqual(self.answers(tensors),
                         [["Hello there<|im_end|>", "how are you?<|im_end|>", "<|im_end|>"]])
        self.family("Gemma")
        self.output.unlink()
        self.assert_refused(self.call(self.file({"messages": [assistant("Hello")]})),
                            "line 1: messages: the chat template refuses the first 0")

    def test_a_token_that_spans_the_border_to_an_answer_counts_as_header(self):
        self.family("ChatML")
        # The last newline of three is a token of its own by the pattern, and those before are one.
        self.assertIn("ĊĊ", self.tokenizer.get_vocab())
        tensors, _ = self.prepare({"messages": [user("Hello"), assistant("\n\nfine")]})
        self.assertEqual(self.answers(tensors), [["\nfine<|im_end|>"]])

    def test_a_token_that_spans_the_border_is_seen_where_places_lack_white_space(self):
        tokenizer = byte_tokenizer()
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
        # This makes the library's own places count, for it takes white space along.
        tokenizer.add_special_tokens([tokenizers.AddedToken("<|end|>", rstrip=True, special=True)])
        self.model(tokenizer, PLAIN)
        self.assertIn("Ġquestion", tokenizer.get_vocab())
        tensors, _ = self.prepare({"messages": [user("Hello<|end|>"),
                                                assistant("question is fine")]})
        self.assertEqual(self.answers(tensors), [[" is fine\n"]])

    def test_an_end_token_that_takes_the_newline_behind_it_is_learnt(self):
        tokenizer = byte_tokenizer()
        tokenizer.add_special_tokens([tokenizers.AddedToken("<|end|>", rstrip=True, special=True)])
        self.model(tokenizer, CHATML.replace("<|im_end|>", "<|end|>"))
        tensors, _ = self.prepare({"messages": [user("Hello"), assistant("fine"), user("Hello"),
                                                assistant("thanks")]})
        self.assertEqual(self.answers(tensors), [["fine<|end|>", "thanks<|end|>"]])

    def test_what_a_template_adds_behind_the_end_token_is_not_learnt(self):
        tokenizer = byte_tokenizer(SPECIAL_TOKENS + ["<|end|>", "<|user|>", "<|assistant|>"])
        contents = ["fine", "", " two\nlines ", "<|end|>"]
        always_asks = LLAMA_3.replace("{% if add_generation_prompt %}", "{% if true %}")
        for template, end in (PHI_3, "<|end|>"), (always_asks, "<|eot_id|>"):
            with self.subTest(end):
                self.model(tokenizer, template, bos_token="<|begin_of_text|>",
                           eos_token="<|endoftext|>")
                trims = template is always_asks
                learnt = [(content.strip() if trims else content) + end for content in contents]
                turns = [turn for content in contents
                         for turn in (user("Hello"), assistant(content))]
                for more, expected in ([], learnt), (["--answers", "last"], learnt[-1:]):
                    tensors, _ = self.prepare({"messages": turns}, sequence=512, more=more)
                    self.assertEqual(self.answers(tensors), [expected])

    def test_thoughts_that_a_template_writes_before_an_answer_are_learnt_with_an_empty_one(self):
        thinks = CHATML.replace(
            "'\n' + message['content']",
            "'\n' + ('<think>\n' + message['reasoning_content'] | default('') + '\n</think>\n\n' "
            "if message['role'] == 'assistant' else '') + message['content']")
        self.assertIn("<think>", thinks)
        self.model(byte_tokenizer([*SPECIAL_TOKENS, "<think>", "</think>"]), thinks)
        thoughtful = {"role": "assistant", "content": "", "reasoning_content": "no idea"}
        tensors, _ = self.prepare({"messages": [
            user("Hello"), assistant(""), user("why?"), thoughtful, user("so"), assistant("fine")]})
        self.assertEqual(self.answers(tensors), [[
            "<think>\n\n</think>\n\n<|im_end|>", "<think>\nno idea\n</think>\n\n<|im_end|>",
            "<think>\n\n</think>\n\nfine<|im_end|>"]])

    def test_a_header_that_the_template_does_not_ask_with_is_refused(self):
        # As Zephyr's, which asks behind a message alone, and here there is none before the answer.
        self.model(byte_tokenizer(), (
            "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] "
            "+ eos_token + '\n' }}{% if loop.last and add_generation_prompt %}"
            "{{ '<|assistant|>\n' }}{% endif %}{% endfor %}"), eos_token="</s>")
        path = self.file({"messages": [assistant("fine"), user("Hello"), assistant("fine")]})
        self.assert_refused(
            self.call(path),
            "line 1: messages[0]", "add_generation_prompt adds nothing", "<|assistant|>")

    def test_an_end_that_shares_a_token_with_the_next_turn_is_not_learnt(self):
        # The newline behind a turn is one token with the first of those before the next turn.
        self.model(byte_tokenizer(), PLAIN.replace("{{ message", "{{ '\n\n' + message")
                   .replace("{{ 'assistant", "{{ '\n\nassistant"))
        tensors, _ = self.prepare({"messages": [user("Hello"), assistant("(fine)"), user("Hello"),
                                                assistant("(fine)")]})
        self.assertEqual(self.answers(tensors), [["(fine)", "(fine)\n"]])

    def test_without_an_end_token_all_that_the_template_writes_for_a_turn_is_learnt(self):
        self.model(byte_tokenizer(), PLAIN)
        tensors, _ = self.prepare({"messages": [user("Hello"), assistant("(fine)"), user("Hello"),
                                                assistant("(fine)")]})
        self.assertEqual(self.answers(tensors), [["(fine)\n", "(fine)\n"]])

    def test_a_template_that_rewrites_earlier_turns_serves_for_the_last_answer_alone(self):
        self.model(byte_tokenizer(), QWEN_3)
        thought = "<think>\nwhy?\n</think>\n\nfine"
        one = {"messages": [user("Hello"), assistant(thought)]}
        two = {"messages": [user("Hello"), assistant(thought), user("how?"), assistant(thought)]}
        self.assert_refused(self.call(self.file(one, two)), "a.jsonl, line 2: messages[1]:",
                            "--answers last")
        tensors, _ = self.prepare(one, two, more=["--answers", "last"])
        self.assertEqual(self.answers(tensors), [[thought + "<|im_end|>"]] * 2)

    def test_a_template_that_asks_otherwise_than_it_answers_is_refused(self):
        self.model(byte_tokenizer(), CHATML.replace("<|im_start|>assistant", "<|im_start|>bot"))
        self.assert_refused(self.call(self.file({"messages": [user("a"), assistant("b")]})),
                            "line 1: messages[1]", "writes 'assistant", "asks with 'bot")

    def test_templates_are_rendered_as_transformers_renders_them(self):
        hello, fine = user(" <Hello> "), assistant("fine ")
        call = {"role": "assistant", "content": None, "tool_calls": ["why"]}
        for template in (CHATML, LLAMA_3, MISTRAL, GEMMA, QWEN_3, PHI_3, PLAIN, ALL_OF_JINJA):
            self.model(byte_tokenizer(), template, bos_token="<s>", eos_token="</s>")
            tokenizer = load_model_tokenizer(str(self.folder / "model"), "--messages")
            ours = ChatTemplate(tokenizer, "all")
            chats = [[hello], [hello, fine], [hello, fine] * 3]
            if template is ALL_OF_JINJA:
                chats += [[], [hello, call], [{**hello, "name": None, "thinking": "why"}, fine]]
            for messages, asks in itertools.product(chats, (False, True)):
                with self.subTest(template=template, messages=messages, asks=asks):
                    theirs, = tokenizer.apply_chat_template(
                        [messages], tokenize=False, add_generation_prompt=asks)
                    self.assertEqual(ours._render(messages, asks), theirs)

    def test_prompt_and_completion_are_two_turns_of_a_template(self):
        self.family("Llama 3")
        pair, _ = self.prepare({"prompt": "Hello", "completion": " fine ", "id": 1})
        turns, _ = self.prepare({"messages": [user("Hello"), assistant(" fine ")]})
        self.assertEqual(pair["tokens"].tolist(), turns["tokens"].tolist())
        self.assertEqual(pair["answers"].tolist(), turns["answers"].tolist())

    def test_prompt_and_completion_follow_each_other_where_there_is_no_template(self):
        self.model(byte_tokenizer(), eos_token="<|endoftext|>")
        tensors, metadata = self.prepare({"prompt": "The answer", "completion": " is fine"})
        ids = self.tokenizer.encode("The answer is fine<|endoftext|>").ids
        self.assertEqual(tensors["tokens"][0, :len(ids)].tolist(), ids)
        self.assertEqual(self.answers(tensors), [[" is fine<|endoftext|>"]])
        self.assertEqual(metadata["template"], "")
        # Nothing stands before the first token, so it cannot be predicted.
        tensors, _ = self.prepare({"prompt": "", "completion": "Hello there"})
        self.assertEqual(tensors["answers"][0, :2].tolist(), [0, 1])

    def test_a_template_in_a_file_of_its_own_is_read(self):
        folder = self.model(byte_tokenizer())
        (folder / "chat_template.jinja").write_text(CHATML)
        tensors, metadata = self.prepare({"messages": [user("Hello"), assistant("fine")]})
        self.assertEqual(self.answers(tensors), [["fine<|im_end|>"]])
        self.assertEqual(metadata["template"], hashlib.sha256(CHATML.encode()).hexdigest())
        self.assertEqual(metadata["template_crc32"], f"{zlib.crc32(CHATML.encode()):08x}")


class TextEncoderTest(unittest.TestCase):
    PARTS = ["Hello", " ", "  ", "\n", "\n\n\n", "é", "e\u0301", "🙂", "👩‍👩‍👧", "\0", "ß", "𝄞",
             "µ", "1", "<|im_end|>", "question", "<|end|>", "!?", "\u3000", "Ġ"]
    # Composition makes the first character three bytes longer, and each of the others one shorter.
    TEXTS = ["", "\u0958" + "e\u0301" * 3, "question Hello", *PARTS]

    def assert_places_are_the_librarys(self, tokenizer, seed):
        random_ = random.Random(seed)
        texts = self.TEXTS + ["".join(random_.choices(self.PARTS, k=random_.randint(1, 40)))
                              for _ in range(300)]
        encoder = TextEncoder(tokenizer)
        expected = tokenizer.encode_batch(texts, add_special_tokens=False)
        composed = [text for text in texts if unicodedata.is_normalized("NFC", text)]
        # All of them at once, those whose tokens' lengths tell places, and each by itself.
        for part in (texts, composed, *([text] for text in texts)):
            placed = encoder.place(part, encoder.encode(part)).in_characters()
            last = begin = 0
            for text in part:
                whole = expected[texts.index(text)]
                first, last = last, last + len(whole)
                self.assertEqual(placed.tokens[first:last].tolist(), whole.ids, repr(text))
                self.assertEqual([*zip(placed.starts[first:last] - begin,
                                       placed.ends[first:last] - begin)], whole.offsets, repr(text))
                begin += len(text)
            self.assertEqual(placed.tokens.size, last)

    def test_places_are_those_of_the_library(self):
        plain, spaces, composed, replaced, narrow = (byte_tokenizer() for _ in range(5))
        plain.add_tokens(["Ġ", "question"])
        self.assert_places_are_the_librarys(plain, seed=1)
        spaces.add_special_tokens([tokenizers.AddedToken("<|end|>", rstrip=True, lstrip=True)])
        spaces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        self.assert_places_are_the_librarys(spaces, seed=2)
        composed.normalizer = normalizers.NFC()
        self.assert_places_are_the_librarys(composed, seed=3)
        replaced.normalizer = normalizers.Sequence(
            [normalizers.Replace("question", "quest"), normalizers.Replace("Hello", "Helloooo")])
        self.assert_places_are_the_librarys(replaced, seed=6)
        narrow.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(add_prefix_space=False)])
        self.assert_places_are_the_librarys(narrow, seed=4)
        self.assert_places_are_the_librarys(word_tokenizer(), seed=5)


class RowsTest(PrepareChatsTest):
    def words(self, *lengths):
        """Makes a line for each length in tokens. Its words, from w1 on, tell the line."""
        return [{"prompt": f"w{number} " * (length - 2), "completion": f"w{number}"}
                for number, length in enumerate(lengths, start=1)]

    def numbers(self, tensors):
        """Returns which lines stand in each row."""
        return [[int(tokens[documents == number][0]) - self.tokenizer.token_to_id("w0")
                 for number in range(1, documents.max() + 1)]
                for tokens, documents in zip(tensors["tokens"], tensors["documents"])]

    def setUp(self):
        super().setUp()
        self.model(word_tokenizer(), eos_token="</s>")

    def test_padding_gives_each_conversation_a_row(self):
        tensors, metadata = self.prepare(*self.words(6, 3, 8), sequence=8)
        self.assertEqual(self.numbers(tensors), [[1], [2], [3]])
        self.assertEqual(tensors["documents"].tolist(),
                         [[1] * 6 + [0] * 2, [1] * 3 + [0] * 5, [1] * 8])
        self.assertEqual(tensors["answers"].tolist(), [[0] * 4 + [1, 1, 0, 0],
                                                       [0, 1, 1] + [0] * 5, [0] * 6 + [1, 1]])
        self.assertEqual(tensors["tokens"][1, 3:].tolist(), [0] * 5)
        self.assertEqual(metadata["layout"], "pad")

    def test_packing_puts_each_conversation_into_the_first_row_with_room(self):
        tensors, metadata = self.prepare(*self.words(6, 7, 3, 4, 10, 3, 2), sequence=10,
                                         more=["--pack"])
        # Line 3 would fill the row of line 2, but that of line 1 comes first. Full rows go at once.
        self.assertEqual(self.numbers(tensors), [[5], [2, 6], [1, 3], [4, 7]])
        self.assertEqual(tensors["documents"][3].tolist(), [1] * 4 + [2] * 2 + [0] * 4)
        self.assertEqual(tensors["answers"][3].tolist(), [0, 0, 1, 1, 0, 1] + [0] * 4)
        self.assertEqual((metadata["rows"], metadata["documents"], metadata["layout"]),
                         ("4", "7", "pack"))
        self.assertEqual(metadata["answer_tokens"], str(tensors["answers"].sum()))

    def test_packed_conversations_are_the_padded_ones(self):
        lengths = [2 + (7 * i) % 13 for i in range(30)]
        padded, _ = self.prepare(*self.words(*lengths), sequence=16)
        packed, metadata = self.prepare(*self.words(*lengths), sequence=16, more=["--pack"])
        self.assertLess(int(metadata["rows"]), 20)

        def documents(tensors):
            return sorted((row["tokens"].tolist(), row["answers"].tolist()) for row in (
                {name: tensors[name][i][tensors["documents"][i] == number]
                 for name in ("tokens", "answers")}
                for i in range(len(tensors["tokens"]))
                for number in range(1, tensors["documents"][i].max() + 1)))
        self.assertEqual(documents(packed), documents(padded))
        for row in packed["documents"]:
            filled = row[row > 0]
            self.assertTrue((numpy.diff(filled) >= 0).all() and (row[filled.size:] == 0).all())

    def test_rows_wait_for_documents_in_bounded_number_and_the_oldest_goes_first(self):
        def document(number, length):
            tokens = numpy.full(length, number)
            return Document("", tokens, tokens)
        drawn = 0

        def documents():
            nonlocal drawn
            for drawn in range(MOST_OPEN_ROWS + 2):
                yield document(drawn, 6)
            yield document(-1, 4)

        rows = first_fit(documents(), 10)
        self.assertEqual(next(rows)[0].tokens[0], 0)
        self.assertEqual(drawn, MOST_OPEN_ROWS)
        self.assertEqual([len(row) for row in rows], [1, 2] + [1] * (MOST_OPEN_ROWS - 1))

    def test_padding_is_a_token_that_every_model_has(self):
        # A padding token is often added to a tokenizer, behind the model's vocabulary.
        self.model(word_tokenizer(), eos_token="</s>", pad_token="w39")
        tensors, _ = self.prepare(*self.words(3), sequence=4)
        self.assertEqual(tensors["tokens"][0, 3], 0)

    def test_what_is_too_long_is_refused_or_dropped_or_cut(self):
        lines = self.words(4, 7, 6)
        self.assert_refused(self.call(self.file(*lines), sequence=6), "line 2: 7 tokens",
                            "--sequence 6", "--too-long drop or cut")
        tensors, metadata = self.prepare(*lines, sequence=6, more=["--too-long", "drop"])
        self.assertEqual((self.numbers(tensors), metadata["documents"]), ([[1], [3]], "2"))
        self.assertIn("0 were cut and 1 dropped", self.said)
        tensors, metadata = self.prepare(*lines, sequence=6, more=["--too-long", "cut"])
        self.assertEqual((self.numbers(tensors), metadata["documents"]), ([[1], [2], [3]], "3"))
        self.assertEqual(tensors["answers"][1].tolist(), [0, 0, 0, 0, 0, 1])
        self.assertIn("1 were cut and 0 dropped", self.said)

    def test_a_conversation_that_loses_all_its_answers_is_refused(self):
        lines = self.words(4, 7)
        self.output.unlink(missing_ok=True)
        self.assert_refused(self.call(self.file(*lines), sequence=5, more=["--too-long", "cut"]),
                            "line 2: nothing to learn: none of the first 5 of the 7 tokens",
                            "take a larger --sequence, or --too-long drop")
        self.assert_refused(self.call(self.file(*lines), sequence=3, more=["--too-long", "drop"]),
                            "no document is left: all 2", "--sequence 3")

    def test_the_file_is_the_one_described(self):
        tensors, metadata = self.prepare(*self.words(6, 3, 5), sequence=8, more=["--pack"])
        self.assertEqual({name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()},
                         {"tokens": (numpy.int32, (2, 8)), "documents": (numpy.int32, (2, 8)),
                          "answers": (numpy.uint8, (2, 8))})
        used = transformers.AutoTokenizer.from_pretrained(self.folder / "model").backend_tokenizer
        digest = hashlib.sha256(used.to_str().encode()).hexdigest()
        self.assertEqual(metadata, {
            "gemini.format": "1", "task": "causal", "tokenizer": digest, "template": "",
            "vocabulary_crc32": vocabulary_crc32(used), "template_crc32": "",
            "sequence": "8", "rows": "2", "documents": "3", "answers": "all", "layout": "pack",
            "answer_tokens": "6"})
        self.assertIn("2 rows of 8 tokens, 87.5% filled", self.said)

    def test_the_same_lines_give_the_same_bytes_in_one_file_or_two(self):
        lines = self.words(*(2 + i % 9 for i in range(50)))
        self.prepare(*lines, sequence=12, more=["--pack"])
        before = self.output.read_bytes()
        self.prepare(*lines, sequence=12, more=["--pack"])
        self.assertEqual(self.output.read_bytes(), before)
        files = self.file(*lines[:20], name="1"), self.file(*lines[20:], name="2")
        self.assertIsNone(self.call(*files, sequence=12, more=["--pack"]))
        self.assertEqual(self.output.read_bytes(), before)

    def test_many_batches_give_the_rows_of_their_lines_in_order(self):
        # Three batches by their bytes, which white space makes long.
        lines = [json.dumps(line).encode() + b" " * 20_000 + b"\n"
                 for line in self.words(*([3] * 58))]
        tensors, _ = self.prepare(*lines, sequence=3)
        self.assertEqual(self.numbers(tensors), [[i] for i in range(1, 59)])

    def test_a_preview_shows_the_first_rows_with_answers_marked(self):
        self.prepare(*self.words(4, 3, 6), sequence=8, more=["--pack", "--preview", "1"])
        self.assertIn("== row 1, document 2: 3 tokens, 2 of answers\nw2[[w2 </s>]]\n", self.said)
        self.assertIn("== row 1: 1 of 8 tokens are padding", self.said)
        self.assertNotIn("row 2", self.said)


class ErrorsTest(PrepareChatsTest):
    GOOD = {"messages": [user("Hello"), assistant("fine")]}

    def setUp(self):
        super().setUp()
        self.family("ChatML")

    def test_a_line_that_cannot_be_used_is_refused_by_file_line_and_key(self):
        for line, *parts in (
                (b'{"messages": [}\n', "is no JSON", "column 15"),
                (b"\xff{}\n", "not UTF-8 at byte 0"),
                (b"[" * 100_000 + b"\n", "is no JSON that Python reads"),
                ([], "is no JSON object"),
                ({}, "neither the key messages nor the keys prompt and completion"),
                ({"text": "Hello"}, "neither the key messages"),
                ({"messages": "Hello"}, ": messages: no list"),
                ({"messages": []}, ": messages: no answer"),
                ({"messages": [user("a"), system("b")]}, ": messages: no answer: none of 2"),
                ({"messages": ["a"]}, ": messages[0]: no object"),
                ({"messages": [user("a"), {"role": "bot", "content": "b"}]},
                 ": messages[1].role: unknown role 'bot'", "system, user, assistant, tool"),
                ({"messages": [{"content": "b"}]}, ": messages[0].role: unknown role None"),
                ({"messages": [{"role": ["user"], "content": "b"}]},
                 ".role: unknown role ['user']"),
                ({"messages": [user("a"), {"role": "assistant"}]},
                 ": messages[1].content: missing"),
                ({"messages": [user(1), assistant("b")]}, ": messages[0].content: no text"),
                ({"messages": [user(None), assistant("b")]}, ": messages[0].content: no text"),
                ({"messages": [user("a"), {"role": "assistant", "content": None,
                                           "tool_calls": []}]}, ": messages[1].content: no text"),
                ({"messages": [user("a"), {"role": "assistant", "tool_calls": ["b"]}]},
                 ": messages[1].content: missing"),
                ({"prompt": "a"}, ": completion: missing"),
                ({"completion": "a"}, ": prompt: missing"),
                ({"prompt": ["a"], "completion": "a"}, ": prompt: no text"),
                ({**self.GOOD, "tools": [{"name": "a"}]}, ": tools: "),
                ({"prompt": "\ud83d", "completion": "a"}, "'\\ud83d' is half a character")):
            with self.subTest(line=line if len(line) < 1000 else "long"):
                path = self.file(self.GOOD, b"\n", line, self.GOOD)
                self.assert_refused(self.call(path), f"{path}, line 3", *parts)

    def test_a_line_of_a_later_batch_and_file_is_refused_by_its_own_number(self):
        first = self.file(self.GOOD)
        second = self.file(*[self.GOOD] * 20_000, {}, name="b.jsonl")
        self.assert_refused(self.call(first, second, sequence=32), f"{second}, line 20001 ")

    def test_a_byte_order_mark_and_lines_of_white_space_are_no_error(self):
        tensors, metadata = self.prepare(b"\xef\xbb\xbf", self.GOOD, b" \r\n", self.GOOD, b"\n")
        self.assertEqual(metadata["rows"], "2")

    def test_files_that_are_missing_or_empty_are_refused(self):
        good = self.file(self.GOOD)
        self.assert_refused(self.call(good, self.folder / "none"), "none: no such file")
        for content in (b"", b"\n \n"):
            self.assert_refused(self.call(good, self.file(content, name="b.jsonl")),
                                "b.jsonl is empty")

    def test_a_tokenizer_that_lacks_what_is_needed_is_refused(self):
        good, pair = self.file(self.GOOD), self.file({"prompt": "a", "completion": "b"}, name="b")
        self.model(byte_tokenizer())
        self.assert_refused(self.call(good), "a.jsonl, line 1: messages: the tokenizer has no chat "
                            "template", "chat_template.jinja")
        self.assert_refused(self.call(pair), "line 1: completion:", "no", "eos_token")
        self.assert_refused(self.call(good, tokenizer=self.folder / "model/tokenizer.json"),
                            "--messages needs the tokenizer's folder")
        self.assert_refused(self.call(good, tokenizer=self.folder / "none"), "no tokenizer at")
        (self.folder / "model/tokenizer.json").write_text("{}")
        self.assert_refused(self.call(good), "model has no tokenizer that transformers reads")
        self.model(byte_tokenizer(), "{% for %}")
        self.assert_refused(self.call(good), "line 1: messages: the chat template refuses")

    def test_a_text_that_the_tokenizer_cannot_encode_is_refused(self):
        tokenizer = tokenizers.Tokenizer(models.WordLevel({"w0": 0}, unk_token="none"))
        self.model(tokenizer, eos_token="</s>")
        self.assert_refused(self.call(self.file({"prompt": "a", "completion": "b"})),
                            "a.jsonl, line 1: the tokenizer fails")

    def test_nothing_to_learn_is_refused(self):
        self.model(byte_tokenizer(), eos_token="<|endoftext|>")
        self.assert_refused(self.call(self.file({"prompt": "", "completion": ""})),
                            "a.jsonl, line 1: nothing to learn: none of the 1 tokens")

    def test_truncation_and_padding_saved_with_a_tokenizer_change_nothing(self):
        expected, _ = self.prepare(self.GOOD)
        tokenizer = byte_tokenizer()
        tokenizer.enable_truncation(4)
        tokenizer.enable_padding(length=20)
        self.model(tokenizer, CHATML)
        tensors, _ = self.prepare(self.GOOD)
        self.assertEqual(tensors["documents"].tolist(), expected["documents"].tolist())
        self.assertEqual(tensors["answers"].tolist(), expected["answers"].tolist())

    def test_options_that_do_not_go_together_are_refused(self):
        good = self.file(self.GOOD)
        self.assert_refused(self.call(good, output=self.folder / "rows.npy"),
                            "must end with .safetensors")
        for more, message in ((["--separator", "a"], "--separator goes with --text"),
                              (["--dtype", "auto"], "--dtype goes with --text"),
                              (["--pad", "--pack"], "not allowed with"),
                              (["--text", "a"], "not allowed with"),
                              (["--sequence", "1"], "1 is less than 2"),
                              (["--sequence", "99999999"], "99999999 is more than 1048576")):
            self.assert_refused(self.call(good, more=more), message)
        for more, message in (([], "--messages needs --sequence"),
                              (["--too-long", "cut"], "--too-long goes with --messages"),
                              (["--pack"], "--pack goes with --messages")):
            source = "--text" if more else "--messages"
            with self.assertRaises(SystemExit) as refused:
                prepare_data.main(["--tokenizer", "a", source, str(good), "--output",
                                   str(self.output), *more])
            self.assertIn(message, refused.exception.code)

    def test_an_output_that_cannot_be_written_is_refused_by_its_name(self):
        good = self.file(self.GOOD)
        self.assert_refused(self.call(good, output=self.folder / "no/such.safetensors"),
                            "no/such.safetensors: No such file or directory")
        self.assert_refused(self.call(good, output=self.folder / "a.jsonl/b.safetensors"),
                            "b.safetensors: Not a directory")

    def test_the_program_leaves_no_temporary_file_when_it_is_ended(self):
        self.prepare(self.GOOD)
        before = self.output.read_bytes()
        path = self.file(*[self.GOOD] * 200_000)
        with subprocess.Popen(
                [sys.executable, TOOLS / "prepare_data.py", "--tokenizer", self.folder / "model",
                 "--messages", path, "--sequence", "32", "--output", self.output],
                stderr=subprocess.DEVNULL) as program:
            while not list(self.folder.glob("*.tmp")):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.fail(f"ended by itself: {program.wait(timeout=0.01)}")
            program.terminate()
        self.assertEqual(program.returncode, 128 + 15)
        self.assertEqual(list(self.folder.glob("*.tmp")), [])
        self.assertEqual(self.output.read_bytes(), before)

    def test_the_program_leaves_the_old_output_as_it_was_when_the_disk_is_full(self):
        self.prepare(self.GOOD)
        before = self.output.read_bytes()
        path = self.file(*[self.GOOD] * 50)

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        result = subprocess.run(
            [sys.executable, TOOLS / "prepare_data.py", "--tokenizer", self.folder / "model",
             "--messages", path, "--sequence", "512", "--output", self.output],
            capture_output=True, text=True, check=False, preexec_fn=limit)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(result.stderr,
                         f"prepare_data: {self.output}: File too large\n")
        self.assertEqual(self.output.read_bytes(), before)
        self.assertEqual([p.name for p in self.folder.iterdir() if ".tmp" in p.name], [])


if __name__ == "__main__":
    unittest.main()
