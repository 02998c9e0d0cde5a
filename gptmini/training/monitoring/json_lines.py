"""What a run logs, written into its metrics.jsonl and its folder pictures/."""

import os
import re
import time

from gptmini.files import flush_file, naming, replacing
from gptmini.runs.metrics import FILE, PICTURES, STEP, TIME, line_of
from gptmini.training.monitoring.logger import Entries, FolderLogger


class MetricsLogger(FolderLogger):
    """Writes a line of metrics.jsonl for each time that a run logs something; see gptmini/runs/metrics.py.

    What is logged while the disk is full is lost, and the run goes on.
    """

    def write(self, step: int, entries: Entries) -> None:
        """Append a line; an image becomes a file in the folder pictures/, which the line names."""
        named = {}
        for tag, value in entries.items():
            named[tag] = value
            if isinstance(value, bytes):
                plain_tag = re.sub(r"[^\w.-]", "_", tag)
                name = f"{plain_tag}-{step}.png"
                named[tag] = {"picture": name}
                path = self.folder / PICTURES / name
                path.parent.mkdir(exist_ok=True)
                with replacing(path) as file:
                    file.write(value)

        # A user's metric may be called step or time too.
        own = {STEP: step, TIME: round(time.time(), 3)}
        self._append(line_of({**own, **named, **own}))
        self.has_failed = False

    def flush(self) -> None:
        """Wait until all lines are on the disk."""
        path = self.folder / FILE
        if path.is_file():
            # Windows flushes only files that are open for writing.
            with path.open("ab") as file, naming(path):
                flush_file(file)

    def _append(self, line: bytes) -> None:
        """Append a line; where the disk takes only a part of it, nothing is appended."""
        path = self.folder / FILE
        with naming(path), path.open("ab", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            try:
                while line:
                    line = line[file.write(line) :]
            except OSError:
                os.truncate(path, size)
                raise
