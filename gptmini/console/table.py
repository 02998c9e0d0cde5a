"""Align the columns of a table."""

from collections.abc import Callable, Sequence


def aligned(rows: Sequence[Sequence[str]], *, justify: Callable = str.ljust) -> list[str]:
    """Return the rows of a table as lines with aligned columns. justify is str.ljust or str.rjust."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(justify, row, widths)).rstrip() for row in rows]
