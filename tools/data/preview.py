# SPDX-License-Identifier: Apache-2.0
"""Rows as people read them: their text, with [[ and ]] around what is to be predicted."""
import numpy


def preview_of(tokenizer, row, number, sequence):
    """Returns the text of a row, by a tokenizers.Tokenizer. `number` is the row's, from 1 on."""
    lines = []
    for index, document in enumerate(row, start=1):
        lines.append(f"== row {number}, document {index}: {document.tokens.size} tokens, "
                     f"{document.answers.sum()} of answers")
        lines.append(_marked_text(tokenizer, document))
    padding = sequence - sum(document.tokens.size for document in row)
    lines.append(f"== row {number}: {padding} of {sequence} tokens are padding")
    return "\n".join(lines)


def _marked_text(tokenizer, document):
    borders = numpy.flatnonzero(numpy.diff(document.answers)) + 1
    text = ""
    for tokens, answers in zip(numpy.split(document.tokens, borders),
                               numpy.split(document.answers, borders)):
        part = tokenizer.decode(tokens.tolist(), skip_special_tokens=False)
        text += f"[[{part}]]" if answers[0] else part
    return text
