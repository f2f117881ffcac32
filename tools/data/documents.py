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
    firsts, lasts = placed.starts_before(borders[:, :2]).T
    lasts = numpy.minimum(lasts, placed.ends_by(borders[:, 2]))
    # In an answer is what lies behind more beginnings than ends.
    changes = numpy.zeros(placed.tokens.size + 1, dtype=numpy.int8)
    numpy.add.at(changes, firsts, 1)
    numpy.subtract.at(changes, numpy.maximum(firsts, lasts), 1)
    answers = (changes[:-1].cumsum(dtype=numpy.int8) > 0).view(numpy.uint8)
    sizes = numpy.array(sizes)
    answers[(sizes.cumsum() - sizes)[sizes > 0]] = 0
    end = 0
    for chat, size in zip(chats, sizes.tolist(), strict=True):
        begin, end = end, end + size
        # Copies do not keep the other documents in memory.
        yield Document(chat.place, placed.tokens[begin:end].copy(), answers[begin:end].copy())
