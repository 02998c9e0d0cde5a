"""Chats as ids, by the Jinja template of a tokenizer's folder, and which ids stand in the assistant's answers."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NoReturn

import numpy as np
from jinja2 import TemplateError
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gptmini.tokenizer.library import library_errors
from gptmini.user_error import UserError

if TYPE_CHECKING:
    import tokenizers

Message = dict[str, str]  # role and content
# Stands around the strings of special tokens that a message holds; Unicode keeps it free for such uses.
MARK = "\ufdd0"


class GenerationTag(Extension):
    """The tag generation, by which some templates tell transformers where answers stand; here it changes nothing."""

    tags: ClassVar[set[str]] = {"generation"}

    def parse(self, parser: Parser) -> list[Node]:
        """Take what stands between the tag and its end as if they were not there."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatEncoder:
    """Encodes chats. Special tokens of the template become their ids, and those that a message holds are text.

    The template runs in a sandbox, with what transformers gives it (utils/chat_template_utils.py), but without the
    date: the text of a prepared folder does not depend on the day.
    """

    def __init__(
        self,
        template: str,
        names: Mapping[str, str],
        *,
        special: Sequence[str],
        tokenizer: "tokenizers.Tokenizer",
        plain: "tokenizers.Tokenizer",
    ) -> None:
        """Take a template and the tokenizers for what it renders.

        Args:
            template: source in Jinja.
            names: what the template calls bos_token, eos_token and so on.
            special: the strings of all special tokens.
            tokenizer: gives the strings of special tokens their ids.
            plain: takes them for text.

        Raises UserError: the template is no Jinja.
        """
        self._names: dict[str, object] = {"raise_exception": _raise, **names}
        self._special = re.compile("|".join(map(re.escape, special)) or "(?!)")
        self._tokenizer = tokenizer
        self._plain = plain

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
        )
        environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
        try:
            self._template = environment.from_string(template)
        except TemplateError as error:
            raise UserError(f"a chat template must be in Jinja, got: {error}") from None

    def encode(self, messages: Sequence[Message]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of a chat, uint32 (n,), and whether each stands in an answer of the assistant, bool (n,).

        An answer is what the template puts behind the prompt for one, to the end of its message.
        Raises UserError: the template refuses the messages, or renders their beginning otherwise than in the whole.
        """
        messages = [message | {"content": self._marked(message["content"])} for message in messages]
        text = self._rendered(messages)

        ids: list[int] = []
        places = [np.zeros((0, 2), dtype=np.int64)]  # in text, where each id begins and ends
        begin = 0
        for number, part in enumerate(text.split(MARK)):
            is_typed = number % 2 == 1
            coder = self._plain if is_typed else self._tokenizer
            with library_errors("the tokenizer cannot encode a chat"):
                encoded = coder.encode(part, add_special_tokens=False)
            ids += encoded.ids
            places.append(begin + np.array(encoded.offsets, dtype=np.int64).reshape(-1, 2))
            begin += len(part) + len(MARK)

        begins, ends = np.concatenate(places).T  # (n,) each
        is_answer = np.zeros(len(ids), dtype=bool)
        for start, end in self._answers(messages, text):
            is_answer |= (ends > start) & (begins < end)
        return np.array(ids, dtype=np.uint32), is_answer

    def _marked(self, content: str) -> str:
        """A message's text, with MARK before and behind the string of each special token."""
        return self._special.sub(rf"{MARK}\g<0>{MARK}", content.replace(MARK, ""))

    def _rendered(self, messages: Sequence[Message], *, asks: bool = False) -> str:
        """The text of messages, with the prompt for an answer behind them if `asks`."""
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=asks, **self._names
            )
        except Exception as error:  # of any class: a template is a program
            raise UserError(f"the tokenizer's chat template refuses a chat: {error}") from None

    def _answers(self, messages: Sequence[Message], text: str) -> list[tuple[int, int]]:
        """Where each answer of the assistant starts and ends in the text of messages."""
        answers = []
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            prompt = self._rendered(messages[:i], asks=True)
            answered = self._rendered(messages[: i + 1])
            if not (text.startswith(prompt) and text.startswith(answered)):
                raise UserError(
                    "the tokenizer's chat template must render the beginning of a chat as it does in the whole, and "
                    f"changes the answer {message['content']!r:.60} where messages follow; give each answer a chat "
                    "that ends with it"
                )
            answers.append((len(prompt), len(answered)))
        return answers


def _raise(message: str) -> NoReturn:
    """What templates call raise_exception."""
    raise TemplateError(message)
