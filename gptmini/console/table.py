"""Align the columns of a table. A character of Chinese takes two columns of a terminal."""

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

GAP = "  "  # between columns


def aligned(rows: Sequence[Sequence[str]], *, right: bool = False) -> list[str]:
    """Return the rows of a table as lines with aligned columns, which are right-justified if right is true."""
    widths = widths_of(rows)
    lines = []
    for row in rows:
        cells = []
        for text, width in zip(row, widths, strict=True):
            space = " " * (width - cell_len(text))
            cells.append(space + text if right else text + space)
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
