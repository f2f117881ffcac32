# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a model: from a tokenizer.json, a model folder, or a name on the Hub."""
import hashlib
import pathlib
import zlib

import tokenizers

from .data_error import DataError, first_line, naming_file


def load_tokenizer(name):
    """Returns a tokenizers.Tokenizer from a tokenizer.json, a model folder, or a Hub name."""
    path = pathlib.Path(name)
    with naming_file(path):
        json_path = path / "tokenizer.json" if path.is_dir() else path
        is_file = json_path.is_file()
    if is_file:
        try:
            return tokenizers.Tokenizer.from_file(str(json_path))
        except Exception as error:  # The library raises bare Exception.
            raise DataError(f"{json_path} is no tokenizer: {error}") from error
    # Older folders have vocab.json and merges.txt only; transformers converts them.
    return _load_by_transformers(
        name, "has no tokenizer.json, and transformers does not read it").backend_tokenizer


def load_model_tokenizer(name, needed_for):
    """Returns the transformers tokenizer of a model folder, or of a Hub name.

    It knows what a tokenizer.json does not: the chat template, and which tokens have which purpose.
    `needed_for` is the option that needs it, as an error says it.
    """
    with naming_file(name):
        is_file = pathlib.Path(name).is_file()
    if is_file:
        raise DataError(f"{name} is a file: {needed_for} needs the tokenizer's folder, which has "
                        "the special tokens and the chat template beside it")
    return _load_by_transformers(name, "has no tokenizer that transformers reads")


def metadata_of(tokenizer):
    """Returns what the metadata of rows say of the tokenizers.Tokenizer that made them.

    gemini-train computes the second, too, of a model's tokenizer.json, and compares them.
    """
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    lines = (f"{number} {token}\n"
             for number, token in sorted((number, token) for token, number in vocabulary.items()))
    return {"tokenizer": hashlib.sha256(tokenizer.to_str().encode()).hexdigest(),
            "vocabulary_crc32": crc32_of("".join(lines))}


def crc32_of(text):
    """Returns the CRC-32 of a text's UTF-8 in 8 hexadecimal digits."""
    return f"{zlib.crc32(text.encode()):08x}"


def take_text_as_it_is(tokenizer):
    """Makes a tokenizers.Tokenizer neither cut nor pad, whatever it was saved with."""
    tokenizer.no_truncation()
    tokenizer.no_padding()


def _load_by_transformers(name, wrong_with_a_folder):
    is_folder = pathlib.Path(name).is_dir()
    if not is_folder and (name.count("/") > 1 or name.startswith((".", "/", "~"))):
        raise DataError(f"there is no tokenizer at {name}")
    try:
        import transformers  # Takes a second, and text with a tokenizer.json does without.
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, use_fast=True)
        # Slow tokenizers have none, and cannot tell tokens' places.
        vocabulary = tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)
    except Exception as error:  # It raises whatever files, the Hub or the network make it raise.
        where = wrong_with_a_folder if is_folder else (
            "is neither a file nor a folder here, and the Hugging Face Hub did not give it")
        raise DataError(f"{name} {where}: {first_line(error)}") from error
    # Of a folder without its files transformers makes one that knows special tokens alone.
    if not vocabulary.keys() - set(tokenizer.all_special_tokens):
        raise DataError(f"{name} has no tokenizer: neither a tokenizer.json nor the files of an "
                        "older one, such as vocab.txt or tokenizer.model")
    return tokenizer
