"""The state of a run, which the run writes at its start, at each save and at its end."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, ValidationError
from pydantic.dataclasses import dataclass

from gptmini.files import replacing
from gptmini.settings import STRICT, first_error
from gptmini.untrusted import read_json
from gptmini.user_error import UserError

FILE = "state"  # in the run's folder

# running: in training, or killed if no process holds the run's lock. done: all steps are done. ended: by a callback,
# such as EarlyStopping. pruned: by its sweep. stopped: by a signal or the time limit. failed: by an error.
StateName = Literal["running", "done", "ended", "pruned", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RunStatus:
    """The state of a run."""

    state: StateName
    step: (
        NonNegativeInt  # optimizer steps done; for a running run, the step of its latest checkpoint
    )
    # The name of the callback, the signal or the error, or the time limit; None if the run is running or done.
    by: str | None = None


def write_status(folder: Path, state: RunStatus) -> None:
    """Write the state of a run into its folder; a reader sees either the old file or the new file."""
    with replacing(folder / FILE) as file:
        file.write(f"{json.dumps(asdict(state))}\n".encode())


def read_status(folder: Path) -> RunStatus | None:
    """Read the state of a run; None if the run was killed before it wrote its state.

    Raises UserError if the file does not contain a state.
    """
    path = folder / FILE
    if not path.is_file():
        return None

    try:
        return RunStatus(**read_json(path))
    except ValidationError as error:
        mistake = first_error(error)
        raise UserError(
            f"{path} does not contain the state of a run ({mistake}); remove it"
        ) from None
