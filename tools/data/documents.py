# SPDX-License-Identifier: Apache-2.0
"""Documents: texts as tokens. Those of a conversation are marked where they are to be predicted.

The whole text of a conversation is encoded at once, as it is when a model is used. Pieces of it,
encoded one by one, could come out as other tokens.
"""
import typing

import numpy

from .encoded_batches import encode_in_batches
from .text_encoder import TextEncoder


class Document(typing.NamedTuple):
    """A document's tokens, and which of them are marked for a model to learn them."""
    place: str  # Its file and line, as errors name them.
    tokens: numpy.ndarray  # int32 [number of tokens]
    answers: numpy.ndarray  # uint8 of the same length; 1: to be learnt.

    def first(self, num_tokens):
        """Returns the beginning of the document."""
        return Document(self.place, self.tokens[:num_tokens], self.answers[:num_tokens])


def encode_chats(tokenizer, template, conversations):
    """Yields the document of each conversation, by a tokenizers.Tokenizer and a ChatTemplate."""
    encoder = TextEncoder(tokenizer)
    chats = map(template.write, conversations)
    for chat, encoding in encode_in_batches(
            chats, lambda batch: encoder.encode([chat.text for chat in batch])):
        yield document_of(chat, encoder.place(chat.text, encoding))


def document_of(chat, encoded):
    """Returns a WrittenChat as a document, from the EncodedText of its text.

    The first token is never to be predicted, because nothing stands before it.

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
