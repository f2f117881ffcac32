# SPDX-License-Identifier: Apache-2.0
"""Rows of one length: which documents share one. A row is a list of whole documents.

Documents must be no longer than a row. What is left of a row behind its documents is padding.
"""
import numpy

# Padding is neither seen nor predicted, but looked up: the tokenizer's own may be one token too
# many for the model.
PADDING = 0
# First fit looks at this many rows that have room, at most, and at fewer where rows are long: the
# memory that they take must not grow with the input.
MOST_OPEN_ROWS = 1024
MOST_OPEN_TOKENS = 4 * 2**20


def one_a_row(documents):
    """Yields a row for each document."""
    for document in documents:
        yield [document]


def first_fit(documents, sequence):
    """Yields rows of `sequence` tokens: each document goes into the first row that has room for it.

    A full row is given away at once. Where too many have room, the oldest is given away: it was
    offered most documents, and had no room for them. So the order of rows follows from the input.
    """
    most_rows = max(1, min(MOST_OPEN_ROWS, MOST_OPEN_TOKENS // sequence))
    rows = []
    room = numpy.zeros(most_rows + 1, dtype=numpy.int64)  # The tokens left in each of `rows`.

    def close(index):
        room[index:-1] = room[index + 1:]
        return rows.pop(index)

    for document in documents:
        num_tokens = document.tokens.size
        room[len(rows)] = sequence  # Of a new row: the last that is looked at.
        index = int((room[:len(rows) + 1] >= num_tokens).argmax())
        if index == len(rows):
            if len(rows) == most_rows:
                yield close(0)
                index -= 1
            rows.append([])
        rows[index].append(document)
        room[index] -= num_tokens
        if room[index] == 0:
            yield close(index)
    yield from rows
