"""The built-in chat template, with which any tokenizer can encode chats."""

import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gptmini.tokenizer.tokenizer import END_OF_TEXT, Tokenizer
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from jinja2 import Template

    from gptmini.tokenizer.chat import ChatEncoder

NO_CHAT_TEMPLATE = (
    "the tokenizer has no chat template; fine-tune the model on chats with data.template=chat, or import a folder that "
    "has chat_template.jinja, or chat_template in tokenizer_config.json"
)
# One line per message, such as "User: Hello". An answer ends with end-of-text. The prompt for an answer ends without a
# space, because tokenizers put the space into the first token of the answer.
PLAIN_TEMPLATE = (
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{%- if message.role == 'assistant' -%}"
    "Assistant:{% generation %} {{ message.content }}{{ eos_token }}{% endgeneration %}"
    "{%- elif message.role == 'system' -%}"
    "{{ message.content }}"
    "{%- else -%}"
    "{{ message.role | capitalize }}: {{ message.content }}"
    "{%- endif -%}"
    "{{- '\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}Assistant:{%- endif -%}"
)


class Encoded(NamedTuple):
    """Ids of a text, and the start and end of each id in its characters, as the tokenizers library returns them."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class Coder:
    """The part of tokenizers.Tokenizer that ChatEncoder uses, for a tokenizer of gptmini."""

    def __init__(self, tokenizer: Tokenizer, *, special: bool) -> None:
        """Take a tokenizer; special is true to encode the string of end-of-text as its id, and not as text."""
        self._tokenizer = tokenizer
        self._special = special

    def encode(self, text: str, *, add_special_tokens: bool) -> Encoded:
        """Return the ids of a text; raise UserError for a character that the tokenizer does not know."""
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
        return Encoded(ids, offsets)

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a special token."""
        return self._tokenizer.end_of_text if token == END_OF_TEXT else None

    def _offsets(self, text: str, ids: list[int]) -> list[tuple[int, int]]:
        """Return the start and end of each id in the characters of a text; an id may start or end in a character."""
        ends = np.cumsum([len(self._tokenizer.token_bytes(i)) for i in ids])  # (n,), in bytes
        starts = np.append(0, ends[:-1])  # (n,)
        # Start of each character in bytes.
        places = np.cumsum([0, *(len(c.encode("utf-8", "surrogatepass")) for c in text)])
        firsts = (
            np.searchsorted(places, starts, side="right") - 1
        )  # the character that the first byte is in
        lasts = np.searchsorted(places, ends, side="left")
        return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def checked_template(template: object) -> str | None:
    """Return a chat template that a file may have given; UserError unless it is a string or None."""
    if template is not None and not isinstance(template, str):
        raise UserError(f"chat_template must be a string, got {template!r:.80}")
    return template


def plain_encoder(tokenizer: Tokenizer) -> "ChatEncoder":
    """Return the encoder of chats for a tokenizer of gptmini, whose only special token is end-of-text.

    Raises UserError if it has no chat template, or if the template is not valid Jinja.
    """
    from gptmini.tokenizer.chat import ChatEncoder  # imports Jinja, which only chats need

    if tokenizer.chat_template is None:
        raise UserError(NO_CHAT_TEMPLATE)
    return ChatEncoder(
        tokenizer.chat_template,
        {"eos_token": END_OF_TEXT},
        special=[END_OF_TEXT],
        tokenizer=Coder(tokenizer, special=True),
        plain=Coder(tokenizer, special=False),
        leading=leading_of(tokenizer.chat_template),
    )


def plain_text(messages: Sequence[dict[str, Any]]) -> str:
    """Return a chat as text by PLAIN_TEMPLATE, without end-of-text."""
    return _plain_template().render(messages=messages)


@cache
def _plain_template() -> "Template":
    from gptmini.tokenizer.chat_template import GenerationTag, compile_template

    return compile_template(PLAIN_TEMPLATE, GenerationTag)


def leading_of(template: str) -> str:
    """Return the text that a template puts between the generation prompt and an answer: a space in PLAIN_TEMPLATE."""
    return " " if template == PLAIN_TEMPLATE else ""


def with_chat_template(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer that can encode chats: the same one, or one with PLAIN_TEMPLATE if it has no template.

    Raises UserError if the tokenizer has no end-of-text, which ends answers.
    """
    if tokenizer.chat_template is not None:
        return tokenizer
    if tokenizer.end_of_text is None:
        raise UserError(
            "data.template=chat requires a tokenizer with end-of-text, which ends answers; "
            "tokenizer=char has it only if the text has several chats"
        )
    return tokenizer.with_template(PLAIN_TEMPLATE)
