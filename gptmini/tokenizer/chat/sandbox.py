"""The sandbox of Jinja in which chat templates run, with the tag, the filter and the function of transformers."""

import json
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import Extension
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gptmini.system.errors import UserError
from gptmini.tokenizer.chat.marks import END, START


def compile_template(template: str, *, with_marks: bool = False) -> Template:
    """Compile a template with transformers' settings. Raises UserError if the template is not valid Jinja.

    With with_marks, the text that the template renders has marks around each block of the tag {% generation %}.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[MarkingTag if with_marks else GenerationTag, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    try:
        return environment.from_string(template, globals={"raise_exception": _raise_exception})
    except TemplateError as error:
        raise UserError(f"the chat template is not valid Jinja: {error}") from None


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


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    # Unlike Jinja's own filter, the filter of transformers does not escape HTML.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
