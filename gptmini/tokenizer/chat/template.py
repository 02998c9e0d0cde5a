"""Chat templates that render the messages of a chat as text."""

import re
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from gptmini.system.errors import UserError

Message = dict[str, Any]  # the strings 'role' and 'content', and other fields for the template
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")  # the same pattern as in transformers
# Possible names of the field that contains the thoughts of a message. transformers passes thoughts to templates under
# the first name.
THOUGHTS = ("reasoning_content", "thinking", "reasoning")
SHOWN = 300  # maximum number of characters of a template's error that a message shows


class RefusedChatError(UserError):
    """The error for a chat that the template rejects, or whose ids or answers are unclear. Other chats may work."""


class ChatTemplate:
    """A Jinja chat template, which runs in a sandbox.

    The template can use the names that transformers provides (utils/chat_template_utils.py), except the date. Without
    the date, prepared text does not depend on the day.
    """

    def __init__(self, template: str, names: Mapping[str, object] | None = None) -> None:
        """Compile a template that may use these names. Raises UserError if the template is not valid Jinja."""
        # Imported here, because this module imports Jinja, and only chats need Jinja.
        from gptmini.tokenizer.chat.sandbox import compile_template

        # As in transformers, tools is None. A template may test `tools is none`. If `tools` were undefined, the test
        # would be false.
        self.names: dict[str, Any] = {"tools": None, "documents": None, **(names or {})}
        self.uses_tools = "tools" in template  # whether it renders the tools of a chat
        self.marks_answers = GENERATION.search(template) is not None
        self._template = compile_template(template)
        # This template renders the same text with marks around answers.
        self._marking = compile_template(template, with_marks=True) if self.marks_answers else None

    def with_names(self, names: Mapping[str, object]) -> "ChatTemplate":
        """Return a template that may also use these names."""
        template = copy(self)
        template.names = {**self.names, **names}
        return template

    def render(
        self, messages: Sequence[Message], *, prompt: bool = False, with_marks: bool = False
    ) -> str:
        """Return the text of messages, with the generation prompt at its end if `prompt` is true.

        With with_marks, the text has the marks START and END around its answers. This requires marks_answers.
        Raises RefusedChatError if the template rejects the messages.
        """
        template = self._marking if with_marks else self._template
        assert template is not None
        try:
            return template.render(messages=messages, add_generation_prompt=prompt, **self.names)
        except MemoryError:
            # This is not a RefusedChatError, because the same chat may be encoded if there is more memory.
            raise UserError("the tokenizer's chat template ran out of memory") from None
        except Exception as error:  # a template is a program, so it can raise errors of any class
            reason = " ".join(str(error).split()) or type(error).__name__
            raise RefusedChatError(
                f"the tokenizer's chat template rejects the chat: {reason:.{SHOWN}}"
            ) from None


def rename_thoughts(message: Message) -> Message:
    """Return the message with its thoughts in the fields that transformers uses. Return it unchanged if it has none."""
    thoughts = next((message[name] for name in THOUGHTS if message.get(name) is not None), None)
    if thoughts is None:
        return message
    return {"thinking": thoughts, **message, "reasoning_content": thoughts}


def plain_jinja(template: str) -> str:
    """Return a template that renders the same text without the tags that only transformers and gptmini know."""
    for tag, plain_tag in (("generation", "if true"), ("endgeneration", "endif")):
        template = re.sub(rf"(\{{%-?\s*){tag}(\s*-?%\}})", rf"\g<1>{plain_tag}\2", template)
    return template
