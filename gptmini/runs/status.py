"""The state of a run, which the run writes at its start, at each save and at its end."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, ValidationError
from pydantic.dataclasses import dataclass

from gptmini.settings import STRICT, first_error
from gptmini.system.errors import UserError
from gptmini.system.files import replacing
from gptmini.system.untrusted import read_json

STATUS = "state"  # in the run's folder


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RunStatus:
    """The state of a run."""

    # - running: the run is training. If no process holds the lock of the run, the run was killed.
    # - done: all steps are done.
    # - ended: a callback, such as EarlyStopping or Pruning, ended the run.
    # - stopped: a signal or the time limit stopped the run.
    # - failed: an error ended the run.
    state: Literal["running", "done", "ended", "stopped", "failed"]
    # Number of optimizer steps that are done. For a run that is training, the step of its latest checkpoint.
    step: NonNegativeInt
    # The cause of the end: the name of the callback, of the signal or of the error, or the time limit. None if
    # the run is running or done.
    by: str | None = None
    # The exit code, the error message and the duration of the last start. They are None while the run is training.
    exit_code: int | None = None  # negative if a signal killed the process
    reason: str | None = None
    seconds: float | None = None


def write_status(folder: Path, status: RunStatus) -> None:
    """Write the state of a run into the folder of the run. Another process sees either the old file or the new file."""
    with replacing(folder / STATUS) as file:
        file.write(f"{json.dumps(asdict(status))}\n".encode())


def read_status(folder: Path) -> RunStatus | None:
    """Return the state of a run, or None if the run was killed before it wrote its state.

    Raises UserError if the file 'state' does not contain the state of a run.
    """
    path = folder / STATUS
    if not path.is_file():
        return None

    try:
        return RunStatus(**read_json(path))
    except ValidationError as error:
        raise UserError(
            f"{path} must contain the state of a run ({first_error(error)}); remove this file"
        ) from None
