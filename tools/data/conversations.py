# SPDX-License-Identifier: Apache-2.0
"""Conversations as JSONL files hold them: one JSON object a line.

A line has `messages`, a list of objects with `role` and `content`, or else `prompt` and
`completion`. Other keys are left aside, but for `tools`, which would change what a template writes.
Lines of white space are skipped.
"""
import typing

from .data_error import DataError
from .json_lines import read_json_lines

ROLES = ("system", "user", "assistant", "tool")


class Conversation(typing.NamedTuple):
    """What one line says. Its messages end with its last answer: nothing is learnt from more."""
    place: str  # Its file and line, as errors name them.
    messages: list
    is_pair: bool  # It came as prompt and completion, which do without a chat template.
    is_plain: bool  # Its messages have no keys but role and content.
    num_bytes: int  # The length of its line.


def read_conversations(path, progress):
    """Yields the conversations of a file. Calls progress(bytes) as it reads."""
    for line in read_json_lines(path, "messages, or with prompt and completion", progress):
        messages, is_pair = _messages_of(line.record, line.place)
        is_plain = max(map(len, messages)) == 2
        yield Conversation(line.place, messages, is_pair, is_plain, line.num_bytes)


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
        if not isinstance(message, dict):
            raise DataError(f"{place}: messages[{index}]: no object with role and content")
        role = message.get("role")
        if role not in ROLES:
            raise DataError(f"{place}: messages[{index}].role: unknown role {role!r}: it must be "
                            f"one of {', '.join(ROLES)}")
        if not isinstance(message.get("content"), str) and not _only_calls_tools(message):
            raise DataError(f"{place}: messages[{index}].content: "
                            f"{'no text' if 'content' in message else 'missing'}")
        if role == "assistant":
            length = index + 1
    if length == 0:
        raise DataError(f"{place}: messages: no answer: none of {len(messages)} messages has the "
                        "role assistant")
    return messages[:length]


def _only_calls_tools(message):
    """Returns whether a message calls tools and says nothing, which is its right."""
    return "content" in message and message["content"] is None and message.get("tool_calls")
