# SPDX-License-Identifier: Apache-2.0
"""Texts as tokens, with the place of each token in its text.

The library tokenizers tells places, and takes a quarter longer for them. A byte-level vocabulary
does without: it spells each byte of a text by one character, so tokens' lengths say where they lie.
"""
import itertools
import typing
import unicodedata

import numpy
from tokenizers import decoders, normalizers


class EncodedText(typing.NamedTuple):
    """Tokens, and the places [start, end) of each, in characters or in bytes of UTF-8."""
    tokens: numpy.ndarray  # int32 [number of tokens]
    starts: numpy.ndarray  # int64, of the same length.
    ends: numpy.ndarray
    # int64: where places are bytes, the first of each character, and behind them their number.
    bytes: numpy.ndarray | None = None

    def starts_before(self, characters):
        """Returns how many tokens begin before each of these characters of the text."""
        return self.starts.searchsorted(self._places(characters))

    def ends_by(self, characters):
        """Returns how many tokens have ended where each of these characters begins."""
        return self.ends.searchsorted(self._places(characters), side="right")

    def in_characters(self):
        """Returns the same with places in characters: all of one of which a token is a part."""
        if self.bytes is None:
            return self
        return EncodedText(self.tokens, self.bytes.searchsorted(self.starts, side="right") - 1,
                           self.bytes.searchsorted(self.ends - 1, side="right"))

    def _places(self, characters):
        return characters if self.bytes is None else self.bytes[characters]


class TextEncoder:
    """Encodes texts by a tokenizers.Tokenizer, without the special tokens that it would add."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self._lengths = None  # The bytes of each token, by its id, where they tell places.
        if (isinstance(tokenizer.decoder, decoders.ByteLevel) and
                isinstance(tokenizer.normalizer, (type(None), normalizers.NFC))):
            lengths = _lengths_in_bytes(tokenizer)
            # Some put a space before a text.
            if lengths[tokenizer.encode("a", add_special_tokens=False).ids].sum() == 1:
                self._lengths = lengths

    def encode(self, texts):
        """Returns an encoding of each text, for `place`. Uses all cores, and lets threads run."""
        if self._lengths is None:
            return self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)

    def place(self, texts, encodings):
        """Returns the tokens of all encodings with their places, as if the texts were one."""
        if self._lengths is None:
            return _joined(texts, map(_place_by_library, encodings))
        placed = self._place_by_lengths("".join(texts), encodings)
        if placed is not None:
            return placed
        return _joined(texts, (
            self._place_by_lengths(text, [encoding]) or
            _place_by_library(self._tokenizer.encode(text, add_special_tokens=False))
            for text, encoding in zip(texts, encodings, strict=True)))

    def _place_by_lengths(self, text, encodings):
        """Returns the tokens of a text, which encodings share, with their places, or None."""
        tokens = numpy.fromiter(itertools.chain.from_iterable(
            encoding.ids for encoding in encodings), dtype=numpy.int32)
        lengths = self._lengths[tokens]
        ends = lengths.cumsum()
        num_bytes = len(text) if text.isascii() else len(text.encode())
        # Bytes are never added, so if none is lacking, tokens lie one behind the other. Lacking are
        # those without a token, and white space that a special token took along.
        if tokens.size and ends[-1] == num_bytes and unicodedata.is_normalized("NFC", text):
            return EncodedText(tokens, ends - lengths, ends, _bytes_of_characters(text))
        return None


def _place_by_library(encoding):
    places = numpy.array(encoding.offsets, dtype=numpy.int64).reshape(-1, 2)
    return EncodedText(numpy.array(encoding.ids, dtype=numpy.int32), places[:, 0], places[:, 1])


def _joined(texts, placed):
    """Returns texts, each of which has its tokens placed, as one."""
    begins = itertools.accumulate(map(len, texts), initial=0)
    parts = [(it.tokens, it.starts + begin, it.ends + begin)
             for it, begin in zip((it.in_characters() for it in placed), begins)]
    return EncodedText(*map(numpy.concatenate, zip(*parts)))


def _lengths_in_bytes(tokenizer):
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    lengths = numpy.zeros(max(vocabulary.values()) + 1, dtype=numpy.int64)
    lengths[list(vocabulary.values())] = list(map(len, vocabulary))
    for token_id, token in tokenizer.get_added_tokens_decoder().items():
        lengths[token_id] = len(token.content.encode())  # These are spelled as they are.
    return lengths


def _bytes_of_characters(text):
    """Returns the first byte of each character, and behind them their number, or None where each is
    a character."""
    if text.isascii():
        return None
    data = numpy.frombuffer(text.encode() + b"\0", dtype=numpy.uint8)
    return (data & 0xC0 != 0x80).nonzero()[0]  # Those of the form 10xxxxxx begin none.
