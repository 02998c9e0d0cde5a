"""Processes that train in a folder and are killed there: their start, how far they are, and what they have saved."""

import math
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from gptmini.checkpoint.file import step_of

INTERVAL = 20  # steps between checkpoints

# A small default run whose checkpoints, 5 MB, take long enough to be hit while they are written.
OVERRIDES = (
    "model.d_model=64",
    "model.n_layers=2",
    "model.n_heads=2",
    "model.context_length=32",
    "model.dropout=0.1",
    "trainer.global_batch_size=4",
    "trainer.batch_size=2",
    "trainer.val_every_steps=100",
    "trainer.val_tokens=512",
    "trainer.threads=1",
    "trainer.device=cpu",
    "callbacks.scalars.every_steps=5",
    f"callbacks.checkpoints.every_steps={INTERVAL}",
    "callbacks.samples.max_new_tokens=8",
    "callbacks.pictures=null",
)

# A callback that writes the newest step, and which process has done it, to a file: a process that is killed cannot tell
# its step itself. gptmini finds the class in the folder where the command is typed.
COUNTER = """
import os

import lightning as L


class Counter(L.Callback):
    def __init__(self):
        self.file = os.open("counter", os.O_WRONLY | os.O_CREAT)

    def on_train_batch_end(self, trainer, module, *batch):
        step = trainer.global_step.to_bytes(8, "little")
        os.pwrite(self.file, step + os.getpid().to_bytes(8, "little"), 0)
"""


def start(folder: Path, command: Sequence[str], **variables: str) -> subprocess.Popen:
    """Start a process in a folder, in a session of its own.

    Args:
        folder: gets the output, as output.txt.
        command: the program and its arguments.
        variables: of the environment, besides those of this process.
    """
    with (folder / "output.txt").open("a") as output:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def said_in(folder: Path) -> str:
    """What the processes of a folder have printed."""
    return (folder / "output.txt").read_text()


def processes_in(folder: Path) -> list[int]:
    """The processes that run in a folder, as Linux lists them, in order."""
    return sorted(_processes_in(folder))


def _processes_in(folder: Path) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if (entry / "cwd").resolve() == folder.resolve():
                    yield int(entry.name)


def kill(process: int) -> None:
    """Kill a process, which may have ended meanwhile."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def count_steps(folder: Path) -> str:
    """Write the callback into a folder, and return the override by which a run that is started there counts."""
    (folder / "counting.py").write_text(COUNTER)
    return "++callbacks.counter._target_=counting.Counter"


def reached(folder: Path) -> int:
    """The newest step that the training process of a folder has finished."""
    return _counter(folder)[0]


def newest_trainer(folder: Path) -> int:
    """The id of the process that has finished the newest step in a folder; 0 if none has."""
    return _counter(folder)[1]


def _counter(folder: Path) -> tuple[int, int]:
    """The newest step and its process, as COUNTER has written them."""
    path = folder / "counter"
    content = path.read_bytes() if path.exists() else b""
    return int.from_bytes(content[:8], "little"), int.from_bytes(content[8:], "little")


def saved(folder: Path) -> tuple[int, int]:
    """The step of the newest checkpoint below a folder, 0 if there is none, and how many cannot be read."""
    while True:
        # A process that saves at this moment gives last.ckpt another name; then all are looked at again.
        with suppress(FileNotFoundError):
            steps = [step_of(path) for path in folder.glob("runs/*/*/checkpoints/*.ckpt")]
            whole = [int(step) for step in steps if step < math.inf]
            return max(whole, default=0), len(steps) - len(whole)
