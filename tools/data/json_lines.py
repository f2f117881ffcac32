# SPDX-License-Identifier: Apache-2.0
"""The JSON objects of a JSONL file, one a line, each with its place for errors to name."""
import json
import typing

from .data_error import DataError
from .text_lines import read_text_lines


class JsonLine(typing.NamedTuple):
    """What one line holds."""
    place: str  # Its file and line, as errors name them.
    record: dict
    num_bytes: int  # The length of the line.


def read_json_lines(path, wanted, progress):
    """Yields the lines of a file as JsonLines. Calls progress(bytes) as it reads.

    Lines of white space are skipped. `wanted` says in an error what each object should hold.
    """
    for line in read_text_lines(path, f"JSON object with {wanted}", progress):
        yield JsonLine(line.place, _parse(line, wanted), line.num_bytes)


def refuse_half_characters(text, place):
    """Refuses a text with half of a surrogate pair, which JSON can spell and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{place}: {text[error.start]!r} is half a character: its other half must "
                        "stand beside it") from error


def _parse(line, wanted):
    try:
        record = json.loads(line.input)
    except json.JSONDecodeError as error:
        raise DataError(f"{line.place} is no JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:  # A number or a nesting beyond Python's limits.
        raise DataError(f"{line.place} is no JSON that Python reads: {error}") from error
    if not isinstance(record, dict):
        raise DataError(f"{line.place} is no JSON object with {wanted}")
    return record
