"""Escapes in a text that is typed on one line."""

import re

# The escapes of a Python string that a typed text may hold: \n \r \t \\ \xHH \uHHHH and, up to U+10FFFF, \UHHHHHHHH.
ESCAPES = re.compile(
    r"\\(?:[nrt\\]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U000[0-9a-fA-F]{5}|U0010[0-9a-fA-F]{4})"
)


def unescaped(text: str) -> str:
    r"""A typed text with its escapes replaced by the characters that they stand for, as \n by a line break."""
    return ESCAPES.sub(lambda found: found[0].encode().decode("unicode_escape"), text)
