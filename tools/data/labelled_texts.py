# SPDX-License-Identifier: Apache-2.0
"""Texts with their labels as JSONL files hold them: one JSON object a line.

A line has `text`, `label`, and perhaps `text_pair`. Other keys are left aside.
"""
import typing

from .data_error import DataError
from .json_lines import read_json_lines, refuse_half_characters


class LabelledText(typing.NamedTuple):
    """What one line says."""
    place: str  # Its file and line, as errors name them.
    input: str | tuple  # The text, or a pair of texts.
    label: typing.Any  # As the line has it; labels.py says what it may be.
    num_bytes: int  # The length of its line.


def read_labelled_texts(path, progress):
    """Yields the labelled texts of a file. Calls progress(bytes) as it reads."""
    for line in read_json_lines(path, "text and label", progress):
        text = _text_of(line, "text")
        if line.record.get("text_pair") is not None:
            text = text, _text_of(line, "text_pair")
        label = line.record.get("label")
        if label is None:
            raise DataError(f"{line.place}: label: "
                            f"{'null' if 'label' in line.record else 'missing'}")
        yield LabelledText(line.place, text, label, line.num_bytes)


def _text_of(line, key):
    text = line.record.get(key)
    if not isinstance(text, str):
        raise DataError(f"{line.place}: {key}: {'no text' if key in line.record else 'missing'}")
    if not text or text.isspace():
        raise DataError(f"{line.place}: {key}: empty")
    refuse_half_characters(text, f"{line.place}: {key}")
    return text
