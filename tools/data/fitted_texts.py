# SPDX-License-Identifier: Apache-2.0
"""Texts and pairs of texts as tokens with the special tokens around them, none longer than a row.

The tokens are those that transformers gives for tokenizer(text, text_pair), and cuts are those of
its truncation, "longest_first".
"""
import typing

import numpy

from .data_error import DataError
from .encoded_batches import encode_in_batches


class FittedText(typing.NamedTuple):
    """A text's tokens. The arrays have one length, which is that of a row at most."""
    source: typing.Any  # What was encoded.
    tokens: numpy.ndarray  # int32
    types: numpy.ndarray  # uint8, 1 for the second of a pair where the tokenizer tells them apart.
    is_added: numpy.ndarray  # bool; True: a special token that the tokenizer put there.


class TextFitter:
    """Encodes texts by a transformers tokenizer, and leaves none that is longer than a row."""

    def __init__(self, tokenizer, sequence, too_long, counts, has_pairs=True):
        """Makes texts fit into `sequence` tokens.

        `too_long` says what becomes of a text with more: "error" refuses it, "drop" leaves it out
        and counts it in `counts.dropped`, and "cut" shortens it and counts it in `counts.cut`.
        `has_pairs` says whether there may be pairs among the texts.
        """
        self._backend = tokenizer.backend_tokenizer
        self._sequence = sequence
        self._too_long = too_long
        self._keeps_end = tokenizer.truncation_side == "left"
        num_added = self._backend.num_special_tokens_to_add(is_pair=has_pairs)
        if too_long == "cut" and num_added >= sequence:
            raise DataError(f"--sequence {sequence} has no room for text: the tokenizer adds up to "
                            f"{num_added} special tokens")
        self._counts = counts

    def fit(self, texts):
        """Yields the FittedText of each text that is not left out, in order.

        A text has a `place`, `num_bytes`, and `input`: a string, or a pair of strings.
        """
        for batch, encodings in encode_in_batches(
                texts, lambda batch: self._backend.encode_batch_fast([it.input for it in batch])):
            for text, encoding in zip(batch, encodings, strict=True):
                yield from self._fitted(text, encoding)

    def _fitted(self, text, encoding):
        """Yields the FittedText of a text, or nothing where it is left out."""
        fitted = FittedText(text, numpy.array(encoding.ids, dtype=numpy.int32),
                            numpy.array(encoding.type_ids, dtype=numpy.uint8),
                            numpy.array(encoding.special_tokens_mask, dtype=bool))
        num_tokens = fitted.tokens.size
        if num_tokens == 0:
            raise DataError(f"{text.place}: the tokenizer makes no token of the text")
        if num_tokens <= self._sequence:
            yield fitted
        elif self._too_long == "cut":
            self._counts.cut += 1
            yield self._cut(fitted, encoding)
        elif self._too_long == "drop":
            self._counts.dropped += 1
        else:
            raise DataError(f"{text.place}: {num_tokens} tokens do not fit into --sequence "
                            f"{self._sequence}: take a larger one, or --too-long drop or cut")

    def _cut(self, fitted, encoding):
        """Takes tokens out of the texts. The special tokens around them depend on none of them."""
        # The number of each token's text, and -1 for special tokens.
        numbers = numpy.array([-1 if number is None else number
                               for number in encoding.sequence_ids])
        texts = [numpy.flatnonzero(numbers == number) for number in (0, 1)]
        kept = [numpy.flatnonzero(numbers == -1)]
        room = self._sequence - kept[0].size
        for places, length in zip(texts, longest_first(texts[0].size, texts[1].size, room)):
            kept.append(places[places.size - length:] if self._keeps_end else places[:length])
        kept = numpy.sort(numpy.concatenate(kept))
        return FittedText(fitted.source, fitted.tokens[kept], fitted.types[kept],
                          fitted.is_added[kept])


def longest_first(first, second, room):
    """Returns the lengths of two texts that are cut to share `room`, the longer of them first.

    Where both are cut, they get half of it each, and the longer one gets what is odd.
    """
    shorter = min(first, second, room // 2)
    if first > second:
        return room - shorter, shorter
    return shorter, room - shorter
