"""What all parts of the GPU benchmark share: the sizes of what is measured, the time, and the command's options."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..harness import Table

LONGEST_ERROR = 300  # characters of an error's message in a row


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large everything is: as a GPU measures it, or small enough for a dry run."""

    sizes: tuple[str, ...]  # overrides of the model's sizes, for every model that is trained
    n_vocab: int  # token kinds of the synthetic tokens
    gain: float  # a lever counts as a help if it makes training at least so many times as fast
    steps: int  # optimizer steps of a fit
    first_step: int  # step, counted from 0, from which on a fit is timed; earlier steps warm up
    sequences: int  # sequences in the global batch of a fit
    batch_sizes: tuple[int, ...]  # micro-batches that the ladder tries
    product: int  # rows and columns of the product that gives the machine's own peak
    runs: tuple[str, ...]  # overrides of the whole runs
    sampling: dict  # options of the sampling benchmark


FULL = Scale(
    sizes=(),
    n_vocab=50257,
    gain=1.01,
    steps=60,
    first_step=20,
    sequences=128,  # 131,072 tokens, a quarter of the experiments', so that a rung takes about a minute
    batch_sizes=(16, 32, 64),
    product=8192,
    runs=(),
    sampling={
        "sizes": ["gpt2"],
        "batch_sizes": [1, 64],
        "new_tokens": 512,
        "dtype": "bf16",
        "compile": True,
        "turns": 3,
    },
)
TOY = Scale(
    sizes=(
        "model.context_length=32",
        "model.d_model=32",
        "model.n_layers=1",
        "model.n_heads=2",
    ),
    n_vocab=300,
    gain=0.0,  # the speeds of toys are chance, so no lever is left out for its speed
    steps=4,
    first_step=2,
    sequences=8,
    batch_sizes=(4,),
    product=64,
    runs=(
        "trainer.max_steps=2",
        "trainer.val_every_steps=2",
        "trainer.val_tokens=64",
        "trainer.global_batch_size=2",
        "trainer.device=cpu",
        "callbacks.pictures=null",
        "callbacks.samples=null",
    ),
    sampling={
        "sizes": ["char"],
        "batch_sizes": [2],
        "new_tokens": 4,
        "dtype": "auto",
        "compile": False,
        "turns": 1,
    },
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all parts of the benchmark are given."""

    table: Table
    scale: Scale
    device: str  # cuda, or cpu in a dry run
    nanogpt: Path | None  # a checkout of nanoGPT to measure beside
    shakespeare: Path | None  # the text of tinyshakespeare, where it cannot be downloaded
    folder: Path  # a temporary folder for files
    deadline: float  # of time.monotonic; afterwards no row is begun
    longest: dict[str, float] = field(default_factory=dict)  # seconds of each part's longest row

    @property
    def dry(self) -> bool:
        """Whether this is a dry run, which measures nothing and only shows that every part runs on the CPU."""
        return self.scale is TOY

    @property
    def left(self) -> float:
        """Seconds until the deadline; below 0 after it."""
        return self.deadline - time.monotonic()

    def measure(
        self, what: str, figure: str, function: Callable[[], dict], *, goal: str = ""
    ) -> dict | None:
        """Call a function, and add a row of the figures that it returns.

        No row is begun if less time is left than the part's longest row took.

        Args:
            what: the name of the row.
            figure: which of the figures is the row's own; the others are its details.
            function: returns the figures by name.
            goal: of the row's own figure.

        Returns:
            The figures; None if the function raised, which is a row too, or was not called for want of time.
        """
        table = self.table
        if self.left < self.longest.get(table.part, 0.0):
            table.add(what, None, status="no time left")
            return None

        start = time.monotonic()
        figures = None
        try:
            figures = function()
        # An error of any class: a row that fails must not cost the rows that follow.
        except Exception as error:
            said = shortened(f"{type(error).__name__}: {error}")
            table.add(what, None, status="failed", error=said)
        else:
            details = {name: value for name, value in figures.items() if name != figure}
            table.add(what, figures[figure], goal=goal, **details)

        seconds = time.monotonic() - start
        self.longest[table.part] = max(self.longest.get(table.part, 0.0), seconds)
        return figures


def shortened(message: str) -> str:
    """A message of any length as one line of at most LONGEST_ERROR characters."""
    return " ".join(message.split())[:LONGEST_ERROR]
