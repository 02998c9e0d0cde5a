"""The search space of a sweep: the settings, the values of each key, and the overrides that all runs have in common."""

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

# Significant digits of a number that is drawn from an interval. More digits would make commands hard to read.
DIGITS = 4
SEED = "seed"  # the key of the random seed; the table shows means over the seeds


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SweepSettings:
    """Settings of a sweep, from the configuration group sweep."""

    name: str  # the name of the sweep, unless name= overrides it
    sampler: Literal["auto", "grid", "random", "tpe"]
    trials: PositiveInt | None  # total number of runs; None for every point of the grid
    seed: NonNegativeInt
    retries: NonNegativeInt  # how often to restart a run whose process was killed
    pruner: Literal["median", "hyperband"] | None
    pruner_startup: NonNegativeInt  # finished runs required before the first pruning
    pruner_warmup: NonNegativeInt  # steps of a run before it may be pruned
    params: dict[str, Any]  # values by key, from a configuration file

    def sampler_of(self, space: "Space") -> str:
        """Return the name of the sampler. 'auto' means 'grid' if every value is listed, and 'tpe' otherwise.

        Raises UserError if the sampler is 'grid' but a key has an interval. Also raises UserError if a different
        sampler has no number of trials.
        """
        intervals = [dimension.key for dimension in space.dimensions if dimension.is_interval]
        sampler = self.sampler
        if sampler == "auto":
            sampler = "tpe" if intervals else "grid"

        if sampler == "grid" and intervals:
            raise UserError(
                f"sweep.sampler=grid requires a list of values for {intervals[0]}, got an interval; list the values "
                "or set sweep.sampler=random"
            )
        if sampler != "grid" and self.trials is None:
            raise UserError(
                f"the sampler '{sampler}' requires a number of runs; set sweep.trials=N"
            )
        return sampler

    def n_trials_of(self, space: "Space") -> int:
        """Return the total number of trials of the sweep."""
        if self.sampler_of(space) == "grid":
            return min(space.n_points, self.trials or space.n_points)
        assert self.trials is not None  # checked by sampler_of
        return self.trials


@plain_dataclass(frozen=True)
class Dimension:
    """A varied key of a sweep, with a list of values as texts or with an interval of numbers."""

    key: str  # as on the command line; may be the name of a group
    texts: tuple[str, ...] = ()  # the listed values; empty for an interval
    low: float = 0.0  # ends of the interval, both included
    high: float = 0.0
    is_integer: bool = False  # whether the interval holds integers only
    is_log: bool = False  # whether numbers are drawn uniformly on a logarithmic scale

    def __post_init__(self) -> None:
        """Raise UserError if a value is listed twice or the interval is empty."""
        if self.is_interval and not self.low < self.high:
            raise UserError(
                f"the interval of {self.key} must have low < high, got low={self.low:g} and high={self.high:g}"
            )
        if self.is_interval and self.is_log and self.low <= 0:
            raise UserError(
                f"the logarithmic interval of {self.key} must start above 0, got {self.low:g}"
            )
        for text in self.texts:
            if self.texts.count(text) > 1:
                raise UserError(f"{self.key} must list each value once, got {text} twice")

    def __str__(self) -> str:
        """Return all values as one text. The journal stores this text, so that a later start can compare the values."""
        if not self.is_interval:
            return ",".join(self.texts)
        kind = "int" if self.is_integer else "float"
        scale = "log" if self.is_log else "linear"
        return f"{kind} {scale} interval({self.low!r},{self.high!r})"

    @property
    def is_interval(self) -> bool:
        """Whether the values are an interval."""
        return not self.texts

    @property
    def examples(self) -> list[str]:
        """The values to check: every listed value, or the two ends of an interval."""
        return list(self.texts) or [self.text_of(self.low), self.text_of(self.high)]

    def rounded(self, value: float) -> float:
        """Return a number of the interval, rounded to DIGITS significant digits. The result is inside the interval."""
        if self.is_integer:
            return int(value)
        short = float(f"{value:.{DIGITS}g}")
        return min(max(short, self.low), self.high)

    def text_of(self, value: object) -> str:
        """Return the text of a value, as it is written in an override."""
        if isinstance(value, str):
            return value
        assert isinstance(value, float | int)
        return repr(self.rounded(value))


@plain_dataclass(frozen=True)
class Space:
    """The varied keys of a sweep, and the overrides that all runs of the sweep have in common."""

    dimensions: Sequence[Dimension]
    fixed: Sequence[str]  # the overrides KEY=VALUE of every run, in Hydra's grammar

    @property
    def keys(self) -> list[str]:
        """The varied keys."""
        return [dimension.key for dimension in self.dimensions]

    @property
    def by_bits(self) -> bool:
        """Whether to compare runs by bits per byte instead of loss, because their tokens may differ."""
        roots = [key.lstrip("+").partition(".")[0] for key in self.keys]
        if any(line.startswith("budget=") for line in self.fixed):  # budget= chooses a tokenizer
            return True
        return any(root in keys_with("changes_tokens") for root in roots)

    @property
    def n_points(self) -> int:
        """The number of points of the grid."""
        return math.prod(len(dimension.texts) for dimension in self.dimensions)

    def point(self, number: int) -> dict[str, str]:
        """Return the values of one grid point by key. The last dimension changes fastest from point to point."""
        points = itertools.product(*(dimension.texts for dimension in self.dimensions))
        texts = next(itertools.islice(points, number, None))
        return dict(zip(self.keys, texts, strict=True))

    def overrides(self, texts: Mapping[str, str]) -> list[str]:
        """Return all overrides of the run with these values of the varied keys."""
        return [*self.fixed, *(f"{key}={text}" for key, text in texts.items())]

    def examples(self) -> list[list[str]]:
        """Return the overrides of a few runs that cover every value of every key.

        The first run has the first value of each key. Each other run changes the value of one key. Checking all
        combinations could take too long.
        """
        first = {dimension.key: dimension.examples[0] for dimension in self.dimensions}
        runs = [self.overrides(first)]
        for dimension in self.dimensions:
            for text in dimension.examples[1:]:
                runs.append(self.overrides(first | {dimension.key: text}))
        return runs
