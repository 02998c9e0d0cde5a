"""The folder of one trial of a sweep: what is to be trained, who trains it, and what came of it."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from gptmini.checks import UserError
from gptmini.files import replacing

T = TypeVar("T")
# Seconds that a process waits for the lock of its trial, which the sweep holds for an instant when it looks.
PATIENCE = 10.0


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a sweep asks of the process that trains a trial."""

    arguments: list[str]  # of the command train
    label: str  # ends the name of the run's folder
    job: str  # what names the trial in all its starts
    folder: str  # in which the sweep was started, where relative paths begin
    environment: dict[str, str | None]  # variables to set; None for one that is not to be there


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a trial whose run has ended by itself."""

    seconds: float  # of the start that has ended it
    reason: str | None = None  # why it failed; None if it did not
    run: str | None = None  # the run's folder
    loss: float | None = None  # lowest validation loss, in nats per token
    bits_per_byte: float | None = None  # at the same validation
    step: int | None = None  # of that validation


@dataclass(frozen=True)
class _Job:
    """The job of a cluster that trains a trial."""

    job: str


class TrialFolder:
    """The folder of a trial; every file in it is written whole or not at all."""

    def __init__(self, sweep: Path, number: int) -> None:
        self.path = sweep / "trials" / f"{number:04d}"

    @property
    def result_file(self) -> Path:
        """The file whose existence says that the trial's run has ended by itself."""
        return self.path / "result.json"

    def write_order(self, order: Order) -> None:
        """Write what is to be trained."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._write(self.path / "order.json", asdict(order))

    def read_order(self) -> Order:
        """Read what is to be trained."""
        return self._read(self.path / "order.json", Order)

    def write_result(self, result: Result) -> None:
        """Write what came of the trial."""
        self._write(self.result_file, asdict(result))

    def read_result(self) -> Result | None:
        """Read what came of the trial; None if its run has not ended by itself."""
        if not self.result_file.is_file():
            return None
        return self._read(self.result_file, Result)

    def write_job(self, job: str) -> None:
        """Write which job of a cluster was asked for last."""
        self._write(self.path / "job.json", asdict(_Job(job)))

    def read_job(self) -> str | None:
        """Read which job of a cluster was asked for last; None if none was."""
        path = self.path / "job.json"
        return self._read(path, _Job).job if path.is_file() else None

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Hold the lock of the trial during the block, which is given whether it could be had.

        The lock of a process that was killed is free again.
        """
        from filelock import FileLock, Timeout

        lock = FileLock(self._lock_file)
        try:
            lock.acquire(timeout=PATIENCE)
        except Timeout:
            yield False
            return
        try:
            (self.path / "process").write_text(str(os.getpid()))
            yield True
        finally:
            lock.release()

    def is_locked(self) -> bool:
        """Whether a process trains the trial now."""
        from filelock import FileLock, Timeout

        if not self._lock_file.exists():
            return False
        try:
            with FileLock(self._lock_file).acquire(timeout=0):
                return False
        except Timeout:
            return True

    def process(self) -> int | None:
        """The process that trains the trial now; None if there is none, or if it has not written its number yet."""
        if self.is_locked():
            with suppress(ValueError, OSError):
                return int((self.path / "process").read_text())
        return None

    @property
    def _lock_file(self) -> Path:
        return self.path / ".lock"

    @staticmethod
    def _write(path: Path, facts: dict[str, Any]) -> None:
        with replacing(path) as file:
            file.write(json.dumps(facts).encode())

    @staticmethod
    def _read(path: Path, kind: type[T]) -> T:
        try:
            return kind(**json.loads(path.read_bytes()))
        except (ValueError, TypeError):
            raise UserError(f"{path} is not what a sweep writes; remove it") from None
