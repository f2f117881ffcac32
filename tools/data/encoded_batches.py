# SPDX-License-Identifier: Apache-2.0
"""Texts with their encodings, made in batches on all cores while Python goes on.

Memory does not grow with the number of texts.
"""
import concurrent.futures

from .data_error import DataError, first_line

# A batch of texts is encoded on all cores. A token takes some 300 bytes meanwhile, and there are
# two batches: one is being encoded while the other is made and taken apart.
BATCH_BYTES = 512 * 1024


def encode_in_batches(texts, encode):
    """Yields batches of `texts` with their encodings, two lists, in order.

    A text has a `place`, which an error names, and `num_bytes`. `encode` returns the encodings of a
    list of them. It runs on another thread, without Python's lock, while this one makes the next
    batch.
    """
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as thread:
        before = None
        for batch in _batches(texts):
            encodings = thread.submit(encode, batch)
            if before is not None:
                yield from _with_encodings(*before, encode)
            before = batch, encodings
        if before is not None:
            yield from _with_encodings(*before, encode)


def _with_encodings(batch, encodings, encode):
    try:
        encodings = encodings.result()
    except Exception:  # The library raises bare Exception, and does not say for which text.
        for text in batch:
            yield [text], [_encoding_of(text, encode)]
    else:
        yield batch, encodings


def _encoding_of(text, encode):
    try:
        return encode([text])[0]
    except Exception as error:
        raise DataError(f"{text.place}: the tokenizer fails: {first_line(error)}") from error


def _batches(texts):
    batch, num_bytes = [], 0
    for text in texts:
        batch.append(text)
        num_bytes += text.num_bytes
        if num_bytes >= BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch
