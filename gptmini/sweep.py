"""The settings of a sweep and its search space: the values of each key, and the overrides that all runs have in common.

Optuna is imported only on use, because it is slow.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from random import Random
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass

from gptmini.settings import STRICT
from gptmini.system.errors import UserError

# Significant digits of a number that is drawn from an interval. More digits would make commands hard to read.
DIGITS = 4
SEED = "seed"  # the key of the random seed; the table shows means over the seeds


@plain_dataclass(frozen=True)
class Space:
    """The varied keys of a sweep, and the overrides that all runs of the sweep have in common."""

    dimensions: Mapping[str, Any]  # the values of each varied key, as a distribution of Optuna
    tried: Mapping[str, str]  # the values of each varied key, as the user wrote them
    fixed: Sequence[str]  # the overrides KEY=VALUE of every run, in Hydra's grammar

    @property
    def lists(self) -> dict[str, tuple[str, ...]]:
        """The values of each key that has a list of values, instead of an interval."""
        return {key: dim.choices for key, dim in self.dimensions.items() if hasattr(dim, "choices")}

    def point(self, number: int) -> dict[str, str]:
        """Return the values of one point of the grid by key. The last key changes fastest from point to point."""
        points = itertools.product(*self.lists.values())
        point = next(itertools.islice(points, number, None))
        return dict(zip(self.lists, point, strict=True))

    def draw(
        self, seed: int, number: int, finished: Sequence[tuple[Mapping[str, str], float]]
    ) -> dict[str, str]:
        """Draw the values of a trial, as on the command line.

        Optuna's Tree-structured Parzen Estimator prefers values near the good ones of the finished trials, which are
        given as values and loss. Without finished trials, the values depend only on the seed and the number.
        """
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        own_seed = Random(f"{seed}/{number}").getrandbits(32)
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=own_seed))
        for values, loss in finished:
            params = {
                key: text if key in self.lists else float(text) for key, text in values.items()
            }
            trial = optuna.create_trial(
                params=params,
                distributions=dict(self.dimensions),
                value=loss,
            )
            study.add_trial(trial)
        params = study.ask(dict(self.dimensions)).params
        return {key: text_of(params[key], dim) for key, dim in self.dimensions.items()}

    def overrides(self, values: Mapping[str, str]) -> list[str]:
        """Return all overrides of the run with these values of the varied keys."""
        return [*self.fixed, *(f"{key}={text}" for key, text in values.items())]

    def examples(self) -> list[list[str]]:
        """Return the overrides of a few runs that cover every value of every list, and both ends of every interval.

        The first run has the first value of each key. Each other run changes one key, because all combinations would
        take too long.
        """
        examples = {
            key: self.lists.get(key) or [text_of(dim.low, dim), text_of(dim.high, dim)]
            for key, dim in self.dimensions.items()
        }
        first = {key: texts[0] for key, texts in examples.items()}
        others = [first | {key: text} for key, texts in examples.items() for text in texts[1:]]
        return [self.overrides(values) for values in (first, *others)]


def text_of(value: Any, interval: Any) -> str:
    """Return a value as it is written in an override. A float has few digits and stays inside its interval."""
    if isinstance(value, float):
        value = min(max(float(f"{value:.{DIGITS}g}"), interval.low), interval.high)
    return str(value)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SweepSettings:
    """Settings of a sweep, from the configuration group sweep."""

    name: str  # the name of the sweep, unless name= overrides it
    sampler: Literal["auto", "grid", "random", "tpe"]
    trials: PositiveInt | None  # total number of runs; None for every point of the grid
    seed: NonNegativeInt
    retries: NonNegativeInt  # how often to restart a run whose process was killed
    params: dict[str, Any]  # values by key, from a configuration file

    def sampler_of(self, space: Space) -> str:
        """Return the sampler. 'auto' means 'grid' if every value is listed, and 'tpe' otherwise.

        Raises UserError if a grid has an interval, or if another sampler has no number of trials.
        """
        intervals = [key for key in space.dimensions if key not in space.lists]
        sampler = self.sampler
        if sampler == "auto":
            sampler = "tpe" if intervals else "grid"

        if sampler == "grid" and intervals:
            raise UserError(
                f"sweep.sampler=grid requires values of {intervals[0]}, got an interval; set sweep.sampler=random"
            )
        if sampler != "grid" and self.trials is None:
            raise UserError(
                f"the sampler '{sampler}' requires a number of trials; set sweep.trials=N"
            )
        return sampler

    def n_trials_of(self, space: Space) -> int:
        """Return the total number of trials of the sweep."""
        n_points = math.prod(map(len, space.lists.values()))
        if self.sampler_of(space) == "grid":
            return min(n_points, self.trials or n_points)
        assert self.trials is not None  # checked by sampler_of
        return self.trials
