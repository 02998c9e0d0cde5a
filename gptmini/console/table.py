"""Align the columns of a table. A character of Chinese takes two columns of a terminal."""

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

GAP = "  "  # between columns


def aligned(
    rows: Sequence[Sequence[str]], *, right: bool = False, widths: Sequence[int] | None = None
) -> list[str]:
    """Return the rows of a table as lines with aligned columns, which are right-justified if right is true.

    The argument widths has the width of each column. By default, a column is as wide as its widest cell.
    """
    widths = widths_of(rows) if widths is None else widths
    lines = []
    for row in rows:
        cells = []
        for text, width in zip(row, widths, strict=True):
            cell = cut(text, width)
            space = " " * (width - cell_len(cell))
            cells.append(space + cell if right else cell + space)
        lines.append(GAP.join(cells).rstrip())
    return lines


def widths_of(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of the widest cell of each column."""
    return [max(map(cell_len, column)) for column in zip(*rows, strict=True)]


def cut(text: str, width: int) -> str:
    """Return a text of at most `width` columns of a terminal. If the text is longer, its end becomes an ellipsis."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1) + "…" if width > 0 else ""
