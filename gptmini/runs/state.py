"""How a run stands: what it wrote at its own end, and the step of its newest checkpoint."""

import json
import pickle
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from gptmini.files import replacing
from gptmini.untrusted import read_json
from gptmini.user_error import UserError

FILE = "state"  # in the run's folder
# Bytes of a checkpoint's plain values; a vocabulary of 200,000 pieces takes a tenth of it.
LARGEST_HEADER = 2**26

# done: all its steps. ended: by a callback, as EarlyStopping. pruned: by its sweep. stopped: by a signal or the time
# limit. failed: by an error.
EndState = Literal["done", "ended", "pruned", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True)
class End:
    """The end of a run, as the run itself wrote it."""

    state: EndState
    step: int  # optimizer steps done
    # A callback, a signal, the time limit or an error by its name; None for a run that is done.
    by: str | None = None


def write_state(folder: Path, end: End) -> None:
    """Write how a run ended into its folder; a run that goes on removes it with clear_state."""
    with replacing(folder / FILE) as file:
        file.write(f"{json.dumps(asdict(end))}\n".encode())


def clear_state(folder: Path) -> None:
    """Forget how a run ended, because it goes on."""
    (folder / FILE).unlink(missing_ok=True)


def read_state(folder: Path) -> End | None:
    """Read how a run ended; None where it has not ended by itself: it is trained now, or was killed.

    Raises UserError: the file is not one that a run has written.
    """
    path = folder / FILE
    if not path.is_file():
        return None

    values = read_json(path)
    state = values.get("state")
    step = values.get("step")
    by = values.get("by")
    names_its_cause = by is None or isinstance(by, str)
    if state not in get_args(EndState) or type(step) is not int or not names_its_cause:
        raise UserError(f"{path} must say how the run ended; remove it")
    return End(state=cast(EndState, state), step=step, by=by)


def checkpointed_step(folder: Path) -> int | None:
    """Optimizer step of a run's newest checkpoint, without torch and without reading weights; None if there is none.

    Raises UserError: each of its checkpoints is damaged.
    """
    steps = []
    damaged = None
    for name in ("last.ckpt", "previous.ckpt", "best.ckpt"):
        path = folder / "checkpoints" / name
        try:
            if path.is_file():
                steps.append(_step_of(path))
        except UserError as error:
            damaged = error
    if damaged is not None and not steps:
        raise damaged
    return max(steps, default=None)


def _step_of(path: Path) -> int:
    """The entry "global_step" of a file that torch.save wrote: a zip of a pickle and the bytes of the tensors."""
    try:
        with zipfile.ZipFile(path) as archive:
            (entry,) = (item for item in archive.infolist() if item.filename.endswith("data.pkl"))
            if entry.file_size > LARGEST_HEADER:
                raise ValueError("its header is too large")
            with archive.open(entry) as file:
                return int(_HeaderUnpickler(file).load()["global_step"])
    except OSError:
        raise
    except Exception as error:  # of any class: pickle names none for what a damaged file can raise
        raise UserError(f"{path} is damaged ({type(error).__name__})") from None


class _Nothing(dict):
    """Stands for whatever a pickle would build, and does nothing."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__()


class _HeaderUnpickler(pickle.Unpickler):
    """Reads the plain values of a checkpoint: no class or function that the file names is imported or called."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        return _Nothing

    def persistent_load(self, pid: object, /) -> Any:
        """A tensor's bytes, which are not read."""
        return None
