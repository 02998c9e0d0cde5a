"""Chats as ids, by the Jinja template of a tokenizer's folder, and which ids stand in the assistant's answers."""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jinja2 import Template

from gptmini.tokenizer.chat_marks import (
    END,
    MARKS,
    START,
    Span,
    align,
    mapped,
    n_common,
    parts_of,
    unmarked,
)
from gptmini.tokenizer.chat_template import (
    GENERATION,
    GenerationTag,
    MarkingTag,
    Message,
    compiled,
    raise_exception,
    with_thoughts,
)
from gptmini.tokenizer.library_errors import library_errors
from gptmini.user_error import UserError

if TYPE_CHECKING:
    import tokenizers

SHOWN = 300  # characters of a template's own error that a message shows


class RefusedChatError(UserError):
    """The template refuses this chat, or its ids or answers cannot be told; other chats may fit."""


class ChatEncoder:
    """Encodes chats. Special tokens of the template become their ids, and those that a message holds are text.

    The ids are those of transformers' apply_chat_template, for messages that hold special tokens with
    sanitize_control_tokens. The template runs in a sandbox, with what transformers gives it
    (utils/chat_template_utils.py), but without the date: the text of a prepared folder does not depend on the day.
    """

    def __init__(
        self,
        template: str,
        names: Mapping[str, str],
        *,
        special: Sequence[str],
        words: Sequence[str] = (),
        tokenizer: "tokenizers.Tokenizer",
        plain: "tokenizers.Tokenizer",
    ) -> None:
        """Take a template and the tokenizers for what it renders.

        Args:
            template: source in Jinja.
            names: what the template calls bos_token, eos_token and so on.
            special: the strings of the special tokens that were added to the vocabulary.
            words: ordinary words of the vocabulary that a name makes special, such as a pad_token.
            tokenizer: gives the strings of special tokens their ids.
            plain: takes them for text.

        Raises UserError: the template is no Jinja.
        """
        # As transformers: a template may ask whether tools is none, and one that is undefined is not.
        self._names: dict[str, object] = {
            "tools": None,
            "documents": None,
            "raise_exception": raise_exception,
            **names,
        }
        # Of two special tokens that begin in one place, the library takes the longer one.
        longest_first = sorted(filter(str.strip, [*special, *words]), key=len, reverse=True)
        one_special = "|".join(map(re.escape, longest_first)) or "(?!)"
        self._special = re.compile(one_special)
        self._marked_special = re.compile(f"{START}({one_special}){END}")
        self._words = words
        self._tokenizer = tokenizer
        self._plain = plain
        self._line_break = _encoded(tokenizer, "\n").ids

        self._template = compiled(template, GenerationTag)
        has_tag = GENERATION.search(template) is not None
        # Renders what the template renders, with marks around answers; None where the template does not say.
        self._marking = compiled(template, MarkingTag) if has_tag else None

    def encode(
        self, messages: Sequence[Message], *, loss_on: str = "answers"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ids of a chat, uint32 (n,), and whether the loss counts each of them, bool (n,).

        For loss_on=all it counts all of them. For answers it counts what the template has between the tags generation
        and endgeneration, or without these what the template puts behind the prompt for an answer, to the end of the
        assistant's message.

        Raises RefusedChatError: the template refuses the messages, takes a special token in them apart, or has answers
        that cannot be found. Raises UserError: the memory does not suffice.
        """
        messages = [with_thoughts(message) for message in messages]
        text = self._rendered(messages)

        ids: list[int] = []
        places = [np.zeros((0, 2), dtype=np.int64)]  # in text, where each id begins and ends
        for (start, end), is_typed in parts_of(text, self._typed(messages, text)):
            is_first = start == 0 and not is_typed
            some_ids, offsets = self._part(text[start:end], is_first=is_first, is_typed=is_typed)
            ids += some_ids
            places.append(start + offsets)

        is_counted = np.full(len(ids), loss_on == "all")
        if loss_on != "all":
            begins, ends = np.concatenate(places).T  # (n,) each
            for start, end in self._answers(messages, text):
                is_counted |= (ends > start) & (begins < end)
        return np.array(ids, dtype=np.uint32), is_counted

    def _rendered(
        self, messages: Sequence[Message], *, asks: bool = False, marking: Template | None = None
    ) -> str:
        """The text of messages, with the prompt for an answer behind them if `asks`; by a marking template if given."""
        template = marking or self._template
        try:
            return template.render(messages=messages, add_generation_prompt=asks, **self._names)
        except MemoryError:
            # Not a matter of the chat alone: on a machine with more memory the same chat may be encoded.
            raise UserError("the tokenizer's chat template ran out of memory") from None
        except Exception as error:  # of any class: a template is a program
            reason = " ".join(str(error).split()) or type(error).__name__
            raise RefusedChatError(
                f"the tokenizer's chat template refuses the chat: {reason:.{SHOWN}}"
            ) from None

    # Special tokens in messages

    def _typed(self, messages: Sequence[Message], text: str) -> list[Span]:
        """Where special tokens stand in the text of messages that the messages hold.

        The messages are rendered again with marks around their special tokens. Marks keep a template from stripping
        white space beside them, so the two texts are compared without white space.
        """
        marked_messages = [mapped(message, self._between_marks) for message in messages]
        if marked_messages == messages:
            return []

        marked = self._rendered(marked_messages)
        aligned = align(marked, text)
        if aligned is None:
            found = self._special.search("".join(message["content"] for message in messages))
            shown = "a special token" if found is None else found[0]
            raise RefusedChatError(
                f"a message must not hold {shown}, which the tokenizer's chat template takes apart"
            )
        solid, n_before = aligned

        held = set()
        for match in self._marked_special.finditer(marked):
            first = n_before[match.start(1)]
            last = n_before[match.end(1)] - 1
            held.add((solid[first], solid[last] + 1))

        # A template that cuts a special token out of a message may join what stood around it to another one.
        joints = {n_before[i] for i, character in enumerate(marked) if character in MARKS}
        around = sorted((solid[i - 1], solid[i]) for i in joints if 0 < i < len(solid))

        typed = []
        for match in self._special.finditer(text):
            start, end = match.span()
            # Of the joints, the first one in this token is also the one that ends first.
            nearest = bisect_left(around, (start,))
            if nearest < len(around) and around[nearest][1] < end:
                raise RefusedChatError(
                    f"the tokenizer's chat template must not make {match[0]} of parts of a message"
                )
            if (start, end) in held:
                typed.append((start, end))
        return typed

    def _between_marks(self, text: str) -> str:
        """A text of a message, with marks around the string of each special token."""
        return self._special.sub(rf"{START}\g<0>{END}", unmarked(text))

    def _part(self, part: str, *, is_first: bool, is_typed: bool) -> tuple[list[int], np.ndarray]:
        """Ids of a part of a text, and where each begins and ends in it, int64 (n, 2).

        Some tokenizers put a space before a text. So that a later part gets none, it is encoded behind a line break, as
        transformers does, unless the two would be one token.
        """
        coder = self._plain if is_typed else self._tokenizer
        encoded = _encoded(coder, part)
        n_left_out = 0
        if not is_first:
            behind_break = _encoded(coder, "\n" + part)
            if behind_break.ids[: len(self._line_break)] == self._line_break:
                encoded = behind_break
                n_left_out = len(self._line_break)

        ids = encoded.ids[n_left_out:]
        # A word of the vocabulary that only a name makes special has one id in either case.
        if is_typed and part not in self._words and self._tokenizer.token_to_id(part) in ids:
            raise RefusedChatError(
                f"a message must not hold {part}, which the tokenizer cannot take for text"
            )
        offsets = np.array(encoded.offsets, dtype=np.int64).reshape(-1, 2)[n_left_out:]
        return ids, offsets - (1 if n_left_out else 0)

    # Answers

    def _answers(self, messages: Sequence[Message], text: str) -> list[Span]:
        """Where each answer of the assistant starts and ends in the text of messages."""
        if self._marking is not None:
            return self._tagged(messages, text)

        answers = []
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            answer = f"{message['content']!r:.60}"
            not_found = f"data.loss_on=answers cannot find the answer {answer}: the tokenizer's chat template "
            start = self._start_of_answer(messages, i, text)
            if start is None:
                raise RefusedChatError(
                    f"{not_found}does not render it behind its own prompt for an answer; use data.loss_on=all, or put "
                    "{% generation %} and {% endgeneration %} around answers in the template"
                )
            end = self._end_of_answer(messages, i, text)
            if end is None:
                raise RefusedChatError(
                    f"{not_found}renders it differently once a message follows; give each answer a chat that ends with "
                    "it, or use data.loss_on=all"
                )
            answers.append((start, end))
        return answers

    def _tagged(self, messages: Sequence[Message], text: str) -> list[Span]:
        """Where the text of messages stands between the template's own tags generation and endgeneration."""
        assert self._marking is not None
        marked = self._rendered(messages, marking=self._marking)
        if START in text or END in text:
            raise RefusedChatError(
                "a chat must not hold U+FDD0 and U+FDD1, which mark answers, for data.loss_on=answers"
            )
        if unmarked(marked) != text:
            raise RefusedChatError(
                "data.loss_on=answers cannot find the answers: the tokenizer's chat template changes the text inside "
                "{% generation %}; use data.loss_on=all"
            )

        answers = []
        open_starts: list[int] = []  # of tags inside tags
        for n_marks_before, mark in enumerate(re.finditer(f"[{MARKS}]", marked)):
            place = mark.start() - n_marks_before
            if mark[0] == START:
                open_starts.append(place)
            else:
                answers.append((open_starts.pop(), place))
        return answers

    def _start_of_answer(self, messages: Sequence[Message], i: int, text: str) -> int | None:
        """Where the answer that is message i starts in the text of messages; None where that cannot be told."""
        if i > 0:
            prompt = self._rendered(messages[:i], asks=True)
            return len(prompt) if text.startswith(prompt) else None

        # Templates need not render a chat of no messages as they begin one. So the prompt for an answer is what the
        # template puts behind another message.
        message = self._rendered(messages[:1])
        prompt = self._rendered(messages[:1], asks=True).removeprefix(message)
        content = self._content(messages, i, text)
        if content is None:
            return None
        start, _ = content
        if not prompt:
            return start
        place = text.rfind(prompt, 0, start)
        return None if place < 0 else place + len(prompt)

    def _end_of_answer(self, messages: Sequence[Message], i: int, text: str) -> int | None:
        """Where the answer that is message i ends in the text of messages; None where that cannot be told.

        Some templates always append the prompt for an answer, such as Llama 3's first one, which ends every chat with
        <|start_header_id|>assistant<|end_header_id|>. This prompt is not part of the answer. It is found because a
        longer chat continues with another header there.
        """
        is_last = i == len(messages) - 1
        answered = text if is_last else self._rendered(messages[: i + 1])
        longer = self._longer(messages, text) if is_last else text
        if longer.startswith(answered):
            return len(answered)

        otherwise = len(answered) if is_last else None
        content = self._content(messages[: i + 1], i, answered)
        n_same = n_common(answered, longer)
        if content is None or n_same < content[1]:
            return otherwise
        start, end = content
        prompt = answered[n_same:].rstrip()
        if not answered[:start].rstrip().endswith(prompt):
            return otherwise

        # The next message may begin as the prompt does, as with <|start_header_id|>.
        ends_turn = self._special.search(answered, end, n_same)
        return n_same if ends_turn is None else ends_turn.end()

    def _longer(self, messages: Sequence[Message], text: str) -> str:
        """The text of messages and one that follows; or of messages alone, if the template asks only when told to."""
        if self._rendered(messages, asks=True) != text:
            return text
        try:
            return self._rendered([*messages, {"role": "user", "content": "?"}])
        except RefusedChatError:
            return text

    def _content(self, messages: Sequence[Message], i: int, text: str) -> Span | None:
        """Where the content of message i starts and ends in the text of messages.

        Where the template strips white space, that around the content is left out. None where the template leaves the
        content out, writes it twice, or takes it apart.
        """
        marked_messages = [mapped(message, unmarked) for message in messages]
        marked_messages[i]["content"] = START + marked_messages[i]["content"] + END
        try:
            marked = self._rendered(marked_messages)
        except RefusedChatError:
            return None

        marks = [character for character in marked if character in MARKS]
        if marks != [START, END]:
            return None
        if unmarked(marked) == text:
            return marked.index(START), marked.index(END) - 1

        aligned = align(marked, text)
        if aligned is None:
            return None
        solid, n_before = aligned
        first = n_before[marked.index(START)]
        n_to_end = n_before[marked.index(END)]
        start = solid[first] if first < len(solid) else len(text)
        return start, solid[n_to_end - 1] + 1 if n_to_end else 0


def _encoded(coder: "tokenizers.Tokenizer", text: str) -> "tokenizers.Encoding":
    """The ids of a text, and where each begins and ends in it; UserError where the library fails."""
    with library_errors("the tokenizer cannot encode a chat"):
        return coder.encode(text, add_special_tokens=False)
