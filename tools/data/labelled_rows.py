# SPDX-License-Identifier: Apache-2.0
"""Labelled texts as a file of rows: from JSONL lines to what docs/data.md describes.

The lines are read twice: first for their labels, then for their texts. Memory does not grow with
them.
"""
import dataclasses
import pathlib

import numpy

from .complete_file import complete_file
from .data_error import DataError
from .fitted_texts import TextFitter
from .labelled_texts import read_labelled_texts
from .labels import LabelSurvey
from .model_tokenizer import metadata_of, take_text_as_it_is
from .preview import preview_of_label
from .rows import PADDING
from .safetensors_writer import FORMAT, Column, SafetensorsWriter, head_bytes_for


@dataclasses.dataclass(frozen=True)
class LabelOptions:
    """What the user decides; docs/data.md says what each value means."""
    sequence: int  # Tokens of a row.
    problem: str | None = None  # Of PROBLEM_TYPES; None: the first label decides.
    too_long: str = "error"  # Or "drop", or "cut".
    preview: int = 0  # How many rows are shown.


@dataclasses.dataclass
class LabelCounts:
    """What became of the lines."""
    rows: int = 0
    tokens: int = 0  # Without padding.
    num_labels: int = 0
    dropped: int = 0
    cut: int = 0
    previews: list = dataclasses.field(default_factory=list)


def write_labels(tokenizer, config, paths, output, options, progress=lambda n: None):
    """Encodes the labelled texts of JSONL files, in order, into `output`. Returns LabelCounts.

    `tokenizer` is one of transformers, and `config` the ModelConfig of its model. The tokenizer
    serves one call, which changes what it does with long texts.
    """
    def lines():
        return (line for path in paths for line in read_labelled_texts(path, progress))

    survey = LabelSurvey(options.problem, config, ", ".join(map(str, paths)))
    for line in lines():
        survey.add(line.place, line.label)
    labels = survey.result()
    backend = tokenizer.backend_tokenizer
    made_by = metadata_of(backend)
    take_text_as_it_is(backend)
    counts = LabelCounts(num_labels=labels.num_labels)
    fitter = TextFitter(tokenizer, options.sequence, options.too_long, counts)
    has_types = False
    with (complete_file(output) as file,
          SafetensorsWriter(file, pathlib.Path(output).parent, _columns(labels, options.sequence),
                            head_bytes_for(labels.metadata()["names"])) as writer):
        for fitted in fitter.fit(lines()):
            label, said = labels.row_of(fitted.source.place, fitted.source.label)
            writer.append(*_arrays_of(fitted, options.sequence, label))
            has_types = has_types or fitted.types.any()
            counts.rows += 1
            counts.tokens += fitted.tokens.size
            if counts.rows <= options.preview:
                counts.previews.append(preview_of_label(backend, fitted.tokens, said, counts.rows,
                                                        options.sequence))
        if counts.rows == 0:
            raise DataError(f"no text is left: all {counts.dropped} have more than --sequence "
                            f"{options.sequence} tokens: take a larger one, or --too-long cut")
        # A model whose tokenizer does not give types to it would not know what to do with them.
        has_types = has_types and "token_type_ids" in tokenizer.model_input_names
        writer.finish({
            "gemini.format": FORMAT, "task": "sequence-classification", **labels.metadata(),
            **made_by, "sequence": str(options.sequence), "rows": str(counts.rows),
            "layout": "pad"}, leave_out=[] if has_types else ["types"])
    return counts


def _columns(labels, sequence):
    if labels.problem == "single-label":
        column = Column("labels", "I32", [])
    else:
        column = Column("labels", "F32", [labels.num_labels])
    return [Column("tokens", "I32", [sequence]), Column("documents", "I32", [sequence]), column,
            Column("types", "U8", [sequence])]


def _arrays_of(fitted, sequence, label):
    """Returns the row's tokens, document and types, each [sequence], around its label."""
    end = fitted.tokens.size
    tokens = numpy.full(sequence, PADDING, dtype="<i4")
    tokens[:end] = fitted.tokens
    documents = numpy.zeros(sequence, dtype="<i4")
    documents[:end] = 1
    types = numpy.zeros(sequence, dtype=numpy.uint8)
    types[:end] = fitted.types
    return tokens, documents, label, types
