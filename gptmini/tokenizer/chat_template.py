"""Chat templates in Jinja, with the sandbox, the tag, the filter and the names that transformers gives them."""

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

Message = dict[str, Any]  # role and content, both text, and what else the template may use
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")  # transformers looks for this tag too
# Names of a message's thoughts. transformers gives templates the first, whichever a chat has.
THOUGHTS = ("reasoning_content", "thinking", "reasoning")


class GenerationTag(Extension):
    """The tag generation, by which some templates tell transformers where answers stand. Here it changes nothing."""

    tags: ClassVar[set[str]] = {"generation"}
    marks: ClassVar[tuple[str, str]] = ("", "")

    def parse(self, parser: Parser) -> Node:
        """Make a block of what stands between the tag and its end, as transformers does."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("between_marks"), [], [], body).set_lineno(line)

    def between_marks(self, caller: Callable[[], str]) -> str:
        """The text of a block between the marks."""
        before, behind = self.marks
        return before + caller() + behind


class MarkingTag(GenerationTag):
    """The tag generation, with marks around what stands between the tag and its end."""

    marks = (START, END)


def compiled(template: str, tag: type[GenerationTag]) -> Template:
    """A template in a sandbox, set up as transformers does; UserError for one that is no Jinja."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[tag, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    try:
        return environment.from_string(template)
    except TemplateError as error:
        raise UserError(f"a chat template must be in Jinja, got: {error}") from None


def raise_exception(message: str) -> NoReturn:
    """Refuse a chat: the function that templates know by this name."""
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """The filter tojson, with the arguments that transformers gives it; Jinja's own is for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def with_thoughts(message: Message) -> Message:
    """A message whose thoughts have the names that transformers gives them."""
    found = (message[name] for name in THOUGHTS if message.get(name) is not None)
    thoughts = next(found, None)
    if thoughts is None:
        return message
    return {"thinking": thoughts, **message, "reasoning_content": thoughts}
