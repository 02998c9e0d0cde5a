"""Find the answers of the assistant in the text of a chat. encoder.py marks their tokens for the loss."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gptmini.tokenizer.chat.marks import (
    END,
    MARKS,
    START,
    Span,
    align,
    common_prefix_length,
    map_strings,
    remove_marks,
)
from gptmini.tokenizer.chat.template import ChatTemplate, Message, RefusedChatError


@dataclass(frozen=True)
class AnswerFinder:
    """The messages of a chat and their text, in which answers are found."""

    template: ChatTemplate
    special: re.Pattern[str]  # matches a special token
    messages: Sequence[Message]
    text: str  # the messages, rendered with the template

    def answers(self) -> list[Span]:
        """Return the start and end of each answer in the text, except answers of weight 0.

        Raises RefusedChatError if an answer cannot be found.
        """
        if self.template.marks_answers:
            return self._without_weight_0(self._marked_answers())

        answers = []
        for i, message in enumerate(self.messages):
            if message["role"] != "assistant" or message.get("weight") == 0:
                continue
            not_found = f"data.loss_on=answers cannot find the answer {message['content']!r:.60}"
            start = self._start_of_answer(i)
            if start is None:
                raise RefusedChatError(
                    f"{not_found} after the generation prompt; use data.loss_on=all, or put {{% generation %}} and "
                    "{% endgeneration %} around answers in the chat template"
                )
            end = self._end_of_answer(i)
            if end is None:
                raise RefusedChatError(
                    f"{not_found}, because the next message changes it; split the chat after each answer, or use "
                    "data.loss_on=all"
                )
            answers.append((start, end))
        return answers

    def _marked_answers(self) -> list[Span]:
        marked = self.template.render(self.messages, with_marks=True)
        if START in self.text or END in self.text:
            raise RefusedChatError(
                "with data.loss_on=answers, a chat must not contain U+FDD0 or U+FDD1, which mark answers"
            )
        if remove_marks(marked) != self.text:
            raise RefusedChatError(
                "data.loss_on=answers: the chat template changes text inside {% generation %}; use data.loss_on=all"
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

    def _without_weight_0(self, answers: list[Span]) -> list[Span]:
        for i, message in enumerate(self.messages):
            if message.get("weight") != 0:
                continue
            content = self._content_span(i)
            if content is None:
                raise RefusedChatError(f"cannot find message {i + 1}, which has weight 0")
            start, end = content
            answers = [span for span in answers if span[0] > start or span[1] < end]
        return answers

    def _start_of_answer(self, i: int) -> int | None:
        if i > 0:
            prompt = self.template.render(self.messages[:i], prompt=True)
            return len(prompt) if self.text.startswith(prompt) else None

        # A template may render an empty chat differently from the start of a longer chat. Therefore, render the
        # generation prompt after a message, and not alone.
        message = self.template.render(self.messages[:1])
        prompt = self.template.render(self.messages[:1], prompt=True).removeprefix(message)
        content = self._content_span(i)
        if content is None:
            return None
        start, _ = content
        if not prompt:
            return start
        place = self.text.rfind(prompt, 0, start)
        return None if place < 0 else place + len(prompt)

    def _end_of_answer(self, i: int) -> int | None:
        # Some templates always append the generation prompt. For example, Llama 3's first template ends every chat with
        # <|start_header_id|>assistant<|end_header_id|>. This prompt is not part of the answer. To find the prompt,
        # compare the chat with a longer chat, which has a different header at this position.
        is_last = i == len(self.messages) - 1
        answered = self
        longer = self.text
        if is_last:
            longer = self._text_with_next_message()
        else:
            beginning = self.messages[: i + 1]
            answered = replace(self, messages=beginning, text=self.template.render(beginning))
        if longer.startswith(answered.text):
            return len(answered.text)

        otherwise = len(answered.text) if is_last else None
        content = answered._content_span(i)
        n_same = common_prefix_length(answered.text, longer)
        if content is None or n_same < content[1]:
            return otherwise
        start, end = content
        prompt = answered.text[n_same:].rstrip()
        if not answered.text[:start].rstrip().endswith(prompt):
            return otherwise

        # The next message may start like the prompt, for example with <|start_header_id|>.
        ends_turn = self.special.search(answered.text, end, n_same)
        return n_same if ends_turn is None else ends_turn.end()

    def _text_with_next_message(self) -> str:
        if self.template.render(self.messages, prompt=True) != self.text:
            return self.text
        try:
            return self.template.render([*self.messages, {"role": "user", "content": "?"}])
        except RefusedChatError:
            return self.text

    def _content_span(self, i: int) -> Span | None:
        """Return the start and end of the content of message i in the text.

        If the template strips white space, white space around the content is not included. Return None if the template
        omits, repeats or splits the content.
        """
        marked_messages = [map_strings(message, remove_marks) for message in self.messages]
        marked_messages[i]["content"] = START + marked_messages[i]["content"] + END
        try:
            marked = self.template.render(marked_messages)
        except RefusedChatError:
            return None

        marks = [character for character in marked if character in MARKS]
        if marks != [START, END]:
            return None
        if remove_marks(marked) == self.text:
            return marked.index(START), marked.index(END) - 1

        aligned = align(marked, self.text)
        if aligned is None:
            return None
        solid, n_before = aligned
        first = n_before[marked.index(START)]
        n_to_end = n_before[marked.index(END)]
        start = solid[first] if first < len(solid) else len(self.text)
        return start, solid[n_to_end - 1] + 1 if n_to_end else 0
