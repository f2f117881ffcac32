# SPDX-License-Identifier: Apache-2.0
"""The JSON objects of a JSONL file, one a line, each with its place for errors to name."""
import json
import typing

from .data_error import DataError


class JsonLine(typing.NamedTuple):
    """What one line holds."""
    place: str  # Its file and line, as errors name them.
    record: dict
    num_bytes: int  # The length of the line.


def read_json_lines(path, wanted, progress):
    """Yields the lines of a file as JsonLines. Calls progress(bytes) as it reads.

    Lines of white space are skipped. `wanted` says in an error what each object should hold.
    """
    is_empty = True
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            progress(len(line))
            if line.isspace():
                continue
            is_empty = False
            place = f"{path}, line {number}"
            yield JsonLine(place, _parse(line, number, place, wanted), len(line))
    if is_empty:
        raise DataError(f"{path} is empty: there is no JSON object with {wanted} in it")


def text_of_line(line, number, place):
    """Returns the bytes of a file's line as text. The first may begin with a byte order mark."""
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{place} is not UTF-8 at byte {error.start} of the line: convert the "
                        "file, for example with iconv -f latin1 -t utf-8") from error


def refuse_half_characters(text, place):
    """Refuses a text with half of a surrogate pair, which JSON can spell and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{place}: {text[error.start]!r} is half a character: its other half must "
                        "stand beside it") from error


def _parse(line, number, place, wanted):
    text = text_of_line(line, number, place)
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{place} is no JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:  # A number or a nesting beyond Python's limits.
        raise DataError(f"{place} is no JSON that Python reads: {error}") from error
    if not isinstance(record, dict):
        raise DataError(f"{place} is no JSON object with {wanted}")
    return record
