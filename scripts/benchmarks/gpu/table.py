"""The table of the GPU benchmark: rows that are printed and saved one by one, until the minutes are over."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gptmini.files import replacing
from gptmini.user_error import UserError

LONGEST_ERROR = 300  # characters of an error's message in a row


@dataclass
class Table:
    """Rows, each of them printed and saved as soon as its measurement ends."""

    path: Path  # the JSON file that holds all rows
    deadline: float  # of time.monotonic; afterwards no row is begun
    rows: list[dict] = field(default_factory=list)
    longest: dict[str, float] = field(default_factory=dict)  # seconds of each part's longest row

    def measure(
        self,
        part: str,
        row: str,
        function: Callable[[], dict],
        *,
        expected: float = 0.0,
    ) -> dict | None:
        """Call a function, and add a row of the figures that it returns.

        No row is begun if less time is left than the part's longest row took.

        Args:
            part: the part of the benchmark that the row belongs to.
            row: the name of the row.
            function: returns the figures by name.
            expected: seconds that the first row of the part is expected to take.

        Returns:
            The figures; None if the function raised, which is a row too, or was not called for want of time.
        """
        if self.left() < self.longest.get(part, expected):
            self.add(part, row, "no time left")
            return None

        start = time.monotonic()
        try:
            figures = function()
        # An error of any class: a row that fails must not cost the rows that follow.
        except Exception as error:
            reason = shortened(str(error))
            self.add(part, row, "failed", error=f"{type(error).__name__}: {reason}")
            figures = None
        else:
            self.add(part, row, "measured", **figures)

        seconds = time.monotonic() - start
        self.longest[part] = max(self.longest.get(part, 0.0), seconds)
        return figures

    def add(self, part: str, row: str, status: str, **figures: float | str) -> None:
        """Print a row, and save all rows."""
        self.rows.append({"part": part, "row": row, "status": status, **figures})

        shown = ", ".join(f"{name} {_shown(figure)}" for name, figure in figures.items())
        print(f"{part:14} {row:36} {status:10} {shown}", flush=True)

        with replacing(self.path) as file:
            file.write(json.dumps(self.rows, indent=1).encode())

    def left(self) -> float:
        """Seconds until the deadline; below 0 after it."""
        return self.deadline - time.monotonic()


def earlier_rows(path: Path, parts: Sequence[str]) -> list[dict]:
    """Read the rows of a table that was saved before, without the rows of the parts that are measured again.

    Args:
        path: the table's JSON file, which need not exist.
        parts: names of the parts that are left out.

    Raises:
        UserError: the file holds something else than a table.
    """
    if not path.is_file():
        return []
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return [row for row in rows if row["part"] not in parts]
    except (ValueError, TypeError, KeyError):
        raise UserError(
            f"--out must be a table of this command or a new file, got {path}"
        ) from None


def shortened(message: str) -> str:
    """Return a message of any length as one line of at most LONGEST_ERROR characters."""
    return " ".join(message.split())[:LONGEST_ERROR]


def _shown(figure: float | str) -> str:
    """Return a figure of any size in a few characters."""
    if isinstance(figure, str):
        return figure
    if abs(figure) >= 1000:
        return f"{figure:,.0f}"
    return f"{figure:.4g}"
