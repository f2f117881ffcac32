# SPDX-License-Identifier: Apache-2.0
"""The error of whatever the user of tools/prepare_data.py can mend."""
import contextlib


class DataError(Exception):
    """What the user can mend; its text is the whole message."""


@contextlib.contextmanager
def naming_file(path):
    """Makes a DataError that names the file at `path` of an OSError in the block."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error


def first_line(error):
    """Returns the first line of a foreign error's text, or its type where it has no text."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
