# SPDX-License-Identifier: Apache-2.0
"""A file that appears under its name only when it is complete."""
import contextlib
import os
import pathlib

from .data_error import DataError


@contextlib.contextmanager
def complete_file(output):
    """Opens a binary file that takes the name `output` when the block ends without an error.

    Until then the file has a temporary name in the same folder. An error in the block deletes it,
    and an older file named `output` stays as it was. The file's bytes are on the disk before it
    takes its name. An OSError in the block becomes a DataError that names the file.
    """
    output = pathlib.Path(output)
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, output)
    except OSError as error:
        # Without this a missing output folder would be reported under the temporary name.
        name = output if error.filename in (None, str(temporary)) else error.filename
        raise DataError(f"{name}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):  # It has its final name, or its folder is no folder.
            temporary.unlink()
