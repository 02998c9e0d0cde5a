"""What a sweep tries: its settings, the values of each key as they are typed, and what all its runs have alike."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass

from gptmini.key_table import keys_with
from gptmini.settings import STRICT
from gptmini.user_error import UserError

# Digits of a number that is drawn from an interval. More of them would change no curve, and make commands unreadable.
DIGITS = 4
SEED = "seed"  # the key over which a table gives means


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SweepSettings:
    """How a sweep chooses values, from the group sweep of the configuration."""

    name: str  # of the sweep and of its runs, unless another one is typed
    sampler: Literal["auto", "grid", "random", "tpe"]
    trials: PositiveInt | None  # how many runs in all; None: every point of a grid
    seed: NonNegativeInt
    retries: NonNegativeInt  # how often a run whose process was killed is started again
    pruner: Literal["median", "hyperband"] | None
    pruner_startup: NonNegativeInt  # runs that must be finished before another one may be pruned
    pruner_warmup: NonNegativeInt  # steps of a run before which it is not pruned
    params: dict[str, Any]  # values by key, as a file describes them

    def sampler_of(self, space: "Space") -> str:
        """The sampler that auto stands for: a grid where every value is listed, else tpe.

        Raises UserError: a grid of an interval, or a sampler that would never end.
        """
        intervals = [dimension.key for dimension in space.dimensions if dimension.is_interval]
        sampler = self.sampler
        if sampler == "auto":
            sampler = "tpe" if intervals else "grid"

        if sampler == "grid" and intervals:
            raise UserError(
                f"a grid needs every value, and {intervals[0]} has an interval; list its values, or take "
                "sweep.sampler=random"
            )
        if sampler != "grid" and self.trials is None:
            raise UserError(f"sweep.trials must say how many runs {sampler} tries")
        return sampler

    def n_trials_of(self, space: "Space") -> int:
        """Number of trials of the whole sweep."""
        if self.sampler_of(space) == "grid":
            return min(space.n_points, self.trials or space.n_points)
        assert self.trials is not None  # sampler_of has checked that
        return self.trials


@plain_dataclass(frozen=True)
class Dimension:
    """One key of a sweep: either texts that stand for its values, or an interval of numbers."""

    key: str  # as it is typed, perhaps the name of a group
    texts: tuple[str, ...] = ()  # of the values; empty for an interval
    low: float = 0.0  # ends of the interval, which belong to it
    high: float = 0.0
    is_whole: bool = False  # whether the interval is one of whole numbers
    is_log: bool = False  # whether numbers are drawn evenly on a logarithmic scale

    def __post_init__(self) -> None:
        """Raise UserError for a value that is there twice, and for an interval that holds no number."""
        if self.is_interval and not self.low < self.high:
            raise UserError(
                f"the interval of {self.key} must go from a lower to a higher number, got {self.low:g} to {self.high:g}"
            )
        if self.is_interval and self.is_log and self.low <= 0:
            raise UserError(
                f"a logarithmic interval must lie above 0, got {self.low:g} for {self.key}"
            )
        for text in self.texts:
            if self.texts.count(text) > 1:
                raise UserError(f"{self.key} must have each value once, got {text} twice")

    def __str__(self) -> str:
        """The values in one text, which tells this dimension from others."""
        if not self.is_interval:
            return ",".join(self.texts)
        kind = "int" if self.is_whole else "float"
        scale = "log" if self.is_log else "linear"
        return f"{kind} {scale} interval({self.low!r},{self.high!r})"

    @property
    def is_interval(self) -> bool:
        """Whether the values are all numbers of an interval."""
        return not self.texts

    @property
    def examples(self) -> list[str]:
        """Texts that a check can try: every value, or the two ends of an interval."""
        return list(self.texts) or [self.text_of(self.low), self.text_of(self.high)]

    def rounded(self, value: float) -> float:
        """A number that was drawn from the interval, to DIGITS digits and inside of the interval."""
        if self.is_whole:
            return int(value)
        short = float(f"{value:.{DIGITS}g}")
        return min(max(short, self.low), self.high)

    def text_of(self, value: object) -> str:
        """A value of a trial as it is typed after the key."""
        if isinstance(value, str):
            return value
        assert isinstance(value, float | int)
        return repr(self.rounded(value))


@plain_dataclass(frozen=True)
class Space:
    """What the runs of a sweep have in common, and what is varied."""

    dimensions: Sequence[Dimension]
    fixed: Sequence[str]  # KEY=VALUE for every run, in Hydra's grammar

    @property
    def keys(self) -> list[str]:
        """The keys that are varied."""
        return [dimension.key for dimension in self.dimensions]

    @property
    def by_bits(self) -> bool:
        """Whether the tokens of runs may differ, so that runs are compared by bits per byte instead of by loss."""
        roots = [key.lstrip("+").partition(".")[0] for key in self.keys]
        if any(line.startswith("budget=") for line in self.fixed):  # which chooses a tokenizer
            return True
        return any(root in keys_with("changes_tokens") for root in roots)

    @property
    def n_points(self) -> int:
        """Number of points of the grid."""
        return math.prod(len(dimension.texts) for dimension in self.dimensions)

    def point(self, number: int) -> dict[str, str]:
        """Values by key of one point of the grid; that of the last dimension changes fastest."""
        points = itertools.product(*(dimension.texts for dimension in self.dimensions))
        texts = next(itertools.islice(points, number, None))
        return dict(zip(self.keys, texts, strict=True))

    def overrides(self, texts: Mapping[str, str]) -> list[str]:
        """The overrides of the run with these values, by key."""
        return [*self.fixed, *(f"{key}={text}" for key, text in texts.items())]

    def examples(self) -> list[list[str]]:
        """The overrides of a few runs in which every value of every key occurs.

        The first run has the first value of each key. Each further run has another value of one key. Every combination
        might be too many.
        """
        first = {dimension.key: dimension.examples[0] for dimension in self.dimensions}
        runs = [self.overrides(first)]
        for dimension in self.dimensions:
            for text in dimension.examples[1:]:
                runs.append(self.overrides(first | {dimension.key: text}))
        return runs
