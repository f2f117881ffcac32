# SPDX-License-Identifier: Apache-2.0
"""A safetensors file that is written row by row, while nobody knows how many rows there will be."""
import json
import shutil
import tempfile
import typing

# The head has a fixed length, so that it can be written last. Behind it, data begin on a page.
HEAD_BYTES = 4096
COPY_BYTES = 2**20


class Column(typing.NamedTuple):
    """One tensor of the file, as its head describes it."""
    name: str
    dtype: str  # As safetensors spells it, such as I32.
    row_shape: list  # The tensor's shape without its first dimension, the rows.


class SafetensorsWriter:
    """Writes tensors of as many rows each. Memory does not grow with them.

    The tensors stand in the file one behind the other, in the order of the columns: those of wider
    types must come first, so that all are aligned. The first grows in the file itself, and the
    others in files without a name beside it, from which they are copied in the end.
    """

    def __init__(self, file, folder, columns):
        """Begins in `file`, which is empty and open for writing. `folder` has room for the rest."""
        self._file = file
        self._columns = columns
        self._num_rows = 0
        file.write(b"\0" * HEAD_BYTES)
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

    def finish(self, metadata):
        """Completes the file. `metadata` are texts by name."""
        ends = [self._file.tell() - HEAD_BYTES]
        for file in self._others:
            file.seek(0)
            shutil.copyfileobj(file, self._file, COPY_BYTES)
            ends.append(self._file.tell() - HEAD_BYTES)
        head = {"__metadata__": metadata}
        for column, begin, end in zip(self._columns, [0] + ends, ends):
            head[column.name] = {"dtype": column.dtype, "data_offsets": [begin, end],
                                 "shape": [self._num_rows, *column.row_shape]}
        text = json.dumps(head).encode().ljust(HEAD_BYTES - 8)
        if len(text) > HEAD_BYTES - 8:
            raise ValueError(f"a head of {len(text)} bytes does not fit into {HEAD_BYTES - 8}")
        self._file.seek(0)
        self._file.write((HEAD_BYTES - 8).to_bytes(8, "little") + text)
