# SPDX-License-Identifier: Apache-2.0
"""One long text as one long row of tokens: a one-dimensional .npy of uint16 or uint32.

The text is streamed: memory does not grow with it. It is cut at the end of a line about every
64 KiB, so no token spans such a place; the same files always give the same tokens. What a tokenizer
writes before a text, as a space, stands at the beginning of each file alone.
"""
import codecs
import itertools
import json

import numpy
import tokenizers

from .complete_file import complete_file
from .data_error import DataError, naming_file
from .model_tokenizer import take_text_as_it_is
from .text_lines import how_to_convert

PIECE_BYTES = 64 * 1024
# A piece without the end of a line may grow to this before it is cut anywhere.
LONGEST_PIECE_CHARACTERS = 256 * 1024
PIECES_A_BATCH = 16  # They are encoded on all cores; a token takes some 300 bytes meanwhile.
HEADER_BYTES = 128


def pieces_of(path, progress):
    """Yields a file's text in pieces that end with a line. Calls progress(bytes) as it reads.

    A byte order mark at its beginning is no part of its text.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    text, read_bytes, begin = "", 0, b""
    with naming_file(path), open(path, "rb") as file:
        while True:
            data = file.read(PIECE_BYTES)
            begin = begin or data[:2]
            try:
                text += decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                # error.start counts from the bytes that the decoder had kept.
                at = read_bytes + len(data) - len(error.object) + error.start
                raise DataError(f"{path} is not UTF-8 at byte {at}: convert it, for example with "
                                f"{how_to_convert(begin)}") from error
            read_bytes += len(data)
            progress(len(data))
            if not data:
                break
            end = text.rfind("\n") + 1
            if end == 0 and len(text) > LONGEST_PIECE_CHARACTERS:
                end = len(text)
            if end > 0:
                yield text[:end]
                text = text[end:]
    if text:
        yield text


def npy_header(dtype, num_tokens):
    """Returns the head of an .npy, of fixed length, to be written again when the count is known."""
    fields = "{'descr': '%s', 'fortran_order': False, 'shape': (%d,), }" % (
        numpy.dtype(dtype).newbyteorder("<").str, num_tokens)
    header = b"\x93NUMPY\x01\x00" + (HEADER_BYTES - 10).to_bytes(2, "little") + fields.encode()
    return header + b" " * (HEADER_BYTES - 1 - len(header)) + b"\n"


def without_prefix(tokenizer):
    """Returns a tokenizers.Tokenizer that writes nothing before a text, and is else the same.

    A tokenizer with parts in Python cannot be changed so, and is returned as it is.
    """
    try:
        description = json.loads(tokenizer.to_str())
    except Exception:  # The library raises bare Exception.
        return tokenizer
    description["normalizer"] = _without_prefix(description["normalizer"])
    description["pre_tokenizer"] = _without_prefix(description["pre_tokenizer"])
    return tokenizers.Tokenizer.from_str(json.dumps(description))


def _without_prefix(part):
    """Returns the description of a normalizer or pre-tokenizer without what it writes first."""
    if part is None or part["type"] == "Prepend":
        return None
    if part["type"] == "Metaspace":
        return {**part, "prepend_scheme": "never"}
    if part["type"] == "ByteLevel":
        return {**part, "add_prefix_space": False}
    if part["type"] == "Sequence":
        [key] = part.keys() - {"type"}  # normalizers, or pretokenizers.
        parts = filter(None, map(_without_prefix, part[key]))
        return {**part, key: list(parts)}
    return part


def write_tokens(tokenizer, text_paths, output, separator=None, dtype=None,
                 progress=lambda n: None):
    """Encodes the files in order into `output`. Returns (number of tokens, numpy dtype)."""
    vocabulary = tokenizer.get_vocab_size(with_added_tokens=True)
    if dtype is None:
        dtype = numpy.uint16 if vocabulary <= 2**16 else numpy.uint32
    if separator is not None:
        separator_id = tokenizer.token_to_id(separator)
        if separator_id is None:
            raise DataError(f"the tokenizer has no token {separator!r}")
    take_text_as_it_is(tokenizer)
    within = without_prefix(tokenizer)
    num_tokens = 0
    with complete_file(output) as file:
        file.write(npy_header(dtype, 0))

        def put(ids):
            nonlocal num_tokens
            array = numpy.asarray(ids, dtype=numpy.int64)
            if array.size and array.max() > numpy.iinfo(dtype).max:
                raise DataError(f"token {array.max()} does not fit into "
                                f"{numpy.dtype(dtype).name}: use --dtype uint32")
            file.write(array.astype(numpy.dtype(dtype).newbyteorder("<")).tobytes())
            num_tokens += array.size

        def encode(by, batch):
            for encoding in by.encode_batch_fast(batch, add_special_tokens=False):
                put(encoding.ids)

        for path in text_paths:
            pieces = pieces_of(path, progress)
            encode(tokenizer, list(itertools.islice(pieces, 1)))
            while batch := list(itertools.islice(pieces, PIECES_A_BATCH)):
                encode(within, batch)
            if separator is not None:
                put([separator_id])
        if num_tokens == 0:
            raise DataError(f"no tokens in {', '.join(map(str, text_paths))}: the text is empty")
        file.seek(0)
        file.write(npy_header(dtype, num_tokens))
    return num_tokens, dtype
