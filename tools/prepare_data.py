#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns text or chats into what gemini-train reads. docs/data.md describes both, and their files.

  tools/prepare_data.py --tokenizer MODEL_DIR --text corpus.txt [more.txt ...] --output tokens.npy
  tools/prepare_data.py --tokenizer MODEL_DIR --messages chats.jsonl [more.jsonl ...] \\
      --sequence 2048 --output chats.safetensors

The input is streamed: memory does not grow with it. The same files always give the same output,
which appears under its name only when it is complete.
"""
import argparse
import os
import pathlib
import sys

_VENV_PYTHON = pathlib.Path(__file__).resolve().parent.parent / ".venv/bin/python3"
try:
    import numpy
    import tokenizers  # data/ imports it.
except ImportError:  # Called with another Python: the one that tools/setup.sh made has them.
    if not _VENV_PYTHON.exists() or "GEMINI_IN_VENV" in os.environ:
        sys.exit("prepare_data: numpy and tokenizers are missing: run tools/check or tools/demo "
                 "once, which make .venv")
    os.environ["GEMINI_IN_VENV"] = "1"
    os.execv(_VENV_PYTHON, [str(_VENV_PYTHON), *sys.argv])

from data.chats import ChatOptions, write_chats
from data.data_error import DataError
from data.model_tokenizer import load_chat_tokenizer, load_tokenizer
from data.progress import Progress
from data.text_tokens import write_tokens


def prepare_text(options, progress):
    """Writes the tokens of --text, and returns what is said about them."""
    dtype = None if options.dtype in (None, "auto") else getattr(numpy, options.dtype)
    tokenizer = load_tokenizer(options.tokenizer)
    num_tokens, dtype = write_tokens(tokenizer, options.text, options.output, options.separator,
                                     dtype, progress.add)
    return (f"{num_tokens} tokens of {numpy.dtype(dtype).name} "
            f"from {progress.total_bytes} bytes of text")


def prepare_chats(options, progress):
    """Writes the rows of --messages, and returns what is said about them."""
    chosen = {name: getattr(options, name) for name in ("answers", "layout", "too_long", "preview")
              if getattr(options, name) is not None}
    counts = write_chats(load_chat_tokenizer(options.tokenizer), options.messages, options.output,
                         ChatOptions(options.sequence, **chosen), progress.add)
    progress.end()  # Its line is not that of a preview.
    for preview in counts.previews:
        print(preview)
    filled = counts.tokens / (counts.rows * options.sequence)
    return (f"{counts.rows} rows of {options.sequence} tokens, {filled:.1%} filled, "
            f"from {progress.total_bytes} bytes: {counts.documents} conversations with "
            f"{counts.answer_tokens} tokens of answers; of those too long, {counts.cut} were cut "
            f"and {counts.dropped} dropped")


def parser():
    def at_least(smallest):
        def number(text):
            if int(text) < smallest:
                raise argparse.ArgumentTypeError(f"{text} is less than {smallest}")
            return int(text)
        return number

    result = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--tokenizer", required=True, metavar="DIR_OR_FILE_OR_NAME",
                        help="folder of a model, a tokenizer.json (for --text), or a name on the "
                             "Hugging Face Hub")
    source = result.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", nargs="+", type=pathlib.Path, metavar="FILE",
                        help="UTF-8 text, taken in this order")
    source.add_argument("--messages", nargs="+", type=pathlib.Path, metavar="FILE.jsonl",
                        help="conversations: lines with messages, or with prompt and completion")
    result.add_argument("--output", required=True, type=pathlib.Path,
                        metavar="FILE.npy|FILE.safetensors")
    text = result.add_argument_group("with --text")
    text.add_argument("--separator", metavar="TOKEN",
                      help="token put behind each file, such as '<|endoftext|>'")
    text.add_argument("--dtype", choices=["auto", "uint16", "uint32"],
                      help="auto, the default: uint16 when the vocabulary fits")
    chats = result.add_argument_group("with --messages")
    chats.add_argument("--sequence", type=at_least(2), metavar="TOKENS",
                       help="the length of each row")
    chats.add_argument("--answers", choices=["all", "last"],
                       help="which answers of a conversation are learnt (default: all)")
    layout = chats.add_mutually_exclusive_group()
    layout.add_argument("--pad", dest="layout", action="store_const", const="pad",
                        help="one conversation a row, filled up with padding (default)")
    layout.add_argument("--pack", dest="layout", action="store_const", const="pack",
                        help="several conversations a row, first fit, none cut to fit")
    chats.add_argument("--too-long", choices=["error", "drop", "cut"],
                       help="what becomes of a conversation longer than a row (default: error)")
    chats.add_argument("--preview", type=at_least(0), metavar="ROWS",
                       help="show the first rows as text, with [[answers]] marked")
    return result


def refuse_options_of(mode, options, names):
    for name in names:
        if getattr(options, name) is not None:
            option = f"--{options.layout}" if name == "layout" else f"--{name.replace('_', '-')}"
            raise DataError(f"{option} goes with {mode}")


def main(arguments):
    options = parser().parse_args(arguments)
    try:
        if options.text:
            refuse_options_of("--messages", options,
                              ["sequence", "answers", "layout", "too_long", "preview"])
            paths, suffix, prepare = options.text, ".npy", prepare_text
        else:
            refuse_options_of("--text", options, ["separator", "dtype"])
            if options.sequence is None:
                raise DataError("--messages needs --sequence, the length of each row in tokens")
            paths, suffix, prepare = options.messages, ".safetensors", prepare_chats
        if options.output.suffix != suffix:
            raise DataError(f"the output {options.output} must end with {suffix}")
        total_bytes = 0
        for path in paths:
            if not path.is_file():
                raise DataError(f"{path}: no such {'text file' if options.text else 'file'}")
            total_bytes += path.stat().st_size
        progress = Progress(total_bytes)
        try:
            said = prepare(options, progress)
        finally:
            progress.end()
    except DataError as error:
        sys.exit(f"prepare_data: {error}")
    print(f"{options.output}: {said}")


if __name__ == "__main__":
    # transformers imports Torch where it is installed, which takes seconds and 200 MB. No tokenizer
    # needs it.
    sys.modules["torch"] = None
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # It would say that Torch is missing.
    main(sys.argv[1:])
