"""List names in a message."""

from collections.abc import Sequence


def names_of(objects: Sequence[object], most: int = 3) -> str:
    """Return the names of the first objects, and the number of the others: "a.txt, b.txt, c.txt, and 2 more"."""
    names = ", ".join(map(str, objects[:most]))
    n_others = len(objects) - most
    return f"{names}, and {n_others:,} more" if n_others > 0 else names
