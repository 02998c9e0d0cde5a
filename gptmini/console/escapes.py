"""Escapes in text that is given on the command line."""

import re

# The supported escapes of Python strings are \n \r \t \\ \xHH \uHHHH and \UHHHHHHHH. The last escape is supported up to
# U+10FFFF.
ESCAPES = re.compile(
    r"\\(?:[nrt\\]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U000[0-9a-fA-F]{5}|U0010[0-9a-fA-F]{4})"
)


def unescaped(text: str) -> str:
    r"""Replace each escape in the text by its character. For example, replace \n by a line break."""
    return ESCAPES.sub(lambda found: found[0].encode().decode("unicode_escape"), text)
