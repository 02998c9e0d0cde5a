"""Make text from other people safe to print, and break lines for a terminal."""

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def printable(text: str) -> str:
    """Return the text with escaped unprintable characters, so that a terminal does not execute control characters."""
    shown = ""
    for character in text:
        if character.isprintable():
            shown += character
        else:
            shown += character.encode("unicode_escape").decode()
    return shown


def wrapped(line: str, console: "Console") -> str:
    """Break a line between words for a terminal, aligned with the text after a topic. Pipes get it unchanged."""
    if not console.is_terminal:
        return line
    parts = textwrap.wrap(
        line,
        console.width,
        subsequent_indent=" " * 9,  # the width of a topic, and a space
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(parts)
