# SPDX-License-Identifier: Apache-2.0
"""A safetensors file that is written row by row, while nobody knows how many rows there will be."""
import json
import shutil
import tempfile
import typing

FORMAT = "1"  # The version of the files that docs/data.md describes.
# The head's length is known from the start, so that it can be written last. Behind it, data begin
# on a page.
HEAD_BYTES = 4096
# A head without its one long text is shorter than this, whatever the columns and metadata are that
# this program writes.
OTHER_HEAD_BYTES = 2048
COPY_BYTES = 2**20


class Column(typing.NamedTuple):
    """One tensor of the file, as its head describes it."""
    name: str
    dtype: str  # As safetensors spells it, such as I32.
    row_shape: list  # The tensor's shape without its first dimension, the rows.


def head_bytes_for(long_text):
    """Returns the length of a head with one text among its metadata that may be long."""
    pages = -(-(len(json.dumps(long_text)) + OTHER_HEAD_BYTES) // HEAD_BYTES)
    return pages * HEAD_BYTES


class SafetensorsWriter:
    """Writes tensors that have the same number of rows. Memory does not grow with them.

    The tensors stand in the file one behind the other, in the order of the columns: those of wider
    types must come first, so that all are aligned. The first grows in the file itself, and the
    others in files without a name beside it, from which they are copied in the end.
    """

    def __init__(self, file, folder, columns, head_bytes=HEAD_BYTES):
        """Begins in `file`, which is empty and open for writing. `folder` has room for the rest.

        The file's head will have `head_bytes`.
        """
        self._file = file
        self._head_bytes = head_bytes
        self._columns = columns
        self._num_rows = 0
        file.write(b"\0" * head_bytes)
        self._others = [tempfile.TemporaryFile(dir=folder) for _ in columns[1:]]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for file in self._others:
            file.close()

    def append(self, *rows):
        """Appends one row to each tensor: contiguous arrays, in the order of the columns."""
        for file, row in zip([self._file, *self._others], rows, strict=True):
            file.write(row)
        self._num_rows += 1

    def finish(self, metadata, leave_out=()):
        """Completes the file. `metadata` are texts by name.

        Tensors named in `leave_out`, of which the first is none, do not become part of it.
        """
        kept = [(column, file) for column, file in zip(self._columns[1:], self._others)
                if column.name not in leave_out]
        ends = [self._file.tell() - self._head_bytes]
        for _, file in kept:
            file.seek(0)
            shutil.copyfileobj(file, self._file, COPY_BYTES)
            ends.append(self._file.tell() - self._head_bytes)
        head = {"__metadata__": metadata}
        columns = [self._columns[0], *(column for column, _ in kept)]
        for column, begin, end in zip(columns, [0] + ends, ends):
            head[column.name] = {"dtype": column.dtype, "data_offsets": [begin, end],
                                 "shape": [self._num_rows, *column.row_shape]}
        room = self._head_bytes - 8
        text = json.dumps(head).encode().ljust(room)
        if len(text) > room:
            raise ValueError(f"a head of {len(text)} bytes does not fit into {room}")
        self._file.seek(0)
        self._file.write(room.to_bytes(8, "little") + text)
