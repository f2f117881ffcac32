# SPDX-License-Identifier: Apache-2.0
"""Conversations as the one text that a model reads, and the places of its answers in that text.

The text is what the tokenizer's chat template writes. Where an answer lies follows from writing
the conversation turn by turn: it begins where the template asks for an answer
(add_generation_prompt), and ends with the turn's end token.
"""
import hashlib
import os
import typing

from .data_error import DataError, first_line


class Answer(typing.NamedTuple):
    """Characters of a text. An answer is [start, end), and its turn goes on to turn_end."""
    start: int
    end: int
    turn_end: int


class WrittenChat(typing.NamedTuple):
    """A conversation as text, with the answers that are to be learnt."""
    place: str
    text: str
    answers: list


class ChatTemplate:
    """The chat template of a transformers tokenizer, or its lack of one."""

    def __init__(self, tokenizer, which_answers):
        """Learns the `which_answers` of each conversation: "all" of them, or the "last"."""
        self._tokenizer = tokenizer
        self._which_answers = which_answers
        try:
            self.text = tokenizer.get_chat_template()
        except ValueError:  # It has none, or several of which none is the default.
            self.text = None
        added = tokenizer.backend_tokenizer.get_added_tokens_decoder().values()
        # Some vocabularies have tokens of white space among them, which end no turn.
        self._end_tokens = {token.content for token in added if not token.content.isspace()}
        self._end_lengths = set(map(len, self._end_tokens))

    def digest(self):
        """Returns the SHA-256 of the template in hexadecimal digits, or "" where there is none."""
        return "" if self.text is None else hashlib.sha256(self.text.encode()).hexdigest()

    def write(self, conversation):
        """Returns the conversation as a WrittenChat."""
        if self.text is not None:
            text, answers = self._write_turns(conversation)
        elif conversation.is_pair:
            text, answers = self._write_plain(conversation)
        else:
            raise DataError(f"{conversation.place}: messages: the tokenizer has no chat template: "
                            "add chat_template.jinja to its folder, or give prompt and completion")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"{conversation.place}: {text[error.start]!r} is half a character: its "
                            "other half must stand beside it") from error
        return WrittenChat(conversation.place, text, answers)

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
        text = self._apply(place, messages, False)
        turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        answers = []
        for index in turns if self._which_answers == "all" else turns[-1:]:
            is_last = index + 1 == len(messages)
            turn = text if is_last else self._apply(place, messages[:index + 1], False)
            if not text.startswith(turn):
                raise DataError(f"{place}: messages[{index}]: the chat template writes this turn "
                                "otherwise when more turns follow, so the model would not see what "
                                "it learnt: use --answers last")
            header = self._apply(place, messages[:index], True)
            if not turn.startswith(header):
                at = len(os.path.commonprefix([turn, header]))
                raise DataError(f"{place}: messages[{index}]: the chat template does not begin an "
                                "answer as it asks for one (add_generation_prompt): it writes "
                                f"{turn[at:at + 20]!r}, and asks with {header[at:at + 20]!r}")
            answers.append(Answer(len(header), self._behind_end_token(turn), len(turn)))
        return text, answers

    def _apply(self, place, messages, asks_for_an_answer):
        try:
            # In a list, a conversation may have no messages yet: its first may be an answer.
            return self._tokenizer.apply_chat_template(
                [messages], tokenize=False, add_generation_prompt=asks_for_an_answer)[0]
        except Exception as error:  # A template is a program of the model's, and raises anything.
            raise DataError(f"{place}: messages: the chat template refuses the first "
                            f"{len(messages)}: {first_line(error)}") from error

    def _behind_end_token(self, turn):
        """Returns where the last answer of a text ends.

        White space behind the end token separates turns, and the model never writes it: generation
        stops at the token. Where no token ends a turn, all that the template writes belongs to it.
        """
        text = turn.rstrip()
        has_end_token = any(text[-length:] in self._end_tokens for length in self._end_lengths)
        return len(text) if has_end_token else len(turn)
