"""The folder of one trial of a sweep: what is to be trained, who trains it, and what came of it."""

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from gptmini.files import replacing
from gptmini.user_error import UserError

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

    def __post_init__(self) -> None:
        """Raise TypeError for values of other types."""
        _check_types(self, arguments=list, label=str, job=str, folder=str, environment=dict)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a trial whose run has ended by itself."""

    seconds: float  # of the start that has ended it
    reason: str | None = None  # why it failed; None if it did not
    run: str | None = None  # the run's folder
    loss: float | None = None  # lowest validation loss, in nats per token
    bits_per_byte: float | None = None  # at the same validation
    step: int | None = None  # of that validation

    def __post_init__(self) -> None:
        """Raise TypeError for values of other types, and for numbers that are not finite."""
        nothing = type(None)
        _check_types(
            self,
            seconds=(float, int),
            reason=(str, nothing),
            run=(str, nothing),
            loss=(float, nothing),
            bits_per_byte=(float, nothing),
            step=(int, nothing),
        )


def _check_types(facts: object, **types: Any) -> None:
    """Raise TypeError unless each field of facts is of its type, and finite if it is a number."""
    for name, kind in types.items():
        value = getattr(facts, name)
        is_number = isinstance(value, float | int)
        if not isinstance(value, kind) or (is_number and not math.isfinite(value)):
            raise TypeError(f"{name} must not be {value!r}")


@dataclass(frozen=True)
class _Job:
    """The job of a cluster that trains a trial."""

    cluster: str  # local or slurm
    job: str

    def __post_init__(self) -> None:
        """Raise TypeError for values of other types."""
        _check_types(self, cluster=str, job=str)


class TrialFolder:
    """The folder of a trial; every file in it is written whole or not at all."""

    def __init__(self, sweep: Path, number: int) -> None:
        self.path = sweep / "trials" / f"{number:04d}"

    @property
    def result_file(self) -> Path:
        """The file whose existence says that the trial's run has ended by itself."""
        return self.path / "result.json"

    def read_order(self) -> Order | None:
        """Read what is to be trained; None if nothing says so."""
        path = self.path / "order.json"
        return self._read(path, Order) if path.is_file() else None

    def write_result(self, result: Result) -> None:
        """Write what came of the trial."""
        self._write(self.result_file, asdict(result))

    def read_result(self) -> Result | None:
        """Read what came of the trial; None if its run has not ended by itself."""
        if not self.result_file.is_file():
            return None
        return self._read(self.result_file, Result)

    def write_trouble(self, reason: str) -> None:
        """Write why a start of the trial has failed that may succeed when it is tried again."""
        with replacing(self.path / "trouble.txt") as file:
            file.write(reason.encode("utf-8"))

    def read_trouble(self) -> str | None:
        """Read why the newest start of the trial has failed; None if nothing is known of that."""
        path = self.path / "trouble.txt"
        return path.read_text(encoding="utf-8") if path.is_file() else None

    def prepare_start(self, order: Order) -> None:
        """Write what is to be trained, and remove what an earlier start has left."""
        self.path.mkdir(parents=True, exist_ok=True)
        for name in ("process", "trouble.txt", "job.json"):
            (self.path / name).unlink(missing_ok=True)
        self._write(self.path / "order.json", asdict(order))

    def write_job(self, cluster: str, job: str) -> None:
        """Write which job of which cluster was asked for last."""
        self._write(self.path / "job.json", asdict(_Job(cluster=cluster, job=job)))

    def read_job(self, cluster: str) -> str | None:
        """Read which job of a cluster was asked for last; None if none was, or one of another cluster."""
        path = self.path / "job.json"
        if not path.is_file():
            return None
        found = self._read(path, _Job)
        return found.job if found.cluster == cluster else None

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
