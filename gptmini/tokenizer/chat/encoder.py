"""Encode chats with a Jinja chat template, and find the ids of the assistant's answers."""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import lru_cache
from typing import Any

import numpy as np

from gptmini.system.errors import UserError
from gptmini.tokenizer.chat.answers import AnswerFinder
from gptmini.tokenizer.chat.coder import ChatVocabulary, Coder
from gptmini.tokenizer.chat.marks import (
    END,
    MARKS,
    START,
    Span,
    align,
    map_strings,
    remove_marks,
    split_at,
)
from gptmini.tokenizer.chat.plain import leading_of
from gptmini.tokenizer.chat.template import (
    ChatTemplate,
    Message,
    RefusedChatError,
    rename_thoughts,
)
from gptmini.tokenizer.rust_errors import library_errors
from gptmini.tokenizer.tokenizer import Tokenizer


def missing_template(name: object, run: object = "RUN") -> str:
    """Return the message for a model that was not tuned on chats. `run` is its path, if the path is known."""
    fix = f"gptmini train chats.jsonl init_from={run} data.template=chat"
    return f"{name} has no chat template; fine-tune it: {fix}"


# Building an encoder loads the tokenizer once more. A program uses few tokenizers.
@lru_cache(maxsize=4)
def chat_encoder_of(tokenizer: Tokenizer) -> "ChatEncoder":
    """Return the encoder of chats for a tokenizer. Raises UserError if its chat template is missing or invalid."""
    if tokenizer.chat_template is None:
        raise UserError(
            "the tokenizer has no chat template; fine-tune with data.template=chat, or import a model with one"
        )
    return ChatEncoder(tokenizer.chat_template, tokenizer.chat_vocabulary())


class ChatEncoder:
    """Encodes chats as ids.

    A special token in the template becomes its id. A special token in a message is ordinary text. The function
    apply_chat_template of transformers returns the same ids. If a message contains special tokens, it returns the same
    ids with the option sanitize_control_tokens.
    """

    def __init__(self, template: str, vocabulary: ChatVocabulary) -> None:
        """Compile a template, which may use the names of the vocabulary."""
        # The text that the template puts between the generation prompt and the content of an answer.
        self.leading = leading_of(template)
        self._template = ChatTemplate(template, vocabulary.names)
        self.uses_tools = self._template.uses_tools  # whether it renders the tools of a chat
        self._coder = vocabulary.coder
        self._plain_coder = vocabulary.plain_coder
        self._line_break = _encode(self._coder, "\n").ids

        # If two special tokens start at the same position, the tokenizers library uses the longer token.
        special = filter(str.strip, [*vocabulary.special, *vocabulary.words])
        longest_first = sorted(special, key=len, reverse=True)
        one_special = "|".join(map(re.escape, longest_first)) or "(?!)"
        self._special = re.compile(one_special)
        self._marked_special = re.compile(f"{START}({one_special}){END}")
        self._words = vocabulary.words

    def with_names(self, names: Mapping[str, object]) -> "ChatEncoder":
        """Return an encoder whose template may also use these names, such as tools."""
        encoder = copy(self)
        encoder._template = self._template.with_names(names)
        return encoder

    def encode(
        self, messages: Sequence[Message], *, loss_on: str = "answers"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of a chat, uint32 (n,), and for each id whether the loss counts it, bool (n,).

        With loss_on=all, the loss counts every id. With loss_on=answers, the loss counts the text between the tags
        generation and endgeneration of the template. If the template does not have these tags, the loss counts the text
        from the end of the generation prompt to the end of the assistant's message. It does not count a message with
        "weight": 0.

        Raises RefusedChatError if the template rejects the messages, splits special tokens in them, or hides answers.
        """
        messages = [rename_thoughts(message) for message in messages]
        text = self._template.render(messages)
        ids, places = self._encode_text(messages, text)

        is_counted = np.full(len(ids), loss_on == "all")
        if loss_on != "all":
            begins, ends = places.T  # (n,) each
            for start, end in AnswerFinder(self._template, self._special, messages, text).answers():
                is_counted |= (ends > start) & (begins < end)
        return np.array(ids, dtype=np.uint32), is_counted

    def special_token_in(self, text: str) -> str | None:
        """Return the first special token in a text. Outside a template, its string is ordinary text."""
        tokens = (match[0] for match in self._special.finditer(text))
        return next((token for token in tokens if token not in self._words), None)

    def ids_with_special_tokens(self, text: str) -> list[int]:
        """Return the ids of a text. The strings of special tokens in it become their ids."""
        return list(_encode(self._coder, text).ids)

    def prompt_text(self, messages: Sequence[Message]) -> str:
        """Return the text of a chat up to the start of its next answer. Raises the same errors as prompt."""
        return self._template.render(list(map(rename_thoughts, messages)), prompt=True)

    def prompt(self, messages: Sequence[Message], *, text: str | None = None) -> list[int]:
        """Return the ids of a chat up to the start of its next answer. Raises RefusedChatError if it has no ids.

        text is the result of prompt_text. None: render the chat.
        """
        if text is None:
            text = self.prompt_text(messages)
        messages = [rename_thoughts(message) for message in messages]
        ids, _ = self._encode_text(messages, text, prompt=True)
        if not ids:
            raise RefusedChatError("the tokenizer's chat template renders nothing for the chat")
        return ids

    def generation_prompt(self) -> str:
        """Return the text that the template puts between a question and its answer, or '' if the text is unknown."""
        question = [{"role": "user", "content": "?"}]
        with suppress(RefusedChatError):  # the template may require a longer chat
            before = self._template.render(question)
            return self._template.render(question, prompt=True).removeprefix(before)
        return ""

    def ids_behind_answer(self) -> list[int]:
        """Return the ids that the template puts after an answer. The template must accept a short chat."""
        chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": f"!{END}"}]
        _, _, behind = self._template.render(chat).partition(END)
        return self.ids_with_special_tokens(behind)

    def _encode_text(
        self, messages: Sequence[Message], text: str, *, prompt: bool = False
    ) -> tuple[list[int], np.ndarray]:
        """Return the ids of the rendered messages, and the start and end of each id in the text, int64 (n, 2)."""
        ids: list[int] = []
        places = [np.zeros((0, 2), dtype=np.int64)]
        plain_spans = self._plain_tokens(messages, text, prompt=prompt)
        for (start, end), is_plain in split_at(text, plain_spans):
            is_first = start == 0 and not is_plain
            part_ids, offsets = self._part(text[start:end], is_first=is_first, is_plain=is_plain)
            ids += part_ids
            places.append(start + offsets)
        return ids, np.concatenate(places)

    def _plain_tokens(self, messages: Sequence[Message], text: str, *, prompt: bool) -> list[Span]:
        """Return the position of each special token in `text` that comes from the content of a message.

        To find these tokens, the messages are rendered a second time, with marks around their special tokens. A
        template may strip white space at the edge of a message, but it does not strip white space next to a mark.
        Therefore, `text` and the marked text are compared without white space.
        """
        tools = self._template.names["tools"]
        try:
            marked_messages = [map_strings(message, self._between_marks) for message in messages]
            marked_tools = map_strings(tools, self._between_marks)
        except RecursionError:
            raise RefusedChatError("a field of a message is nested too deeply") from None
        if marked_messages == messages and marked_tools == tools:
            return []

        template = self._template.with_names({"tools": marked_tools})
        marked = template.render(marked_messages, prompt=prompt)
        aligned = align(marked, text)
        if aligned is None:
            token = self._special.search("".join(message["content"] for message in messages))
            name = "a special token" if token is None else token[0]
            raise RefusedChatError(
                f"a message must not contain {name}; the tokenizer's chat template splits it"
            )
        solid, n_before = aligned

        spans_in_messages = set()
        for match in self._marked_special.finditer(marked):
            first = n_before[match.start(1)]
            last = n_before[match.end(1)] - 1
            spans_in_messages.add((solid[first], solid[last] + 1))

        # If a template removes a special token from a message, the text around it may form a new special token.
        joints = {n_before[i] for i, character in enumerate(marked) if character in MARKS}
        around = sorted((solid[i - 1], solid[i]) for i in joints if 0 < i < len(solid))

        plain_spans = []
        for match in self._special.finditer(text):
            start, end = match.span()
            # The joint that starts first ends first. Therefore, check only the first joint after the token's start.
            nearest = bisect_left(around, (start,))
            if nearest < len(around) and around[nearest][1] < end:
                raise RefusedChatError(
                    f"the tokenizer's chat template joins parts of a message to the special token {match[0]}"
                )
            if (start, end) in spans_in_messages:
                plain_spans.append((start, end))
        return plain_spans

    def _between_marks(self, text: str) -> str:
        return self._special.sub(rf"{START}\g<0>{END}", remove_marks(text))

    def _part(self, part: str, *, is_first: bool, is_plain: bool) -> tuple[list[int], np.ndarray]:
        """Return the ids of a part of the text, and the start and end of each id in the part, int64 (n, 2).

        Some tokenizers add a space before a text. To avoid the space, each part except the first part is encoded after
        a line break, as in transformers. If the line break would merge with the part, the part is encoded without the
        line break.
        """
        coder = self._plain_coder if is_plain else self._coder
        encoding = _encode(coder, part)
        n_left_out = 0
        if not is_first:
            behind_break = _encode(coder, "\n" + part)
            if behind_break.ids[: len(self._line_break)] == self._line_break:
                encoding = behind_break
                n_left_out = len(self._line_break)

        ids = encoding.ids[n_left_out:]
        # A word in self._words is allowed, because its id as ordinary text is the same as its id as a special token.
        if is_plain and part not in self._words and self._coder.token_to_id(part) in ids:
            raise RefusedChatError(
                f"a message must not contain {part}, because the tokenizer cannot encode {part} as text"
            )
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)[n_left_out:]
        return ids, offsets - (1 if n_left_out else 0)


def _encode(coder: Coder, text: str) -> Any:
    with library_errors("the tokenizer cannot encode the chat"):
        return coder.encode(text, add_special_tokens=False)
