# SPDX-License-Identifier: Apache-2.0
"""Conversations as JSONL files hold them: one JSON object a line.

A line has `messages`, a list of objects with `role` and `content`, or else `prompt` and
`completion`. Other keys are left aside, but for `tools`, which would change what a template writes.
Lines of white space are skipped.
"""
import json
import typing

from .data_error import DataError

ROLES = ("system", "user", "assistant", "tool")


class Conversation(typing.NamedTuple):
    """What one line says. Its messages end with its last answer: nothing is learnt from more."""
    place: str  # Its file and line, as errors name them.
    messages: list
    is_pair: bool  # It came as prompt and completion, which do without a chat template.
    num_bytes: int  # The length of its line.


def read_conversations(path, progress):
    """Yields the conversations of a file. Calls progress(bytes) as it reads."""
    is_empty = True
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            progress(len(line))
            if line.isspace():
                continue
            is_empty = False
            place = f"{path}, line {number}"
            messages, is_pair = _messages_of(_parse(line, number, place), place)
            yield Conversation(place, messages, is_pair, len(line))
    if is_empty:
        raise DataError(f"{path} is empty: there is no conversation in it")


def _parse(line, number, place):
    """Returns the object of a line. The first line of a file may begin with a byte order mark."""
    try:
        record = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{place} is not UTF-8 at byte {error.start} of the line: convert the "
                        "file, for example with iconv -f latin1 -t utf-8") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{place} is no JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:  # A number or a nesting beyond Python's limits.
        raise DataError(f"{place} is no JSON that Python reads: {error}") from error
    if not isinstance(record, dict):
        raise DataError(f"{place} is no JSON object with messages, or with prompt and completion")
    return record


def _messages_of(record, place):
    """Returns a line's messages up to the last answer, and whether they are a pair."""
    if record.get("tools"):
        raise DataError(f"{place}: tools: descriptions of tools are not read: take the key away, "
                        "and describe the tools in the system message")
    if "messages" in record:
        return _checked_messages(record["messages"], place), False
    if "prompt" not in record and "completion" not in record:
        raise DataError(f"{place} has neither the key messages nor the keys prompt and completion")
    for key in ("prompt", "completion"):
        if not isinstance(record.get(key), str):
            raise DataError(f"{place}: {key}: {'no text' if key in record else 'missing'}")
    return [{"role": "user", "content": record["prompt"]},
            {"role": "assistant", "content": record["completion"]}], True


def _checked_messages(messages, place):
    if not isinstance(messages, list):
        raise DataError(f"{place}: messages: no list")
    length = 0
    for index, message in enumerate(messages):
        key = f"messages[{index}]"
        if not isinstance(message, dict):
            raise DataError(f"{place}: {key}: no object with role and content")
        if message.get("role") not in ROLES:
            raise DataError(f"{place}: {key}.role: unknown role {message.get('role')!r}: it must "
                            f"be one of {', '.join(ROLES)}")
        if not isinstance(message.get("content"), str):
            raise DataError(f"{place}: {key}.content: "
                            f"{'no text' if 'content' in message else 'missing'}")
        if message["role"] == "assistant":
            length = index + 1
    if length == 0:
        raise DataError(f"{place}: messages: no answer: none of {len(messages)} messages has the "
                        "role assistant")
    return messages[:length]
