"""Marks that show where the parts of a chat are in its rendered text."""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, compress, pairwise
from typing import Any

Span = tuple[int, int]  # start and end of a part of a text
# Characters that mark the start and the end of a part of a text. Unicode reserves these two
# characters for internal use.
START = "\ufdd0"
END = "\ufdd1"
MARKS = START + END


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Apply a function to each string in a value of plain JSON types, except the keys of objects."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: map_strings(one, change) for key, one in value.items()}
    if isinstance(value, list):
        return [map_strings(one, change) for one in value]
    return value


def remove_marks(text: str) -> str:
    """Return the text without the characters START and END."""
    return text.replace(START, "").replace(END, "")


def split_at(text: str, spans: Sequence[Span]) -> Iterator[tuple[Span, bool]]:
    """Split a text at the edges of spans. Yield the span of each part, and whether the part is one of the spans."""
    edges = [0, *(edge for span in spans for edge in span), len(text)]
    for number, (start, end) in enumerate(pairwise(edges)):
        if start < end:
            yield (start, end), number % 2 == 1


def common_prefix_length(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the length of the common prefix of two texts or lists."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def align(marked: str, text: str) -> tuple[list[int], list[int]] | None:
    """Align a text that has marks with the same text without marks.

    A character is solid if it is neither white space nor a mark. Return two lists. The first list contains the position
    of each solid character in `text`. The second list contains, for each position in `marked`, the number of solid
    characters before this position. Return None if the solid characters of `marked` and `text` differ.
    """
    solid = [i for i, character in enumerate(text) if _is_solid(character)]
    is_solid = [_is_solid(character) for character in marked]
    if "".join(compress(marked, is_solid)) != "".join(text[i] for i in solid):
        return None
    return solid, [0, *accumulate(is_solid)]


def _is_solid(character: str) -> bool:
    return not character.isspace() and character not in MARKS
