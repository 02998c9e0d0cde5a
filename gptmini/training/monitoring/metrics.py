"""A run's scalars in metrics.csv: one row for each logged step, one column for each tag."""

import csv
import io
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from gptmini.files import append_text, flush_file, naming, replacing, temporary_beside
from gptmini.report.scalar_table import FILE, STEP, Rows, read_rows
from gptmini.report.tags import VALIDATION
from gptmini.user_error import UserError

RETRY_SECONDS = 60.0  # between two attempts to write to a full disk


class MetricsLogger(Logger):
    """Writes every scalar of a run into metrics.csv in the run's folder.

    The row of a step is appended when a later step is logged, and at every save. The whole file is written anew only
    where a row has a tag that no row had before, or belongs before the last row. While the disk is full rows are kept,
    and written when the disk has room again.
    """

    def __init__(self, save_dir: str, *, on_failure: Callable[[str], None] | None = None) -> None:
        """Write nothing yet. on_failure may be set as an attribute too.

        Args:
            save_dir: folder of the file; one that a resumed run has written goes on.
            on_failure: is told why the file could not be written; the next attempt is made RETRY_SECONDS later. None to
                raise the error instead.
        """
        super().__init__()
        self._path = Path(save_dir) / FILE
        self.on_failure = on_failure
        self._try_again = 0.0  # time.monotonic() before which nothing is written
        self._rows: Rows = {}  # not in the file yet
        self._tags: list[str] = []  # of the file's columns
        # Step of the file's last row; None where this logger has not written the file.
        self._last_step: int | None = None

    @property
    def name(self) -> str:
        """The logger's name, which Lightning asks for."""
        return "metrics"

    @property
    def version(self) -> int:
        """The logger's version, which Lightning asks for; always 0."""
        return 0

    def log_hyperparams(self, *args: object, **kwargs: object) -> None:
        """Write nothing: config.yaml beside the file holds every value of the run."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Put scalars, by tag, into the row of a step. Scalars without a step have no row."""
        if step is None:
            return

        row = self._rows.setdefault(step, {})
        for tag, value in metrics.items():
            # A user's callback may log a tensor or a number of numpy's.
            plain = value.item() if hasattr(value, "item") else value
            row[tag] = str(plain)
        self._write(max(self._rows))

    @rank_zero_only
    def save(self) -> None:
        """Write all rows and flush them to disk."""
        self._write()
        self._attempt(self._flush)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write all rows."""
        self._write()

    def _write(self, before: int | None = None) -> None:
        """Write the rows of all steps; with before only those of the steps before that one."""
        due = {}
        for step in sorted(self._rows):
            if before is None or step < before:
                due[step] = self._rows[step]
        if due:
            self._attempt(lambda: self._write_rows(due))

    def _write_rows(self, rows: Rows) -> None:
        """Append rows to the file, or merge them into the file where they cannot be appended."""
        is_first = self._last_step is None
        is_early = self._last_step is not None and min(rows) <= self._last_step
        has_new_tag = any(tag not in self._tags for row in rows.values() for tag in row)
        is_gone = not self._path.is_file()  # moved away during the run
        if is_first or is_early or has_new_tag or is_gone:
            self._merge(rows)
        else:
            self._append(rows)

        for step in rows:
            del self._rows[step]

    def _append(self, rows: Rows) -> None:
        """Append rows; where the disk takes only a part of them, nothing is appended."""
        size = self._path.stat().st_size
        try:
            with append_text(self._path) as file:
                file.write(_lines(self._tags, rows))
        except OSError:
            os.truncate(self._path, size)
            raise
        self._last_step = max(rows)

    def _merge(self, rows: Rows) -> None:
        """Write the file anew, with rows and their tags put in."""
        tags: list[str] = []
        merged: Rows = {}
        if self._path.is_file():
            tags, merged = read_rows(self._path)
        for step, row in rows.items():
            merged.setdefault(step, {}).update(row)
            tags += [tag for tag in row if tag not in tags]

        with replacing(self._path) as file:
            file.write(_whole_file(tags, merged))
        self._tags = tags
        self._last_step = max(merged)

    def _flush(self) -> None:
        if self._path.is_file():
            # Windows flushes only files that are open for writing.
            with self._path.open("r+b") as file:
                flush_file(file)

    def _attempt(self, write: Callable[[], None]) -> None:
        """Call write, unless that failed a moment ago; where it fails, tell on_failure why."""
        if time.monotonic() < self._try_again:
            return

        try:
            write()
        except (OSError, UserError) as error:
            if self.on_failure is None:
                raise
            self._try_again = time.monotonic() + RETRY_SECONDS
            reason = error.strerror if isinstance(error, OSError) else None
            self.on_failure(reason or str(error))


@contextmanager
def dropping_later_rows(folder: Path, step: int, *, validated: bool) -> Iterator[None]:
    """Remove from a run's metrics.csv what the run logs again when it is resumed at a step.

    That is every row after the step, and, unless validated, the validation of the step itself. The new file is written
    before the block and takes the place of the old one after it, so that an error in the block leaves all as it was.
    """
    path = folder / FILE
    if not path.is_file():
        yield
        return

    tags, rows = read_rows(path)
    lasting = {number: row for number, row in rows.items() if number <= step}
    if step in lasting and not validated:
        row = lasting.pop(step)
        kept = {tag: cell for tag, cell in row.items() if not tag.startswith(VALIDATION)}
        if kept:
            lasting[step] = kept

    temporary = temporary_beside(path)
    try:
        with naming(path), temporary.open("xb") as file:
            file.write(_whole_file(tags, lasting))
            flush_file(file)
        yield

        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _whole_file(tags: list[str], rows: Rows) -> bytes:
    """The bytes of a file with a heading and rows, in the order of their steps."""
    heading = _line([STEP, *tags])
    return (heading + _lines(tags, dict(sorted(rows.items())))).encode("utf-8")


def _lines(tags: list[str], rows: Rows) -> str:
    """Rows as lines of CSV; a tag that a row lacks is an empty cell."""
    return "".join(
        _line([str(step), *(row.get(tag, "") for tag in tags)]) for step, row in rows.items()
    )


def _line(cells: list[str]) -> str:
    """Cells as a line of CSV."""
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()
