"""What a run logs, written into its metrics.jsonl and its folder pictures/."""

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

from gptmini.files import flush_file, naming, replacing
from gptmini.runs.metrics import FILE, PICTURES, STEP, TIME, line_of
from gptmini.training.monitoring.logger import FolderLogger


class MetricsLogger(FolderLogger):
    """Writes a line of metrics.jsonl for each time that a run logs something; see gptmini/runs/metrics.py.

    What is logged while the disk is full is lost, and the run goes on.
    """

    def __init__(
        self, save_dir: str | Path, *, on_error: Callable[[OSError], None] | None = None
    ) -> None:
        """Write nothing yet; a file that is in the folder goes on. Arguments as of FolderLogger."""
        super().__init__(save_dir, on_error=on_error)
        self._has_failed = False  # whether the newest line could not be written

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write scalars, by tag. Scalars without a step, as a callback of a user may log them, are left out."""
        if step is None:
            return

        # A user's callback may log a tensor or a number of numpy's.
        numbers = {
            tag: value.item() if hasattr(value, "item") else value for tag, value in metrics.items()
        }
        self._attempt(lambda: self._append(step, numbers))

    @rank_zero_only
    def log_samples(self, texts: Sequence[str], step: int) -> None:
        """Write texts that the model wrote."""
        self._attempt(lambda: self._append(step, {"samples": list(texts)}))

    @rank_zero_only
    def log_table(self, tag: str, rows: Sequence[Sequence[str]], step: int) -> None:
        """Write a table; the first row holds the headings."""
        self._attempt(lambda: self._append(step, {tag: rows}))

    @rank_zero_only
    def log_image(self, tag: str, png: bytes, step: int) -> None:
        """Write an image into the folder pictures/, and a line that names it."""
        plain_tag = re.sub(r"[^\w.-]", "_", tag)
        name = f"{plain_tag}-{step}.png"

        def write() -> None:
            path = self.folder / PICTURES / name
            path.parent.mkdir(exist_ok=True)
            with replacing(path) as file:
                file.write(png)
            self._append(step, {tag: {"picture": name}})

        self._attempt(write)

    @rank_zero_only
    def save(self) -> None:
        """Flush all lines to disk."""
        self._attempt(self._flush)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Flush all lines to disk."""
        self._attempt(self._flush)

    def _append(self, step: int, entries: Mapping[str, object]) -> None:
        """Append a line; where the disk takes only a part of it, nothing is appended."""
        # A user's metric may be called step or time too.
        own = {STEP: step, TIME: round(time.time(), 3)}
        line = line_of({**own, **entries, **own})
        path = self.folder / FILE
        with naming(path), path.open("ab", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            try:
                while line:
                    line = line[file.write(line) :]
            except OSError:
                os.truncate(path, size)
                raise
        self._has_failed = False

    def _flush(self) -> None:
        """Wait until all lines are on the disk."""
        path = self.folder / FILE
        if path.is_file():
            # Windows flushes only files that are open for writing.
            with path.open("ab") as file, naming(path):
                flush_file(file)

    def _attempt(self, write: Callable[[], None]) -> None:
        """Call write; where it fails for the first time since a line was written, tell on_error."""
        try:
            write()
        except OSError as error:
            if self.on_error is None:
                raise
            if not self._has_failed:
                self.on_error(error)
            self._has_failed = True
