"""Encoded tasks on disk, until all of them are there: what a preparation that was interrupted goes on from."""

import json
import zlib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gptmini.data.preparation.tasks import ROW, Task
from gptmini.files import flush_file, naming, replacing


class Part(NamedTuple):
    """An encoded task."""

    rows: np.ndarray  # (n,) of ROW, one for each part of a document
    ids: np.ndarray  # ids of all rows, one after the other, uint16 or uint32 (n_ids,)


class Parts:
    """The folder of the encoded tasks of one corpus under one tokenizer, and of the tokenizer itself.

    A task has a file NUMBER.part, its rows and then its ids, and beside it a marker NUMBER.json. The marker is written
    last and whole, so that a part with a marker is complete.
    """

    def __init__(self, folder: Path, dtype: np.dtype) -> None:
        """Use a folder that exists; dtype is that of the ids."""
        self.folder = folder
        self._dtype = dtype

    def holds(self, task: Task) -> bool:
        """Whether the part of a task is there and whole, and is that of this very text."""
        marker = self._read_marker(task.number)
        if marker is None or marker.get("text_crc32") != task.checksum():
            return False
        if marker.get("rows") != len(task.rows):
            return False
        path = self._path(task.number)
        if not path.is_file() or path.stat().st_size != marker.get("bytes"):
            return False
        return zlib.crc32(path.read_bytes()) == marker.get("crc32")

    def write(self, task: Task, ids: list[np.ndarray]) -> None:
        """Keep the ids of a task, one array (n,) for each of its rows."""
        rows = task.rows.copy()
        rows["n_ids"] = [len(some) for some in ids]
        path = self._path(task.number)
        checksum = 0
        with naming(path), path.open("wb") as file:
            for array in (rows, *ids):
                data = array if array.dtype == ROW else array.astype(self._dtype)
                checksum = zlib.crc32(data.data, checksum)
                file.write(data.data)
            size = file.tell()
            flush_file(file)

        marker = {
            "text_crc32": task.checksum(),
            "rows": len(rows),
            "bytes": size,
            "crc32": checksum,
        }
        with replacing(self._marker(task.number)) as file:
            file.write(json.dumps(marker).encode("utf-8"))

    def read_rows(self, number: int) -> np.ndarray:
        """The rows of the task with this number, which must be there."""
        marker = self._read_marker(number)
        assert marker is not None
        return np.fromfile(self._path(number), dtype=ROW, count=marker["rows"])

    def read(self, number: int) -> Part:
        """The part of the task with this number, which must be there."""
        rows = self.read_rows(number)
        ids = np.fromfile(self._path(number), dtype=self._dtype, offset=rows.nbytes)
        return Part(rows, ids)

    def size_of(self, number: int) -> int:
        """Bytes of the part of the task with this number, which must be there."""
        return self._path(number).stat().st_size

    def size(self) -> int:
        """Bytes of all parts."""
        return sum(path.stat().st_size for path in self.folder.glob("*.part"))

    def _read_marker(self, number: int) -> dict | None:
        """The marker of a part; None where there is none that this class wrote."""
        with suppress(OSError, ValueError, RecursionError):
            marker = json.loads(self._marker(number).read_text(encoding="utf-8"))
            if isinstance(marker, dict):
                return marker
        return None

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06}.part"

    def _marker(self, number: int) -> Path:
        return self.folder / f"{number:06}.json"
