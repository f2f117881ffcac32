# SPDX-License-Identifier: Apache-2.0
"""Documents: texts as tokens. Those of a conversation are marked where they are to be predicted.

The whole text of a conversation is encoded at once, as it is when a model is used. Pieces of it,
encoded one by one, could come out as other tokens.
"""
import itertools
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
    for batch, encodings in encode_in_batches(
            chats, lambda batch: encoder.encode([chat.text for chat in batch])):
        yield from documents_of(batch, list(map(len, encodings)),
                                encoder.place([chat.text for chat in batch], encodings))


def documents_of(chats, sizes, placed):
    """Yields WrittenChats as documents. `sizes` are their numbers of tokens, and the EncodedText
    has all of these, as if the texts were one.

    The first token is never to be predicted, because nothing stands before it.

    A token belongs to an answer if it begins in it and ends in it, or in the white space behind it,
    which an end token may take along. One that begins before the answer belongs to the header.
    """
    begins = itertools.accumulate((len(chat.text) for chat in chats), initial=0)
    borders = numpy.array([(begin + answer.start, begin + answer.end, begin + answer.space_end)
                           for chat, begin in zip(chats, begins) for answer in chat.answers])
    firsts, lasts = placed.starts.searchsorted(borders[:, :2]).T
    lasts = numpy.minimum(lasts, placed.ends.searchsorted(borders[:, 2], side="right"))
    answers = numpy.zeros(placed.tokens.size, dtype=numpy.uint8)
    for first, last in zip(firsts.tolist(), lasts.tolist()):
        answers[first:last] = 1
    end = 0
    for chat, size in zip(chats, sizes, strict=True):
        begin, end = end, end + size
        answers[begin:end][:1] = 0
        # Copies do not keep the other documents in memory.
        yield Document(chat.place, placed.tokens[begin:end].copy(), answers[begin:end].copy())
