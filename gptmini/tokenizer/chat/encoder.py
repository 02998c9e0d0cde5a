"""Encode chats with a Jinja chat template, and find the ids of the assistant's answers."""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Template

from gptmini.system.errors import UserError
from gptmini.tokenizer.chat.marks import (
    END,
    MARKS,
    START,
    Span,
    align,
    common_prefix_length,
    map_strings,
    remove_marks,
    split_at,
)
from gptmini.tokenizer.chat.template import (
    GENERATION,
    GenerationTag,
    MarkingTag,
    Message,
    compile_template,
    raise_exception,
    rename_thoughts,
)
from gptmini.tokenizer.library_errors import library_errors

if TYPE_CHECKING:
    import tokenizers

    from gptmini.tokenizer.chat.plain import Coder, Encoded

SHOWN = 300  # maximum number of characters of a template's error that a message shows


class RefusedChatError(UserError):
    """The error for a chat that the template rejects, or whose ids or answers are unclear. Other chats may work."""


class ChatEncoder:
    """Encodes chats as ids.

    A special token in the template becomes its id. A special token in a message is ordinary text. The function
    apply_chat_template of transformers returns the same ids. If a message contains special tokens, it returns the same
    ids with the option sanitize_control_tokens. The template runs in a sandbox. The template can use the names that
    transformers provides (utils/chat_template_utils.py), except the date. Without the date, prepared text does not
    depend on the day.
    """

    def __init__(
        self,
        template: str,
        names: Mapping[str, str],
        *,
        special: Sequence[str],
        words: Sequence[str] = (),
        tokenizer: "tokenizers.Tokenizer | Coder",
        plain: "tokenizers.Tokenizer | Coder",
        leading: str = "",
    ) -> None:
        """Compile a template.

        Args:
            template: the Jinja source of the template.
            names: the tokens that the template may use, by their names, such as bos_token and eos_token.
            special: the strings of the special tokens that were added to the vocabulary.
            words: ordinary tokens of the vocabulary that are special because a name, such as pad_token, refers to them.
            tokenizer: the tokenizer that encodes the string of a special token as the id of this token.
            plain: the tokenizer that encodes the string of a special token as ordinary text.
            leading: the text that the template puts between the generation prompt and the content of an answer.
        """
        self.leading = leading
        # As in transformers, tools is None. A template may test `tools is none`. If `tools` were undefined, the test
        # would be false.
        self._names: dict[str, object] = {
            "tools": None,
            "documents": None,
            "raise_exception": raise_exception,
            **names,
        }
        # If two special tokens start at the same position, the tokenizers library uses the longer token.
        longest_first = sorted(filter(str.strip, [*special, *words]), key=len, reverse=True)
        one_special = "|".join(map(re.escape, longest_first)) or "(?!)"
        self._special = re.compile(one_special)
        self._marked_special = re.compile(f"{START}({one_special}){END}")
        self._words = words
        self._tokenizer = tokenizer
        self._plain = plain
        self._line_break = _encoded(tokenizer, "\n").ids

        self._template = compile_template(template, GenerationTag)
        self.uses_tools = "tools" in template  # whether it renders the tools of a chat
        has_tag = GENERATION.search(template) is not None
        # This template renders the same text with marks around answers. It is None if the source does not mark answers.
        self._marking = compile_template(template, MarkingTag) if has_tag else None

    def encode(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        loss_on: str = "answers",
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of a chat, uint32 (n,), and for each id whether the loss counts it, bool (n,).

        With loss_on=all, the loss counts every id. With loss_on=answers, the loss counts the text between the tags
        generation and endgeneration of the template. If the template does not have these tags, the loss counts the text
        from the end of the generation prompt to the end of the assistant's message. It does not count a message with
        "weight": 0.

        Raises RefusedChatError if the template rejects the messages, splits special tokens in them, or hides answers.
        """
        if tools is not None:
            return self.with_names({"tools": tools}).encode(messages, loss_on=loss_on)
        messages = [rename_thoughts(message) for message in messages]
        text, ids, places = self._encode_text(messages)

        is_counted = np.full(len(ids), loss_on == "all")
        if loss_on != "all":
            begins, ends = places.T  # (n,) each
            for start, end in self._answers(messages, text):
                is_counted |= (ends > start) & (begins < end)
        return np.array(ids, dtype=np.uint32), is_counted

    def special_token_in(self, text: str) -> str | None:
        """Return the first special token in a text. Outside a template, its string is ordinary text."""
        found = (match[0] for match in self._special.finditer(text))
        return next((token for token in found if token not in self._words), None)

    def with_names(self, names: Mapping[str, object]) -> "ChatEncoder":
        """Return an encoder whose template may also use these names."""
        encoder = copy(self)
        encoder._names = {**self._names, **names}
        return encoder

    def ids_with_special_tokens(self, text: str) -> list[int]:
        """Return the ids of a text. The strings of special tokens in it become their ids."""
        return list(_encoded(self._tokenizer, text).ids)

    def prompt_text(self, messages: Sequence[Message]) -> str:
        """Return the text of a chat up to the start of its next answer. Raises the same errors as prompt."""
        return self._rendered([rename_thoughts(message) for message in messages], prompt=True)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a chat up to the start of its next answer. Raises RefusedChatError if there are none."""
        messages = [rename_thoughts(message) for message in messages]
        _, ids, _ = self._encode_text(messages, prompt=True)
        if not ids:
            raise RefusedChatError("the tokenizer's chat template renders nothing for the chat")
        return ids

    def generation_prompt(self) -> str:
        """Return the text that the template puts between a question and its answer. It may be empty or unknown ("")."""
        question = [{"role": "user", "content": "?"}]
        with suppress(RefusedChatError):  # the template may require a longer chat
            return self._rendered(question, prompt=True).removeprefix(self._rendered(question))
        return ""

    def ids_behind_answer(self) -> list[int]:
        """Return the ids that the template puts after the content of an answer. It must accept a short chat."""
        chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": f"!{END}"}]
        _, _, behind = self._rendered(chat).partition(END)
        return list(_encoded(self._tokenizer, behind).ids)

    def _encode_text(
        self, messages: Sequence[Message], *, prompt: bool = False
    ) -> tuple[str, list[int], np.ndarray]:
        """Return the text of messages, its ids, and the start and end of each id in the text, int64 (n, 2)."""
        text = self._rendered(messages, prompt=prompt)
        ids: list[int] = []
        places = [np.zeros((0, 2), dtype=np.int64)]
        plain_spans = self._plain_tokens(messages, text, prompt=prompt)
        for (start, end), is_plain in split_at(text, plain_spans):
            is_first = start == 0 and not is_plain
            some_ids, offsets = self._part(text[start:end], is_first=is_first, is_plain=is_plain)
            ids += some_ids
            places.append(start + offsets)
        return text, ids, np.concatenate(places)

    def _rendered(
        self, messages: Sequence[Message], *, prompt: bool = False, marking: Template | None = None
    ) -> str:
        template = marking or self._template
        try:
            return template.render(messages=messages, add_generation_prompt=prompt, **self._names)
        except MemoryError:
            # This is not a RefusedChatError, because the same chat may be encoded if there is more memory.
            raise UserError("the tokenizer's chat template ran out of memory") from None
        except Exception as error:  # a template is a program, so it can raise errors of any class
            reason = " ".join(str(error).split()) or type(error).__name__
            raise RefusedChatError(
                f"the tokenizer's chat template rejects the chat: {reason:.{SHOWN}}"
            ) from None

    # Special tokens in messages

    def _plain_tokens(self, messages: Sequence[Message], text: str, *, prompt: bool) -> list[Span]:
        """Return the position of each special token in `text` that comes from the content of a message.

        To find these tokens, the messages are rendered a second time, with marks around their special tokens. A
        template may strip white space at the edge of a message, but it does not strip white space next to a mark.
        Therefore, `text` and the marked text are compared without white space.
        """
        try:
            marked_messages = [map_strings(message, self._between_marks) for message in messages]
            marked_tools = map_strings(self._names["tools"], self._between_marks)
        except RecursionError:
            raise RefusedChatError("a field of a message is nested too deeply") from None
        if marked_messages == messages and marked_tools == self._names["tools"]:
            return []

        marked = self.with_names({"tools": marked_tools})._rendered(marked_messages, prompt=prompt)
        aligned = align(marked, text)
        if aligned is None:
            found = self._special.search("".join(message["content"] for message in messages))
            shown = "a special token" if found is None else found[0]
            raise RefusedChatError(
                f"a message must not contain {shown}; the tokenizer's chat template splits it"
            )
        solid, n_before = aligned

        held = set()
        for match in self._marked_special.finditer(marked):
            first = n_before[match.start(1)]
            last = n_before[match.end(1)] - 1
            held.add((solid[first], solid[last] + 1))

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
            if (start, end) in held:
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
        coder = self._plain if is_plain else self._tokenizer
        encoded = _encoded(coder, part)
        n_left_out = 0
        if not is_first:
            behind_break = _encoded(coder, "\n" + part)
            if behind_break.ids[: len(self._line_break)] == self._line_break:
                encoded = behind_break
                n_left_out = len(self._line_break)

        ids = encoded.ids[n_left_out:]
        # A word in self._words is allowed, because its id as ordinary text is the same as its id as a special token.
        if is_plain and part not in self._words and self._tokenizer.token_to_id(part) in ids:
            raise RefusedChatError(
                f"a message must not contain {part}, because the tokenizer cannot encode {part} as text"
            )
        offsets = np.array(encoded.offsets, dtype=np.int64).reshape(-1, 2)[n_left_out:]
        return ids, offsets - (1 if n_left_out else 0)

    # Answers

    def _answers(self, messages: Sequence[Message], text: str) -> list[Span]:
        if self._marking is not None:
            answers = self._tagged_answers(messages, text)
            for i, message in enumerate(messages):
                if message.get("weight") == 0:
                    content = self._content_span(messages, i, text)
                    if content is None:
                        raise RefusedChatError(f"cannot find message {i + 1}, which has weight 0")
                    start, end = content
                    answers = [span for span in answers if span[0] > start or span[1] < end]
            return answers

        answers = []
        for i, message in enumerate(messages):
            if message["role"] != "assistant" or message.get("weight") == 0:
                continue
            answer = f"{message['content']!r:.60}"
            not_found = f"data.loss_on=answers cannot find the answer {answer}: the tokenizer's chat template "
            start = self._start_of_answer(messages, i, text)
            if start is None:
                raise RefusedChatError(
                    f"{not_found}does not render the answer after the generation prompt; use data.loss_on=all, or put "
                    "{% generation %} and {% endgeneration %} around answers in the template"
                )
            end = self._end_of_answer(messages, i, text)
            if end is None:
                raise RefusedChatError(
                    f"{not_found}renders the answer differently if a message follows; split the chat after each "
                    "answer, or use data.loss_on=all"
                )
            answers.append((start, end))
        return answers

    def _tagged_answers(self, messages: Sequence[Message], text: str) -> list[Span]:
        assert self._marking is not None
        marked = self._rendered(messages, marking=self._marking)
        if START in text or END in text:
            raise RefusedChatError(
                "with data.loss_on=answers, a chat must not contain U+FDD0 or U+FDD1, because they mark answers"
            )
        if remove_marks(marked) != text:
            raise RefusedChatError(
                "data.loss_on=answers cannot find the answers: the tokenizer's chat template changes the text inside "
                "{% generation %}; use data.loss_on=all"
            )

        answers = []
        open_starts: list[int] = []  # tags may be nested
        for n_marks_before, mark in enumerate(re.finditer(f"[{MARKS}]", marked)):
            place = mark.start() - n_marks_before
            if mark[0] == START:
                open_starts.append(place)
            else:
                answers.append((open_starts.pop(), place))
        return answers

    def _start_of_answer(self, messages: Sequence[Message], i: int, text: str) -> int | None:
        if i > 0:
            prompt = self._rendered(messages[:i], prompt=True)
            return len(prompt) if text.startswith(prompt) else None

        # A template may render an empty chat differently from the start of a longer chat. Therefore, render the
        # generation prompt after a message, and not alone.
        message = self._rendered(messages[:1])
        prompt = self._rendered(messages[:1], prompt=True).removeprefix(message)
        content = self._content_span(messages, i, text)
        if content is None:
            return None
        start, _ = content
        if not prompt:
            return start
        place = text.rfind(prompt, 0, start)
        return None if place < 0 else place + len(prompt)

    def _end_of_answer(self, messages: Sequence[Message], i: int, text: str) -> int | None:
        # Some templates always append the generation prompt. For example, Llama 3's first template ends every chat with
        # <|start_header_id|>assistant<|end_header_id|>. This prompt is not part of the answer. To find the prompt,
        # compare the chat with a longer chat, which has a different header at this position.
        is_last = i == len(messages) - 1
        answered = text if is_last else self._rendered(messages[: i + 1])
        longer = self._with_next_message(messages, text) if is_last else text
        if longer.startswith(answered):
            return len(answered)

        otherwise = len(answered) if is_last else None
        content = self._content_span(messages[: i + 1], i, answered)
        n_same = common_prefix_length(answered, longer)
        if content is None or n_same < content[1]:
            return otherwise
        start, end = content
        prompt = answered[n_same:].rstrip()
        if not answered[:start].rstrip().endswith(prompt):
            return otherwise

        # The next message may start like the prompt, for example with <|start_header_id|>.
        ends_turn = self._special.search(answered, end, n_same)
        return n_same if ends_turn is None else ends_turn.end()

    def _with_next_message(self, messages: Sequence[Message], text: str) -> str:
        if self._rendered(messages, prompt=True) != text:
            return text
        try:
            return self._rendered([*messages, {"role": "user", "content": "?"}])
        except RefusedChatError:
            return text

    def _content_span(self, messages: Sequence[Message], i: int, text: str) -> Span | None:
        """Return the start and end of the content of message i in `text`.

        If the template strips white space, white space around the content is not included. Return None if the template
        omits, repeats or splits the content.
        """
        marked_messages = [map_strings(message, remove_marks) for message in messages]
        marked_messages[i]["content"] = START + marked_messages[i]["content"] + END
        try:
            marked = self._rendered(marked_messages)
        except RefusedChatError:
            return None

        marks = [character for character in marked if character in MARKS]
        if marks != [START, END]:
            return None
        if remove_marks(marked) == text:
            return marked.index(START), marked.index(END) - 1

        aligned = align(marked, text)
        if aligned is None:
            return None
        solid, n_before = aligned
        first = n_before[marked.index(START)]
        n_to_end = n_before[marked.index(END)]
        start = solid[first] if first < len(solid) else len(text)
        return start, solid[n_to_end - 1] + 1 if n_to_end else 0


def _encoded(coder: "tokenizers.Tokenizer | Coder", text: str) -> "tokenizers.Encoding | Encoded":
    with library_errors("the tokenizer cannot encode the chat"):
        return coder.encode(text, add_special_tokens=False)
