# SPDX-License-Identifier: Apache-2.0
"""The lines of a UTF-8 file, each with its place for errors to name."""
import codecs
import typing

from .data_error import DataError, naming_file


class TextLine(typing.NamedTuple):
    """One line of a file."""
    place: str  # Its file and line, as errors name them.
    input: str  # The text without its end of line.
    num_bytes: int  # The length of the line.


def read_text_lines(path, wanted, progress):
    """Yields the lines of a file that are not blank. Calls progress(bytes) as it reads.

    `wanted` says in an error what the file should have. A byte order mark at its beginning is no
    part of its text.
    """
    is_empty = True
    name = str(path)
    with naming_file(path), open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            progress(len(line))
            place = f"{name}, line {number}"
            text = _text_of(line, number, place)
            if not text or text.isspace():
                continue
            is_empty = False
            yield TextLine(place, text.rstrip("\r\n"), len(line))
    if is_empty:
        raise DataError(f"{path} is empty: there is no {wanted} in it")


def how_to_convert(begin):
    """Returns what makes UTF-8 of a file that is none, and that begins with these bytes."""
    is_utf16 = begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return f"iconv -f {'utf-16' if is_utf16 else 'latin1'} -t utf-8"


def _text_of(line, number, place):
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{place} is not UTF-8 at byte {error.start} of the line: convert the file, "
                        f"for example with {how_to_convert(line if number == 1 else b'')}"
                        ) from error
