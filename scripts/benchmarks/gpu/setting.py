"""Settings that all parts of the GPU benchmark share: sizes, time and options."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..harness import Table

LONGEST_ERROR = 300  # maximum number of characters of an error message in a row


@dataclass(frozen=True, kw_only=True)
class Scale:
    """All sizes of the benchmark: full sizes for a GPU, or toy sizes for a dry run."""

    sizes: tuple[str, ...]  # overrides for the sizes of every trained model
    n_vocab: int  # number of different synthetic tokens
    steps: int  # optimizer steps of a fit
    first_step: int  # first measured step of a fit, counted from 0; earlier steps are the warm-up
    sequences: int  # sequences in the global batch of a fit
    batch_sizes: tuple[int, ...]  # micro-batches that the ladder tries
    product: int  # rows and columns of the matrices that measure the peak
    runs: tuple[str, ...]  # overrides of the entire runs
    sampling: dict  # options of the sampling benchmark


FULL = Scale(
    sizes=(),
    n_vocab=50257,
    steps=60,
    first_step=20,
    sequences=128,  # 131,072 tokens, a quarter of the experiments' batch, so that a rung takes about a minute
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
    """Settings that all parts of the benchmark share."""

    table: Table
    scale: Scale
    device: str  # cuda, or cpu in a dry run
    nanogpt: Path | None  # checkout of nanoGPT to compare with
    shakespeare: Path | None  # text file of tinyshakespeare, if it cannot be downloaded
    folder: Path  # temporary folder
    deadline: float  # in seconds of time.monotonic; no row is started afterwards
    longest: dict[str, float] = field(default_factory=dict)  # seconds of each part's longest row

    @property
    def dry(self) -> bool:
        """Whether this is a dry run, which only shows that every part runs on the CPU."""
        return self.scale is TOY

    @property
    def left(self) -> float:
        """Seconds until the deadline; below 0 after it."""
        return self.deadline - time.monotonic()

    def measure(
        self, what: str, figure: str, function: Callable[[], dict], *, goal: str = ""
    ) -> dict | None:
        """Call a function, and add a row with the figures that it returns.

        If less time remains than the longest row of the part took, the function is not called, and the row says so.

        Args:
            what: name of the row.
            figure: name of the main figure of the row; the other figures are its details.
            function: returns figures by name.
            goal: goal of the main figure.

        Returns the figures, or None if the function was not called or raised an error (the row then has the error).
        """
        table = self.table
        if self.left < self.longest.get(table.part, 0.0):
            table.add(what, None, status="no time left")
            return None

        start = time.monotonic()
        figures = None
        try:
            figures = function()
        # Catch every error: a failed row must not prevent the following rows.
        except Exception as error:
            message = shortened(f"{type(error).__name__}: {error}")
            table.add(what, None, status="failed", error=message)
        else:
            details = {name: value for name, value in figures.items() if name != figure}
            table.add(what, figures[figure], goal=goal, **details)

        seconds = time.monotonic() - start
        self.longest[table.part] = max(self.longest.get(table.part, 0.0), seconds)
        return figures


def shortened(message: str) -> str:
    """Shorten a message to one line of at most LONGEST_ERROR characters."""
    return " ".join(message.split())[:LONGEST_ERROR]
