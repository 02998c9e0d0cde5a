"""The built-in chat template. With this template, any tokenizer that has end-of-text can encode chats."""

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from gptmini.system.errors import UserError
from gptmini.tokenizer.chat.coder import ChatVocabulary
from gptmini.tokenizer.chat.template import ChatTemplate, Message
from gptmini.tokenizer.tokenizer import END_OF_TEXT, Tokenizer

# The template writes one line per message, such as "User: Hello". An answer ends with end-of-text. The prompt for an
# answer ends without a space, because tokenizers put the space into the first token of the answer. Other programs
# return an answer with this space. Therefore an answer with and without the space gives the same text.
PLAIN_TEMPLATE = (
    "{%- for message in messages -%}{%- if message.role == 'assistant' -%}Assistant:"
    "{% generation %}{{ ' ' + message.content.lstrip(' ') }}{{ eos_token }}{% endgeneration %}"
    "{%- elif message.role == 'system' -%}"
    "{{ message.content }}"
    "{%- else -%}"
    "{{ message.role | capitalize }}: {{ message.content }}"
    "{%- endif -%}"
    "{{- '\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}Assistant:{%- endif -%}"
)
# The same after the token that the model expects before a text.
PLAIN_TEMPLATE_AFTER_BOS = "{{- bos_token -}}" + PLAIN_TEMPLATE


class PlainEncoding(NamedTuple):
    """The ids of a text, and the start and end of each id in characters."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class PlainCoder:
    """A Coder that uses a tokenizer of gptmini, whose only special token is end-of-text."""

    def __init__(self, tokenizer: Tokenizer, *, special: bool) -> None:
        """Take a tokenizer. If special is true, the string of end-of-text becomes its id instead of ordinary text."""
        self._tokenizer = tokenizer
        self._special = special

    def encode(self, text: str, *, add_special_tokens: bool) -> PlainEncoding:
        """Return the ids of a text. Raises UserError if the tokenizer does not have a character of the text."""
        assert not add_special_tokens
        parts = re.split(f"({re.escape(END_OF_TEXT)})", text) if self._special else [text]

        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        start = 0
        for part in parts:
            if self._special and part == END_OF_TEXT:
                assert self._tokenizer.end_of_text is not None
                ids.append(self._tokenizer.end_of_text)
                offsets.append((start, start + len(part)))
            elif part:
                new = self._tokenizer.encode(part)
                ids += new
                offsets += [(start + a, start + b) for a, b in self._offsets(part, new)]
            start += len(part)

        return PlainEncoding(ids, offsets)

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a special token. Return None unless the token is end-of-text."""
        return self._tokenizer.end_of_text if token == END_OF_TEXT else None

    def _offsets(self, text: str, ids: list[int]) -> list[tuple[int, int]]:
        # If an id starts or ends inside a character, its range includes this character.
        ends = np.cumsum([len(self._tokenizer.token_bytes(i)) for i in ids])  # (n,), in bytes
        starts = np.append(0, ends[:-1])  # (n,)
        # The position of the first byte of each character.
        places = np.cumsum([0, *(len(c.encode()) for c in text)])
        # The character that contains the first byte of each id.
        firsts = np.searchsorted(places, starts, side="right") - 1
        lasts = np.searchsorted(places, ends, side="left")
        return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def plain_vocabulary(tokenizer: Tokenizer) -> ChatVocabulary:
    """Return what an encoder of chats needs from a tokenizer of gptmini."""
    return ChatVocabulary(
        names={"eos_token": END_OF_TEXT},
        special=[END_OF_TEXT],
        words=[],
        coder=PlainCoder(tokenizer, special=True),
        plain_coder=PlainCoder(tokenizer, special=False),
    )


def plain_text(messages: Sequence[Message]) -> str:
    """Return the text of a chat, rendered with PLAIN_TEMPLATE. The text does not contain end-of-text."""
    return _plain_template().render(messages)


@cache
def _plain_template() -> ChatTemplate:
    return ChatTemplate(PLAIN_TEMPLATE)


def leading_of(template: str) -> str:
    """Return the text between the generation prompt and an answer: a space for the built-in template, otherwise ''."""
    return " " if PLAIN_TEMPLATE in template else ""


def with_chat_template(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer with a chat template. If it has none, add PLAIN_TEMPLATE, which needs end-of-text."""
    if tokenizer.chat_template is not None:
        return tokenizer
    if tokenizer.end_of_text is None:
        raise UserError(
            "data.template=chat requires end-of-text; use tokenizer=byte, or several chats with tokenizer=char"
        )
    template = PLAIN_TEMPLATE_AFTER_BOS if tokenizer.prefix_ids else PLAIN_TEMPLATE
    return tokenizer.with_template(template)
