# SPDX-License-Identifier: Apache-2.0
"""Conversations as the one text that a model reads, and the places of its answers in that text.

The text is what the tokenizer's chat template writes. Where an answer lies follows from writing
the conversation turn by turn: it begins where the template asks for an answer
(add_generation_prompt), and ends with the end token behind its content.
"""
import hashlib
import os
import typing

from .compiled_template import CompiledTemplate
from .data_error import DataError, first_line
from .json_lines import refuse_half_characters
from .model_tokenizer import crc32_of


class Answer(typing.NamedTuple):
    """Characters of a text. An answer is [start, end), and white space follows up to space_end."""
    start: int
    end: int
    space_end: int


class WrittenChat(typing.NamedTuple):
    """A conversation as text, with the answers that are to be learnt."""
    place: str
    text: str
    answers: list
    num_bytes: int  # The length of its line.


class ChatTemplate:
    """The chat template of a transformers tokenizer, or its lack of one."""

    def __init__(self, tokenizer, which_answers):
        """Learns the `which_answers` of each conversation: "all" of them, or the "last"."""
        self._tokenizer = tokenizer
        self._which_answers = which_answers
        # These return what apply_chat_template of transformers returns: of the conversation that is
        # written, and of plain ones, sooner.
        self._render = self._render_any
        self._render_plain = self._compile_and_render
        try:
            self.text = tokenizer.get_chat_template()
        except ValueError:  # It has none, or several of which none is the default.
            self.text = None
        added = tokenizer.backend_tokenizer.get_added_tokens_decoder().values()
        # Some vocabularies have tokens of white space among them, which end no turn.
        self._end_tokens = {token.content for token in added if not token.content.isspace()}
        self._ends = tuple(self._end_tokens)
        # The longest first, because the beginning of a token may be one, too.
        self._end_lengths = sorted({len(token) for token in self._end_tokens}, reverse=True)

    def metadata(self):
        """Returns what the metadata of rows say of the template; empty texts where there is none.

        gemini-train computes the second, too, and compares it with that of the model's template.
        """
        if self.text is None:
            return {"template": "", "template_crc32": ""}
        return {"template": hashlib.sha256(self.text.encode()).hexdigest(),
                "template_crc32": crc32_of(self.text)}

    def write(self, conversation):
        """Returns the conversation as a WrittenChat."""
        if self.text is not None:
            text, answers = self._write_turns(conversation)
        elif conversation.is_pair:
            text, answers = self._write_plain(conversation)
        else:
            raise DataError(f"{conversation.place}: messages: the tokenizer has no chat template: "
                            "add chat_template.jinja to its folder, or give prompt and completion")
        refuse_half_characters(text, conversation.place)
        return WrittenChat(conversation.place, text, answers, conversation.num_bytes)

    def _write_plain(self, conversation):
        """Writes prompt, completion and the token that ends a text, one behind the other."""
        if self._tokenizer.eos_token is None:
            raise DataError(f"{conversation.place}: completion: the tokenizer has neither a chat "
                            "template nor an eos_token, so nothing could end the answer")
        prompt, completion = (message["content"] for message in conversation.messages)
        text = prompt + completion + self._tokenizer.eos_token
        return text, [Answer(len(prompt), len(text), len(text))]

    def _write_turns(self, conversation):
        place, messages = conversation.place, conversation.messages
        self._render = self._render_plain if conversation.is_plain else self._render_any
        text = self._apply(place, messages, False)
        turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        answers = []
        for index in turns if self._which_answers == "all" else turns[-1:]:
            is_last = index + 1 == len(messages)
            turn = text if is_last else self._apply(place, messages[:index + 1], False)
            header = self._apply(place, messages[:index], True)
            if not turn.startswith(header):
                at = len(os.path.commonprefix([turn, header]))
                raise DataError(f"{place}: messages[{index}]: the chat template does not begin an "
                                "answer as it asks for one (add_generation_prompt): it writes "
                                f"{turn[at:at + 20]!r}, and asks with {header[at:at + 20]!r}")
            start = len(header)
            # Calls of tools stand behind the content, so the end of the content ends nothing.
            behind = None if messages[index].get("tool_calls") else self._behind_content(
                place, messages[:index + 1], turn, start)
            if behind is None and header == self._apply(place, messages[:index], False):
                raise DataError(f"{place}: messages[{index}]: the chat template does not ask for "
                                "an answer here (add_generation_prompt adds nothing), so what it "
                                f"writes before one would be learnt: {turn[start:start + 20]!r}")
            end = self._end_of_answer(turn, start, behind)
            if not text.startswith(turn[:end]):
                raise DataError(f"{place}: messages[{index}]: the chat template writes this turn "
                                "otherwise when more turns follow, so the model would not see what "
                                "it learnt: use --answers last")
            # Where no token ends the turn, one that goes on behind it is the next turn's as well.
            has_end_token = text.endswith(self._ends, start, end)
            space_end = _behind_white_space(text, end) if has_end_token else end
            answers.append(Answer(start, end, space_end))
        return text, answers

    def _apply(self, place, messages, asks_for_an_answer):
        try:
            return self._render(messages, asks_for_an_answer)
        except Exception as error:  # A template is a program of the model's, and raises anything.
            raise DataError(f"{place}: messages: the chat template refuses the first "
                            f"{len(messages)}: {first_line(error)}") from error

    def _render_any(self, messages, asks_for_an_answer):
        # In a list, a conversation may have no messages yet: its first may be an answer.
        return self._tokenizer.apply_chat_template(
            [messages], tokenize=False, add_generation_prompt=asks_for_an_answer)[0]

    def _compile_and_render(self, messages, asks_for_an_answer):
        compiled = CompiledTemplate(self.text, self._tokenizer.special_tokens_map)
        self._render_plain = self._render = compiled.render
        return compiled.render(messages, asks_for_an_answer)

    def _behind_content(self, place, messages, turn, start):
        """Returns where the content of the last message ends in `turn`, the text of all of them.

        It is at `start`, but for white space. None: it is not. An empty content is where another
        would be: a template may write thoughts before it.
        """
        content = messages[-1]["content"].strip()
        if content:
            return _behind(turn, start, content)
        other = self._apply(place, [*messages[:-1], {**messages[-1], "content": "a"}], False)
        return None if _behind(other, start, "a") is None else start

    def _end_of_answer(self, turn, start, behind):
        """Returns where the last answer of a text ends. It starts at `start`, its content ends at
        `behind`, or the template rewrites the content or adds calls of tools, and that is None.

        An answer ends with the token that the template writes behind the content. Generation stops
        there, so the model never writes what some templates add: white space, the token that ends
        a text, or the header of another answer. Behind content that is rewritten, the token is the
        last thing of the turn but white space. Where no token ends a turn, all of it is learnt.
        """
        if behind is None:
            end = len(turn.rstrip())
            found = any(turn[max(start, end - length):end] in self._end_tokens
                        for length in self._end_lengths)
            return end if found else len(turn)
        at = _behind_white_space(turn, behind)
        for length in self._end_lengths:
            if turn[at:at + length] in self._end_tokens:
                return min(at + length, len(turn))
        return len(turn)


def _behind(turn, start, content):
    """Returns where content ends that stands at `start`, but for white space. None: it does not."""
    at = _behind_white_space(turn, start)
    return at + len(content) if turn.startswith(content, at) else None


def _behind_white_space(text, start):
    if not text[start:start + 1].isspace():
        return start
    return len(text) - len(text[start:].lstrip())
