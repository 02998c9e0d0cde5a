"""Where parts of a chat stand in its text: marks around them, and the text with marks laid on the text without."""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, compress, pairwise
from typing import Any

Span = tuple[int, int]  # where a part of a text starts and ends
# Stand before and behind a part of a text whose place is looked for; Unicode keeps both free for such uses.
START = "\ufdd0"
END = "\ufdd1"
MARKS = START + END


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Apply a function to each string in a value of plain JSON types, except to names of fields."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(one, change) for key, one in value.items()}
    if isinstance(value, list):
        return [mapped(one, change) for one in value]
    return value


def unmarked(text: str) -> str:
    """A text without the characters that are marks."""
    return text.replace(START, "").replace(END, "")


def parts_of(text: str, typed: Sequence[Span]) -> Iterator[tuple[Span, bool]]:
    """Cut a text before and behind each of the spans; every part comes with whether it is one of them."""
    edges = [0, *(place for span in typed for place in span), len(text)]
    for number, (start, end) in enumerate(pairwise(edges)):
        if start < end:
            yield (start, end), number % 2 == 1


def n_common(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def align(marked: str, text: str) -> tuple[list[int], list[int]] | None:
    """How the text of messages with marks lies on their text without; None where more than white space differs.

    Returns where the solid characters of text stand, those that are neither white space nor marks; and for each place
    in marked how many of these characters are before it.
    """
    solid = [i for i, character in enumerate(text) if _is_solid(character)]
    is_solid = [_is_solid(character) for character in marked]
    if "".join(compress(marked, is_solid)) != "".join(text[i] for i in solid):
        return None
    return solid, [0, *accumulate(is_solid)]


def _is_solid(character: str) -> bool:
    """Whether a character is neither white space nor a mark."""
    return not character.isspace() and character not in MARKS
