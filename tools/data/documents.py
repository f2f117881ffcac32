# SPDX-License-Identifier: Apache-2.0
"""Documents: conversations as tokens, each of which is to be predicted or not.

The whole text of a conversation is encoded at once, as it is when a model is used. Pieces of it,
encoded one by one, could come out as other tokens.
"""
import concurrent.futures
import typing

import numpy

from .data_error import DataError, first_line
from .text_encoder import TextEncoder

# A batch of conversations is encoded on all cores. A token takes some 300 bytes meanwhile, and
# there are two batches: one is being encoded while the other is made and taken apart.
BATCH_BYTES = 512 * 1024


class Document(typing.NamedTuple):
    """A conversation's tokens. The first is never to be predicted: nothing stands before it."""
    place: str  # Its file and line, as errors name them.
    tokens: numpy.ndarray  # int32 [number of tokens]
    answers: numpy.ndarray  # uint8 of the same length; 1: to be predicted.

    def first(self, num_tokens):
        """Returns the beginning of the document."""
        return Document(self.place, self.tokens[:num_tokens], self.answers[:num_tokens])


def encode_chats(tokenizer, template, conversations):
    """Yields the document of each conversation, by a tokenizers.Tokenizer and a ChatTemplate."""
    encoder = TextEncoder(tokenizer)

    def documents_of(chats, encodings):
        try:
            encodings = encodings.result()
        except Exception as error:  # The library raises bare Exception.
            raise DataError(f"{chats[0].place}, or soon behind: the tokenizer fails: "
                            f"{first_line(error)}") from error
        return (document_of(chat, encoder.place(chat.text, encoding))
                for chat, encoding in zip(chats, encodings))

    # The thread encodes without Python's lock, while this one writes the next batch's texts.
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as thread:
        before = None
        for batch in _batches(conversations):
            chats = [template.write(conversation) for conversation in batch]
            encodings = thread.submit(encoder.encode, [chat.text for chat in chats])
            if before is not None:
                yield from documents_of(*before)
            before = chats, encodings
        if before is not None:
            yield from documents_of(*before)


def document_of(chat, encoded):
    """Returns a WrittenChat as a document, from the EncodedText of its text.

    A token belongs to an answer if it begins in it and ends in it, or in the white space behind it,
    which an end token may take along. One that begins before the answer belongs to the header.
    """
    answers = numpy.zeros(encoded.tokens.size, dtype=numpy.uint8)
    borders = encoded.starts.searchsorted([(a.start, a.end) for a in chat.answers]).tolist()
    for answer, (first, last) in zip(chat.answers, borders):
        while last > first and encoded.ends[last - 1] > answer.space_end:
            last -= 1
        answers[first:last] = 1
    answers[:1] = 0
    return Document(chat.place, encoded.tokens, answers)


def _batches(conversations):
    batch, num_bytes = [], 0
    for conversation in conversations:
        batch.append(conversation)
        num_bytes += conversation.num_bytes
        if num_bytes >= BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch
