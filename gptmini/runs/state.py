"""How a run stands, as the run itself writes it: at its start, at each save and at its end."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, ValidationError
from pydantic.dataclasses import dataclass

from gptmini.files import replacing
from gptmini.settings import STRICT, first_mistake
from gptmini.untrusted import read_json
from gptmini.user_error import UserError

FILE = "state"  # in the run's folder

# running: in training, or killed where no process holds the run's lock. done: all its steps. ended: by a callback, as
# EarlyStopping. pruned: by its sweep. stopped: by a signal or the time limit. failed: by an error.
StateName = Literal["running", "done", "ended", "pruned", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RunState:
    """How a run stands."""

    state: StateName
    step: NonNegativeInt  # optimizer steps done; of a running run those of its newest checkpoint
    # A callback, a signal, the time limit or an error by its name; None for a run that is running or done.
    by: str | None = None


def write_state(folder: Path, state: RunState) -> None:
    """Write into a run's folder how the run stands; a reader sees the old file or the new one."""
    with replacing(folder / FILE) as file:
        file.write(f"{json.dumps(asdict(state))}\n".encode())


def read_state(folder: Path) -> RunState | None:
    """Read how a run stands; None for one that was killed before it wrote that.

    Raises UserError: the file is not one that a run has written.
    """
    path = folder / FILE
    if not path.is_file():
        return None

    try:
        return RunState(**read_json(path))
    except ValidationError as error:
        mistake = first_mistake(error)
        raise UserError(f"{path} must say how the run stands: {mistake}; remove it") from None
