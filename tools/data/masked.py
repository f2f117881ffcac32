# SPDX-License-Identifier: Apache-2.0
"""Lines of text as a file of rows, for models that learn tokens which are masked.

Nothing is masked here: a run chooses anew in each epoch among the tokens that are marked.
"""
import dataclasses

import numpy

from .data_error import DataError
from .document_rows import DocumentCounts, write_document_rows
from .documents import Document
from .fitted_texts import TextFitter
from .model_tokenizer import metadata_of, take_text_as_it_is
from .text_lines import read_text_lines


@dataclasses.dataclass(frozen=True)
class MaskedOptions:
    """What the user decides; docs/data.md says what each value means."""
    sequence: int  # Tokens of a row.
    layout: str = "pad"  # Or "pack".
    too_long: str = "error"  # Or "drop", or "cut".
    preview: int = 0  # How many rows are shown.


def write_masked(tokenizer, paths, output, options, progress=lambda n: None):
    """Encodes the lines of text files, in order, into `output`. Returns DocumentCounts.

    `tokenizer` is one of transformers. It serves one call, which changes what it does with long
    texts.
    """
    if tokenizer.mask_token_id is None:
        raise DataError("the tokenizer has no mask token, so its model learns no masked ones: take "
                        "--text, or name a mask_token in its tokenizer_config.json")
    backend = tokenizer.backend_tokenizer
    made_by = metadata_of(backend)
    take_text_as_it_is(backend)
    counts = DocumentCounts()
    fitter = TextFitter(tokenizer, options.sequence, options.too_long, counts, has_pairs=False)
    lines = (line for path in paths
             for line in read_text_lines(path, "line of text", progress))
    documents = _marked(fitter.fit(lines), _special_tokens_of(backend), counts)
    metadata = {"task": "masked", **made_by, "mask_token": str(tokenizer.mask_token_id)}
    write_document_rows(backend, documents, output, options, metadata, counts, "to be masked")
    return counts


def _special_tokens_of(tokenizer):
    """Returns for each id of a tokenizers.Tokenizer whether it is a special token, bool [ids].

    Those are never masked. transformers has made special what it has names for, such as the unknown
    token.
    """
    result = numpy.zeros(max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1, dtype=bool)
    result[[number for number, token in tokenizer.get_added_tokens_decoder().items()
            if token.special]] = True
    return result


def _marked(texts, is_special, counts):
    """Yields the document of each FittedText, with the tokens marked that may be masked.

    A text without such a token is left out, and counted in `counts.unmarked`.
    """
    for text in texts:
        may_be_masked = ~(is_special[text.tokens] | text.is_added)
        if may_be_masked.any():
            yield Document(text.source.place, text.tokens, may_be_masked.astype(numpy.uint8))
        else:
            counts.unmarked += 1
