"""Jinja chat templates. They run in the same sandbox as in transformers, with the same tag, filter and names."""

import json
import re
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import Extension
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gptmini.system.errors import UserError
from gptmini.tokenizer.chat.marks import END, START

Message = dict[str, Any]  # the strings 'role' and 'content', and other fields for the template
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")  # the same pattern as in transformers
# Possible names of the field that contains the thoughts of a message. transformers passes thoughts to templates under
# the first name.
THOUGHTS = ("reasoning_content", "thinking", "reasoning")


class GenerationTag(Extension):
    """The tag {% generation %}, with which templates mark answers for transformers. This class adds no marks."""

    tags: ClassVar[set[str]] = {"generation"}
    marks: ClassVar[tuple[str, str]] = ("", "")

    def parse(self, parser: Parser) -> Node:
        """Parse the block between the tag and its end tag, as transformers does."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("between_marks"), [], [], body).set_lineno(line)

    def between_marks(self, caller: Callable[[], str]) -> str:
        """Return the text of the block, with a mark before the text and a mark after it."""
        before, behind = self.marks
        return before + caller() + behind


class MarkingTag(GenerationTag):
    """The tag {% generation %} as a tag that puts marks before and after its block."""

    marks = (START, END)


def compile_template(template: str, tag: type[GenerationTag]) -> Template:
    """Compile a template in a sandbox, with transformers' settings. Raises UserError if the template is not Jinja."""
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


def plain_jinja(template: str) -> str:
    """Return a template that renders the same text without the tags that only transformers and gptmini know."""
    for tag, known in (("generation", "if true"), ("endgeneration", "endif")):
        template = re.sub(rf"(\{{%-?\s*){tag}(\s*-?%\}})", rf"\g<1>{known}\2", template)
    return template


def raise_exception(message: str) -> NoReturn:
    """Reject a chat. Templates call this function by its name."""
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """Return a value as JSON, in the same way as the filter tojson of transformers. Jinja's own filter escapes HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def rename_thoughts(message: Message) -> Message:
    """Return the message with its thoughts in the fields that transformers uses. Return it unchanged if it has none."""
    found = (message[name] for name in THOUGHTS if message.get(name) is not None)
    thoughts = next(found, None)
    if thoughts is None:
        return message
    return {"thinking": thoughts, **message, "reasoning_content": thoughts}
