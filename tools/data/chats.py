# SPDX-License-Identifier: Apache-2.0
"""Chats as a file of rows: from JSONL conversations to the safetensors that docs/data.md describes.

Conversations, texts, documents and rows follow each other through generators, so that memory does
not grow with the input.
"""
import dataclasses
import pathlib

import numpy

from .chat_template import ChatTemplate
from .complete_file import complete_file
from .conversations import read_conversations
from .data_error import DataError
from .documents import encode_chats
from .model_tokenizer import digest_of, take_text_as_it_is
from .preview import preview_of
from .rows import first_fit, one_a_row
from .safetensors_writer import Column, SafetensorsWriter

FORMAT = "1"
# Padding is neither seen nor predicted, but looked up: the tokenizer's own may be one token too
# many for the model.
PADDING = 0


@dataclasses.dataclass(frozen=True)
class ChatOptions:
    """What the user decides; docs/data.md says what each value means."""
    sequence: int  # Tokens of a row.
    answers: str = "all"  # Or "last".
    layout: str = "pad"  # Or "pack".
    too_long: str = "error"  # Or "drop", or "cut".
    preview: int = 0  # How many rows are shown.


@dataclasses.dataclass
class ChatCounts:
    """What became of the conversations."""
    rows: int = 0
    documents: int = 0
    tokens: int = 0  # Without padding.
    answer_tokens: int = 0
    dropped: int = 0
    cut: int = 0
    previews: list = dataclasses.field(default_factory=list)


def write_chats(tokenizer, paths, output, options, progress=lambda n: None):
    """Encodes the conversations of JSONL files, in order, into `output`. Returns ChatCounts.

    `tokenizer` is one of transformers. It serves one call, which changes what it does to the ends
    of a text.
    """
    template = ChatTemplate(tokenizer, options.answers)
    backend = tokenizer.backend_tokenizer
    digest = digest_of(backend)
    take_text_as_it_is(backend)
    # A post-processor adds nothing here, but may take white space out of tokens' places.
    backend.post_processor = None
    counts = ChatCounts()
    columns = [Column("tokens", "I32", [options.sequence]),
               Column("documents", "I32", [options.sequence]),
               Column("answers", "U8", [options.sequence])]
    with (complete_file(output) as file,
          SafetensorsWriter(file, pathlib.Path(output).parent, columns) as writer):
        conversations = (conversation for path in paths
                         for conversation in read_conversations(path, progress))
        documents = _fitting(encode_chats(backend, template, conversations), options, counts)
        rows = (one_a_row(documents) if options.layout == "pad"
                else first_fit(documents, options.sequence))
        for row in rows:
            writer.append(*_arrays_of(row, options.sequence))
            counts.rows += 1
            if counts.rows <= options.preview:
                counts.previews.append(preview_of(backend, row, counts.rows, options.sequence))
        if counts.rows == 0:
            raise DataError(f"no conversation is left: all {counts.dropped} have more than "
                            f"--sequence {options.sequence} tokens: take a larger one, or "
                            "--too-long cut")
        writer.finish({
            "gemini.format": FORMAT, "task": "causal",
            "tokenizer": digest, "template": template.digest(),
            "sequence": str(options.sequence), "rows": str(counts.rows),
            "documents": str(counts.documents), "answers": options.answers,
            "layout": options.layout, "answer_tokens": str(counts.answer_tokens)})
    return counts


def _fitting(documents, options, counts):
    """Yields the documents that take part, none longer than a row, and counts them."""
    for document in documents:
        num_tokens = document.tokens.size
        if num_tokens > options.sequence:
            if options.too_long == "error":
                raise DataError(f"{document.place}: {num_tokens} tokens do not fit into --sequence "
                                f"{options.sequence}: take a larger one, or --too-long drop or cut")
            if options.too_long == "drop":
                counts.dropped += 1
                continue
            counts.cut += 1
            document = document.first(options.sequence)
        num_answers = int(document.answers.sum())
        if num_answers == 0:
            kept = "" if num_tokens <= options.sequence else (
                f"first {options.sequence} of the ")
            raise DataError(f"{document.place}: nothing to learn: none of the {kept}{num_tokens} "
                            "tokens can be predicted as part of an answer")
        counts.documents += 1
        counts.tokens += document.tokens.size
        counts.answer_tokens += num_answers
        yield document


def _arrays_of(row, sequence):
    """Returns the row's tokens, its documents' numbers and its answers, each [sequence]."""
    tokens = numpy.full(sequence, PADDING, dtype="<i4")
    numbers = numpy.zeros(sequence, dtype="<i4")
    answers = numpy.zeros(sequence, dtype=numpy.uint8)
    begin = 0
    for number, document in enumerate(row, start=1):
        end = begin + document.tokens.size
        tokens[begin:end] = document.tokens
        numbers[begin:end] = number
        answers[begin:end] = document.answers
        begin = end
    return tokens, numbers, answers
