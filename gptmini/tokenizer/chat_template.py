"""Jinja chat templates, with the sandbox, tag, filter and names that transformers provides."""

import json
import re
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import Extension
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gptmini.tokenizer.chat_marks import END, START
from gptmini.user_error import UserError

Message = dict[str, Any]  # strings role and content, and other fields for the template
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")  # the same pattern as in transformers
# Names of the field with a message's thoughts. transformers passes thoughts to templates under the first name.
THOUGHTS = ("reasoning_content", "thinking", "reasoning")


class GenerationTag(Extension):
    """The tag {% generation %}. Some templates mark answers for transformers with it. Here it does not add marks."""

    tags: ClassVar[set[str]] = {"generation"}
    marks: ClassVar[tuple[str, str]] = ("", "")

    def parse(self, parser: Parser) -> Node:
        """Parse the block between the tag and its end tag, as transformers does."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("between_marks"), [], [], body).set_lineno(line)

    def between_marks(self, caller: Callable[[], str]) -> str:
        """Return the text of the block with the marks around it."""
        before, behind = self.marks
        return before + caller() + behind


class MarkingTag(GenerationTag):
    """The tag {% generation %} that puts marks around its block."""

    marks = (START, END)


def compile_template(template: str, tag: type[GenerationTag]) -> Template:
    """Compile a template in a sandbox, with the settings of transformers; raise UserError if it is not valid Jinja."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[tag, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    try:
        return environment.from_string(template)
    except TemplateError as error:
        raise UserError(f"the chat template is not valid Jinja: {error}") from None


def raise_exception(message: str) -> NoReturn:
    """Reject a chat; templates call this function by its name."""
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """Return a value as JSON, as the filter tojson of transformers does. Jinja's own filter would escape HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def rename_thoughts(message: Message) -> Message:
    """Return the message with its thoughts under the names that transformers uses."""
    found = (message[name] for name in THOUGHTS if message.get(name) is not None)
    thoughts = next(found, None)
    if thoughts is None:
        return message
    return {"thinking": thoughts, **message, "reasoning_content": thoughts}
