# SPDX-License-Identifier: Apache-2.0
"""Chats as a file of rows: from JSONL conversations to the safetensors that docs/data.md describes.

Conversations, texts, documents and rows follow each other through generators, so that memory does
not grow with the input.
"""
import dataclasses

import numpy

from .chat_template import ChatTemplate
from .conversations import read_conversations
from .data_error import DataError
from .document_rows import DocumentCounts, write_document_rows
from .documents import encode_chats
from .model_tokenizer import metadata_of, take_text_as_it_is


@dataclasses.dataclass(frozen=True)
class ChatOptions:
    """What the user decides; docs/data.md says what each value means."""
    sequence: int  # Tokens of a row.
    answers: str = "all"  # Or "last".
    layout: str = "pad"  # Or "pack".
    too_long: str = "error"  # Or "drop", or "cut".
    preview: int = 0  # How many rows are shown.


def write_chats(tokenizer, paths, output, options, progress=lambda n: None):
    """Encodes the conversations of JSONL files, in order, into `output`. Returns DocumentCounts.

    `tokenizer` is one of transformers. It serves one call, which changes what it does to the ends
    of a text.
    """
    template = ChatTemplate(tokenizer, options.answers)
    backend = tokenizer.backend_tokenizer
    made_by = metadata_of(backend)
    take_text_as_it_is(backend)
    # A post-processor adds nothing here, but may take white space out of tokens' places.
    backend.post_processor = None
    counts = DocumentCounts()
    conversations = (conversation for path in paths
                     for conversation in read_conversations(path, progress))
    documents = _fitting(encode_chats(backend, template, conversations), options, counts)
    metadata = {"task": "causal", **made_by, **template.metadata(),
                "answers": options.answers}
    write_document_rows(backend, documents, output, options, metadata, counts, "of answers")
    return counts


def _fitting(documents, options, counts):
    """Yields the documents that take part, none longer than a row."""
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
        if not numpy.count_nonzero(document.answers):  # Faster than any().
            kept = "" if num_tokens <= options.sequence else (
                f"first {options.sequence} of the ")
            raise DataError(f"{document.place}: nothing to learn: none of the {kept}{num_tokens} "
                            "tokens can be predicted as part of an answer"
                            f"{': take a larger --sequence, or --too-long drop' if kept else ''}")
        yield document
