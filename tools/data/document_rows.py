# SPDX-License-Identifier: Apache-2.0
"""Documents as a file of rows: the tokens of each, and which of them are marked."""
import dataclasses
import pathlib

import numpy

from .complete_file import complete_file
from .data_error import DataError
from .preview import preview_of
from .rows import PADDING, first_fit, one_a_row
from .safetensors_writer import FORMAT, Column, SafetensorsWriter


@dataclasses.dataclass
class DocumentCounts:
    """What became of the documents of an input."""
    rows: int = 0
    documents: int = 0
    tokens: int = 0  # Without padding.
    answer_tokens: int = 0  # Of those, the marked ones.
    dropped: int = 0  # They were too long.
    unmarked: int = 0  # They were left out, because none of their tokens may be masked.
    cut: int = 0
    previews: list = dataclasses.field(default_factory=list)


def write_document_rows(tokenizer, documents, output, options, metadata, counts, marked):
    """Writes Documents, none of them longer than a row, into `output`, and counts them in `counts`.

    `options` have the row's length as `sequence`, the `layout` and the number of rows for a
    `preview`, which a tokenizers.Tokenizer writes. There, `marked` says what marked tokens are.
    The `metadata` are those that only this kind of input has. At least one document is needed:
    `counts` says how many were left out before.
    """
    columns = [Column("tokens", "I32", [options.sequence]),
               Column("documents", "I32", [options.sequence]),
               Column("answers", "U8", [options.sequence])]
    rows = (one_a_row(documents) if options.layout == "pad"
            else first_fit(documents, options.sequence))
    with (complete_file(output) as file,
          SafetensorsWriter(file, pathlib.Path(output).parent, columns) as writer):
        for row in rows:
            tokens, numbers, answers = _arrays_of(row, options.sequence)
            writer.append(tokens, numbers, answers)
            counts.rows += 1
            counts.documents += len(row)
            counts.tokens += int(numpy.count_nonzero(numbers))
            counts.answer_tokens += int(numpy.count_nonzero(answers))
            if counts.rows <= options.preview:
                counts.previews.append(preview_of(tokenizer, row, counts.rows, options.sequence,
                                                  marked))
        if counts.rows == 0:
            raise DataError(_nothing_left(counts, options.sequence))
        writer.finish({
            "gemini.format": FORMAT, "sequence": str(options.sequence), "rows": str(counts.rows),
            "documents": str(counts.documents), "layout": options.layout,
            "answer_tokens": str(counts.answer_tokens), **metadata})


def _nothing_left(counts, sequence):
    """Returns why all documents of an input were left out."""
    reasons = []
    if counts.dropped:
        reasons.append(f"{counts.dropped} have more than --sequence {sequence} tokens: take a "
                       "larger one, or --too-long cut")
    if counts.unmarked:
        reasons.append(f"{counts.unmarked} have special tokens only, such as the unknown one, "
                       "which are never masked")
    return f"no document is left: {'all ' if len(reasons) == 1 else ''}{'; '.join(reasons)}"


def _arrays_of(row, sequence):
    """Returns the row's tokens, its documents' numbers and its answers, each [sequence]."""
    tokens = numpy.full(sequence, PADDING, dtype="<i4")
    numbers = numpy.zeros(sequence, dtype="<i4")
    answers = numpy.zeros(sequence, dtype=numpy.uint8)
    sizes = [document.tokens.size for document in row]
    end = sum(sizes)
    numpy.concatenate([document.tokens for document in row], out=tokens[:end])
    numbers[:end] = numpy.repeat(numpy.arange(1, len(row) + 1), sizes)
    numpy.concatenate([document.answers for document in row], out=answers[:end])
    return tokens, numbers, answers
