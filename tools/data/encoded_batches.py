# SPDX-License-Identifier: Apache-2.0
"""Texts with their encodings, made in batches on all cores while Python goes on.

Memory does not grow with the number of texts.
"""
import collections
import concurrent.futures

from .data_error import DataError, first_line

# A batch of texts is encoded on all cores. A token takes some 300 bytes meanwhile, and there is one
# batch more than these: it is made or taken apart while the others are encoded. While one of two
# waits for Python's lock, which it needs at its beginning and end, the cores have the other.
BATCH_BYTES = 256 * 1024
BATCHES_AT_ONCE = 2


def encode_in_batches(texts, encode):
    """Yields batches of `texts` with their encodings, two lists, in order.

    A text has a `place`, which an error names, and `num_bytes`. `encode` returns the encodings of a
    list of them. It runs on other threads, mostly without Python's lock, while this one makes the
    next batch.
    """
    with concurrent.futures.ThreadPoolExecutor(max_workers=BATCHES_AT_ONCE) as threads:
        encoded = collections.deque()
        for batch in _batches(texts):
            encoded.append((batch, threads.submit(encode, batch)))
            if len(encoded) > BATCHES_AT_ONCE:
                yield from _with_encodings(*encoded.popleft(), encode)
        while encoded:
            yield from _with_encodings(*encoded.popleft(), encode)


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
