# SPDX-License-Identifier: Apache-2.0
"""Rows as people read them: their text, with [[ and ]] around what is to be predicted."""
import numpy


def preview_of(tokenizer, row, number, sequence, marked):
    """Returns the text of a row, by a tokenizers.Tokenizer. `number` is the row's, from 1 on.

    `marked` says what the tokens are that stand between the brackets.
    """
    lines = []
    for index, document in enumerate(row, start=1):
        lines.append(f"== row {number}, document {index}: {document.tokens.size} tokens, "
                     f"{document.answers.sum()} {marked}")
        lines.append(_marked_text(tokenizer, document))
    padding = sequence - sum(document.tokens.size for document in row)
    lines.append(f"== row {number}: {padding} of {sequence} tokens are padding")
    return "\n".join(lines)


def preview_of_label(tokenizer, tokens, label, number, sequence):
    """Returns the text of a row's tokens, and its label. `number` is the row's, from 1 on."""
    return (f"== row {number}: {tokens.size} of {sequence} tokens, label {label}\n"
            f"{tokenizer.decode(tokens.tolist(), skip_special_tokens=False)}\n")


def _marked_text(tokenizer, document):
    borders = numpy.flatnonzero(numpy.diff(document.answers)) + 1
    text = ""
    for tokens, answers in zip(numpy.split(document.tokens, borders),
                               numpy.split(document.answers, borders)):
        part = tokenizer.decode(tokens.tolist(), skip_special_tokens=False)
        text += f"[[{part}]]" if answers[0] else part
    return text
