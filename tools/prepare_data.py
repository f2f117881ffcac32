#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns text into what gemini-train reads: a one-dimensional .npy of uint16 or uint32 tokens.

  tools/prepare_data.py --tokenizer MODEL_DIR --text corpus.txt [more.txt ...] --output tokens.npy

The text is streamed: memory does not grow with it. It is cut at the end of a line about every
64 KiB, so no token spans such a place; the same files always give the same tokens. The output
appears under its name only when it is complete.
"""
import argparse
import codecs
import os
import pathlib
import sys

_VENV_PYTHON = pathlib.Path(__file__).resolve().parent.parent / ".venv/bin/python3"
try:
    import numpy
    import tokenizers
except ImportError:  # Called with another Python: the one that tools/setup.sh made has them.
    if not _VENV_PYTHON.exists() or "GEMINI_IN_VENV" in os.environ:
        sys.exit("prepare_data: numpy and tokenizers are missing: run tools/check or tools/demo once, "
                 "which make .venv")
    os.environ["GEMINI_IN_VENV"] = "1"
    os.execv(_VENV_PYTHON, [str(_VENV_PYTHON), *sys.argv])

PIECE_BYTES = 64 * 1024
# A piece without the end of a line may grow to this before it is cut anywhere.
LONGEST_PIECE_CHARACTERS = 256 * 1024
PIECES_A_BATCH = 16  # They are encoded on all cores; a token takes some 300 bytes meanwhile.
HEADER_BYTES = 128


class DataError(Exception):
    """What the user can mend; its text is the whole message."""


def load_tokenizer(name):
    """Returns a tokenizers.Tokenizer from a tokenizer.json, a model folder, or a Hub name."""
    path = pathlib.Path(name)
    json_path = path / "tokenizer.json" if path.is_dir() else path
    if json_path.is_file():
        try:
            return tokenizers.Tokenizer.from_file(str(json_path))
        except Exception as error:  # The library raises bare Exception.
            raise DataError(f"{json_path} is no tokenizer: {error}") from error
    if not path.is_dir() and (name.count("/") > 1 or name.startswith((".", "/", "~"))):
        raise DataError(f"there is no tokenizer at {name}")
    # Older folders have vocab.json and merges.txt only; transformers converts them.
    try:
        import transformers
        fast = transformers.AutoTokenizer.from_pretrained(name, use_fast=True)
        return fast.backend_tokenizer
    except Exception as error:
        where = "has no tokenizer.json, and transformers does not read it" if path.is_dir() else (
            "is neither a file nor a folder here, and the Hugging Face Hub did not give it")
        raise DataError(f"{name} {where}: {str(error).splitlines()[0]}") from error


def pieces_of(path, progress):
    """Yields the text of a file in pieces that end with a line. Calls progress(bytes) as it reads."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    text, read_bytes = "", 0
    with open(path, "rb") as file:
        while True:
            data = file.read(PIECE_BYTES)
            try:
                text += decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                # error.start counts from the bytes that the decoder had kept.
                at = read_bytes + len(data) - len(error.object) + error.start
                raise DataError(f"{path} is not UTF-8 at byte {at}: convert it, for example with "
                                f"iconv -f latin1 -t utf-8") from error
            read_bytes += len(data)
            progress(len(data))
            if not data:
                break
            end = text.rfind("\n") + 1
            if end == 0 and len(text) > LONGEST_PIECE_CHARACTERS:
                end = len(text)
            if end > 0:
                yield text[:end]
                text = text[end:]
    if text:
        yield text


def npy_header(dtype, num_tokens):
    """The head of an .npy of fixed length, so that it can be written again when the count is known."""
    fields = "{'descr': '%s', 'fortran_order': False, 'shape': (%d,), }" % (
        numpy.dtype(dtype).newbyteorder("<").str, num_tokens)
    header = b"\x93NUMPY\x01\x00" + (HEADER_BYTES - 10).to_bytes(2, "little") + fields.encode()
    return header + b" " * (HEADER_BYTES - 1 - len(header)) + b"\n"


def write_tokens(tokenizer, text_paths, output, separator=None, dtype=None, progress=lambda n: None):
    """Encodes the files in order into `output`. Returns (number of tokens, numpy dtype)."""
    vocabulary = tokenizer.get_vocab_size(with_added_tokens=True)
    if dtype is None:
        dtype = numpy.uint16 if vocabulary <= 2**16 else numpy.uint32
    if separator is not None:
        separator_id = tokenizer.token_to_id(separator)
        if separator_id is None:
            raise DataError(f"the tokenizer has no token {separator!r}")
    # Neither cut nor padded, whatever the tokenizer was saved with.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    output = pathlib.Path(output)
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    num_tokens = 0
    try:
        with open(temporary, "wb") as file:
            file.write(npy_header(dtype, 0))

            def put(ids):
                nonlocal num_tokens
                array = numpy.asarray(ids, dtype=numpy.int64)
                if array.size and array.max() > numpy.iinfo(dtype).max:
                    raise DataError(f"token {array.max()} does not fit into "
                                    f"{numpy.dtype(dtype).name}: use --dtype uint32")
                file.write(array.astype(numpy.dtype(dtype).newbyteorder("<")).tobytes())
                num_tokens += array.size

            def encode(batch):
                for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                    put(encoding.ids)

            for path in text_paths:
                batch = []
                for piece in pieces_of(path, progress):
                    batch.append(piece)
                    if len(batch) == PIECES_A_BATCH:
                        encode(batch)
                        batch = []
                encode(batch)
                if separator is not None:
                    put([separator_id])
            if num_tokens == 0:
                raise DataError(f"no tokens in {', '.join(map(str, text_paths))}: the text is empty")
            file.seek(0)
            file.write(npy_header(dtype, num_tokens))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, output)
    except OSError as error:
        # Without this a missing output folder would be reported under the temporary name.
        name = output if error.filename in (None, str(temporary)) else error.filename
        raise DataError(f"{name}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return num_tokens, dtype


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, metavar="DIR_OR_FILE_OR_NAME",
                        help="folder of a model, a tokenizer.json, or a name on the Hugging Face Hub")
    parser.add_argument("--text", required=True, nargs="+", type=pathlib.Path, metavar="FILE",
                        help="UTF-8 text, taken in this order")
    parser.add_argument("--output", required=True, type=pathlib.Path, metavar="FILE.npy")
    parser.add_argument("--separator", metavar="TOKEN",
                        help="token put behind each file, such as '<|endoftext|>'")
    parser.add_argument("--dtype", choices=["auto", "uint16", "uint32"], default="auto",
                        help="auto: uint16 when the vocabulary fits")
    options = parser.parse_args(arguments)
    try:
        if options.output.suffix != ".npy":
            raise DataError(f"the output {options.output} must end with .npy")
        total_bytes = 0
        for path in options.text:
            if not path.is_file():
                raise DataError(f"{path}: no such text file")
            total_bytes += path.stat().st_size
        tokenizer = load_tokenizer(options.tokenizer)
        shown = -1
        done_bytes = 0

        def progress(num_bytes):
            nonlocal shown, done_bytes
            done_bytes += num_bytes
            percent = 100 * done_bytes // max(total_bytes, 1)
            if sys.stderr.isatty() and percent != shown:
                shown = percent
                print(f"\r{percent:3d} % of {total_bytes / 2**20:.1f} MiB", end="", file=sys.stderr)

        dtype = None if options.dtype == "auto" else getattr(numpy, options.dtype)
        num_tokens, dtype = write_tokens(tokenizer, options.text, options.output, options.separator,
                                         dtype, progress)
        if shown >= 0:
            print(file=sys.stderr)
    except DataError as error:
        sys.exit(f"prepare_data: {error}")
    print(f"{options.output}: {num_tokens} tokens of {numpy.dtype(dtype).name} "
          f"from {total_bytes} bytes of text")


if __name__ == "__main__":
    main(sys.argv[1:])
