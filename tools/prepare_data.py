#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns text, chats or images into what gemini-train reads. docs/data.md describes all of it.

  tools/prepare_data.py --tokenizer MODEL_DIR --text corpus.txt [more.txt ...] --output tokens.npy
  tools/prepare_data.py --tokenizer MODEL_DIR --messages chats.jsonl [more.jsonl ...] \\
      --sequence 2048 --output chats.safetensors
  tools/prepare_data.py --tokenizer MODEL_DIR --labels reviews.jsonl [more.jsonl ...] \\
      --sequence 256 --output reviews.safetensors
  tools/prepare_data.py --tokenizer MODEL_DIR --masked corpus.txt [more.txt ...] \\
      --sequence 512 --pack --output masked.safetensors
  tools/prepare_data.py --model MODEL_DIR --images DIR --output images.safetensors

The input is streamed, so memory does not grow with it, but a single line is held as a whole. The
same files always give the same output, which appears under its name only when it is complete.
"""
import argparse
import dataclasses
import gc
import os
import pathlib
import signal
import sys
import typing

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
from data.data_error import DataError, naming_file
from data.image_rows import size_of_folder, write_images
from data.labelled_rows import LabelOptions, write_labels
from data.labels import PROBLEM_TYPES
from data.masked import MaskedOptions, write_masked
from data.model_config import read_model_config
from data.model_tokenizer import load_model_tokenizer, load_tokenizer
from data.progress import Progress
from data.text_tokens import write_tokens


MOST_TOKENS = 1 << 20  # Of a row: a longer one is taken for a mistake.


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
    counts = write_chats(load_model_tokenizer(options.tokenizer, "--messages"), options.messages,
                         options.output, chosen(options, ChatOptions), progress.add)
    show(counts.previews, progress)
    return (f"{said_of_rows(counts, options, progress)}: {counts.documents} conversations with "
            f"{counts.answer_tokens} tokens of answers{said_of_too_long(counts)}")


def prepare_labels(options, progress):
    """Writes the rows of --labels, and returns what is said about them."""
    config = read_model_config(options.tokenizer)
    tokenizer = load_model_tokenizer(options.tokenizer, "--labels")
    counts = write_labels(tokenizer, config, options.labels, options.output,
                          chosen(options, LabelOptions), progress.add)
    show(counts.previews, progress)
    return (f"{said_of_rows(counts, options, progress)}, {counts.num_labels} labels"
            f"{said_of_too_long(counts)}")


def prepare_masked(options, progress):
    """Writes the rows of --masked, and returns what is said about them."""
    counts = write_masked(load_model_tokenizer(options.tokenizer, "--masked"), options.masked,
                          options.output, chosen(options, MaskedOptions), progress.add)
    show(counts.previews, progress)
    return (f"{said_of_rows(counts, options, progress)}: {counts.documents} lines with "
            f"{counts.answer_tokens} tokens to be masked{said_of_too_long(counts)}; of "
            f"those without such a token, {counts.unmarked} were left out")


def prepare_images(options, progress):
    """Writes the rows of --images, and returns what is said about them."""
    try:
        from data.image_processor import ImageProcessor  # Pillow is needed for nothing else.
    except ImportError as error:
        raise DataError("--images needs Pillow, which is missing: run tools/check once") from error
    config = read_model_config(options.model)
    counts = write_images(ImageProcessor(options.model), config, options.images, options.output,
                          progress.add)
    channels, height, width = counts.shape
    return (f"{counts.rows} images of {channels} channels, {height} x {width}, from "
            f"{progress.total_bytes} bytes, {counts.num_labels} labels")


def chosen(options, kind):
    """Returns a dataclass of options with what the user chose, and its own defaults."""
    return kind(**{field.name: getattr(options, field.name) for field in dataclasses.fields(kind)
                   if getattr(options, field.name) is not None})


def show(previews, progress):
    progress.end()  # Its line is not that of a preview.
    for preview in previews:
        print(preview)


def said_of_rows(counts, options, progress):
    filled = counts.tokens / (counts.rows * options.sequence)
    return (f"{counts.rows} rows of {options.sequence} tokens, {filled:.1%} filled, "
            f"from {progress.total_bytes} bytes")


def said_of_too_long(counts):
    return f"; of those too long, {counts.cut} were cut and {counts.dropped} dropped"


def size_of_files(paths):
    """Returns the bytes of all files, and refuses those that do not exist."""
    return sum(map(size_of_file, paths))


def size_of_file(path):
    with naming_file(path):
        if not path.is_file():
            raise DataError(f"{path}: it is no regular file, so nobody knows how long it is"
                            if path.exists() else f"{path}: no such file")
        return path.stat().st_size


class Source(typing.NamedTuple):
    """One kind of input, which an option of its own names."""
    prepare: typing.Callable
    suffix: str  # What the output's name ends with.
    # The names of options that not every source has:
    needs: list  # those that this source must have,
    takes: list  # and those that it may have.
    size_of: typing.Callable = size_of_files
    num_passes: int = 1  # How often the input is read.


SOURCES = {
    "text": Source(prepare_text, ".npy", ["tokenizer"], ["separator", "dtype"]),
    "messages": Source(prepare_chats, ".safetensors", ["tokenizer", "sequence"],
                       ["answers", "layout", "too_long", "preview"]),
    "labels": Source(prepare_labels, ".safetensors", ["tokenizer", "sequence"],
                     ["problem", "too_long", "preview"], num_passes=2),
    "masked": Source(prepare_masked, ".safetensors", ["tokenizer", "sequence"],
                     ["layout", "too_long", "preview"]),
    "images": Source(prepare_images, ".safetensors", ["model"], [], size_of=size_of_folder)}


def parser():
    def at_least(smallest, largest=None):
        def number(text):
            if int(text) < smallest:
                raise argparse.ArgumentTypeError(f"{text} is less than {smallest}")
            if largest is not None and int(text) > largest:
                raise argparse.ArgumentTypeError(f"{text} is more than {largest}")
            return int(text)
        return number

    result = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--tokenizer", metavar="DIR_OR_FILE_OR_NAME",
                        help="for all but --images: folder of a model, a tokenizer.json (for "
                             "--text), or a name on the Hugging Face Hub")
    result.add_argument("--model", type=pathlib.Path, metavar="DIR",
                        help="for --images: folder of a model")
    source = result.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", nargs="+", type=pathlib.Path, metavar="FILE",
                        help="UTF-8 text, taken in this order")
    source.add_argument("--messages", nargs="+", type=pathlib.Path, metavar="FILE.jsonl",
                        help="conversations: lines with messages, or with prompt and completion")
    source.add_argument("--labels", nargs="+", type=pathlib.Path, metavar="FILE.jsonl",
                        help="labelled texts: lines with text, label, and perhaps text_pair")
    source.add_argument("--masked", nargs="+", type=pathlib.Path, metavar="FILE",
                        help="UTF-8 text for a model of masked tokens: a document a line")
    source.add_argument("--images", type=pathlib.Path, metavar="DIR",
                        help="images: a folder for each class")
    result.add_argument("--output", required=True, type=pathlib.Path,
                        metavar="FILE.npy|FILE.safetensors")
    text = result.add_argument_group("with --text")
    text.add_argument("--separator", metavar="TOKEN",
                      help="token put behind each file, such as '<|endoftext|>'")
    text.add_argument("--dtype", choices=["auto", "uint16", "uint32"],
                      help="auto, the default: uint16 when the vocabulary fits")
    rows = result.add_argument_group("with --messages, --labels and --masked")
    rows.add_argument("--sequence", type=at_least(2, MOST_TOKENS), metavar="TOKENS",
                      help="the length of each row")
    rows.add_argument("--too-long", choices=["error", "drop", "cut"],
                      help="what becomes of an input longer than a row (default: error)")
    rows.add_argument("--preview", type=at_least(0), metavar="ROWS",
                      help="show the first rows as text: with [[answers]] or [[what may be "
                           "masked]] in brackets, or with their labels")
    layout = result.add_argument_group("with --messages and --masked")
    layout = layout.add_mutually_exclusive_group()
    layout.add_argument("--pad", dest="layout", action="store_const", const="pad",
                        help="one document a row, filled up with padding (default)")
    layout.add_argument("--pack", dest="layout", action="store_const", const="pack",
                        help="several documents a row, first fit, none cut to fit")
    chats = result.add_argument_group("with --messages")
    chats.add_argument("--answers", choices=["all", "last"],
                       help="which answers of a conversation are learnt (default: all)")
    labels = result.add_argument_group("with --labels")
    labels.add_argument("--problem", choices=list(PROBLEM_TYPES),
                        help="what a label is: one of several, any number of several, or a number "
                             "(default: as the first label is)")
    return result


def refuse_options_of_others(source, options):
    """Refuses an option that does not go with the source, and says with which it goes."""
    names = {name for other in SOURCES.values() for name in other.needs + other.takes}
    for name in sorted(names - set(SOURCES[source].needs + SOURCES[source].takes)):
        if getattr(options, name) is None:
            continue
        option = f"--{options.layout}" if name == "layout" else f"--{name.replace('_', '-')}"
        takers = [f"--{other}" for other in SOURCES
                  if name in SOURCES[other].needs + SOURCES[other].takes]
        raise DataError(f"{option} goes with {' or '.join(takers)}")


def prepare(options):
    """Does what the options say, and returns what is said about the output."""
    name = next(name for name in SOURCES if getattr(options, name) is not None)
    source = SOURCES[name]
    refuse_options_of_others(name, options)
    for needed in source.needs:
        if getattr(options, needed) is None:
            raise DataError(f"--{name} needs --{needed}")
    if options.output.suffix != source.suffix:
        raise DataError(f"the output {options.output} must end with {source.suffix}")
    progress = Progress(source.size_of(getattr(options, name)), source.num_passes)
    try:
        return source.prepare(options, progress)
    finally:
        progress.end()


def main(arguments):
    options = parser().parse_args(arguments)
    try:
        said = prepare(options)
    except DataError as error:
        sys.exit(f"prepare_data: {error}")
    print(f"{options.output}: {said}")


if __name__ == "__main__":
    # transformers imports Torch where it is installed, which takes seconds and 200 MB. No tokenizer
    # needs it.
    sys.modules["torch"] = None
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # It would say that Torch is missing.
    # Few objects here are parts of cycles, and to look for them as often as Python does would take
    # a twentieth of the time.
    gc.set_threshold(50_000)
    # An exception, unlike the signal, lets the unfinished output be deleted.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    main(sys.argv[1:])
