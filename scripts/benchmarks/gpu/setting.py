"""What all parts of the GPU benchmark share: the sizes of what is measured, and the options of the command."""

from dataclasses import dataclass
from pathlib import Path

from .table import Table

# Seconds that a first fit is expected to take, before one was measured: it compiles, and trains 60 steps.
FIRST_FIT_SECONDS = 75.0


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
    sampling: str  # arguments of benchmark.py sampling, as they are typed


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
    sampling="--sizes gpt2 --batch-sizes 1 64 --new-tokens 512 --dtype bf16 --compile",
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
    batch_sizes=(2, 4),
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
    sampling="--sizes char --batch-sizes 2 --new-tokens 4 --turns 1 --threads 1",
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
    checks_share: float  # of the time left, the share that the checks may take

    @property
    def dry(self) -> bool:
        """Whether this is a dry run, which measures nothing and only shows that every part runs on the CPU."""
        return self.scale is TOY

    @property
    def expected_seconds(self) -> float:
        """Seconds that a part's first fit is expected to take; the first fit is not begun with less time left."""
        if self.dry:
            return 0.0
        return FIRST_FIT_SECONDS
