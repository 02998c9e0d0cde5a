"""Which values a sweep tries next: Optuna's study, kept in a journal that survives a kill at any instant.

One process at a time asks and tells, so the journal needs no server and no database, and lies on any shared folder.
"""

import hashlib
import importlib.util
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.checks import UserError, text, whole
from gptmini.search.space import Dimension, points_of_grid

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, Trial

SAMPLERS = ("auto", "grid", "random", "tpe")
PRUNERS = (None, "median", "hyperband")
NAME = "sweep"  # of the study in its journal
PACKAGES = ("optuna", "submitit")


def check_installed() -> None:
    """Raise UserError unless the packages of the extra `sweep` are installed."""
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise UserError(f"gptmini sweep needs {package}: pip install 'gptmini[sweep]'")


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """How a sweep chooses values, from the group sweep of the configuration."""

    name: str  # of the sweep and of its runs, unless another one is typed
    sampler: str  # auto, grid, random or tpe
    trials: int | None  # how many runs in all; None: every point of a grid
    seed: int
    retries: int  # how often a run whose process was killed is started again
    pruner: str | None  # median or hyperband
    pruner_startup: int  # runs that must be finished before another one may be pruned
    pruner_warmup: int  # steps of a run before which it is not pruned

    def __post_init__(self) -> None:
        """Raise UserError for a value of the wrong type or out of range."""
        text("sweep.name", self.name)
        if self.sampler not in SAMPLERS:
            raise UserError(
                f"sweep.sampler must be one of {', '.join(SAMPLERS)}, got {self.sampler!r}"
            )
        if self.pruner not in PRUNERS:
            raise UserError(f"sweep.pruner must be median, hyperband or null, got {self.pruner!r}")
        whole("sweep.trials", self.trials, null="every point of a grid")
        for name in ("seed", "retries", "pruner_startup", "pruner_warmup"):
            whole(f"sweep.{name}", getattr(self, name), least=0)

    def sampler_for(self, dimensions: Sequence[Dimension]) -> str:
        """The sampler that auto stands for: a grid where every value is listed, else tpe.

        Raises UserError: a grid of an interval, or a sampler that would never end.
        """
        intervals = [dimension.key for dimension in dimensions if dimension.is_interval]
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


class Study:
    """The trials of a sweep: values that were tried or are being tried, and what came of them.

    Args:
        folder: of the journal; only one process at a time may use it.
        dimensions: what is varied.
        settings: how values are chosen.
        max_steps: optimizer steps of a whole run.

    Raises UserError: the journal is damaged.
    """

    def __init__(
        self,
        folder: Path,
        dimensions: Sequence[Dimension],
        settings: SearchSettings,
        max_steps: int,
    ) -> None:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._dimensions = list(dimensions)
        self._settings = settings
        self._sampler = settings.sampler_for(dimensions)

        pruner = _pruner_of(settings, max_steps)
        path = folder / "journal.log"
        _mend(path)
        try:
            self._study = optuna.create_study(
                storage=JournalStorage(JournalFileBackend(str(path))),
                study_name=NAME,
                pruner=pruner,
                direction="minimize",
                load_if_exists=True,
            )
        except (ValueError, KeyError, TypeError, AssertionError):
            raise UserError(f"{path} is not the journal of a sweep; move it away") from None
        if self._sampler == "grid":
            self._enqueue_grid()

    @property
    def n_begun(self) -> int:
        """Number of trials that have begun."""
        return len([trial for trial in self.trials if trial.state.name != "WAITING"])

    @property
    def sampler(self) -> str:
        """grid, random or tpe."""
        return self._sampler

    @property
    def n_trials(self) -> int:
        """Number of trials of the whole sweep."""
        n_points = 1
        for dimension in self._dimensions:
            n_points *= len(dimension.texts)
        if self._sampler != "grid":
            assert self._settings.trials is not None
            return self._settings.trials
        return min(n_points, self._settings.trials or n_points)

    @property
    def trials(self) -> "list[FrozenTrial]":
        """All trials in the order of their numbers; state is WAITING, RUNNING, COMPLETE, PRUNED or FAIL."""
        return self._study.get_trials(deepcopy=False)

    def begin(self) -> int:
        """Begin another trial and return its number; its values are those of texts."""
        trial = self._study.ask()
        self._draw(trial)
        return trial.number

    def texts(self, number: int) -> dict[str, str]:
        """The values of a trial by key, as they are typed.

        Those of a trial that was cut off while they were drawn are drawn now, and are what they would have been.
        """
        self._draw(self._open(number))
        params = self.trials[number].params
        return {
            dimension.key: dimension.text_of(params[dimension.key])
            for dimension in self._dimensions
        }

    def report(self, number: int, points: Sequence[tuple[int, float]]) -> None:
        """Tell of a running trial's validations, as (step, value) points; those told before are passed over."""
        trial = self._open(number)
        known = self.trials[number].intermediate_values
        for step, value in points:
            if step not in known:
                trial.report(value, step)

    def should_prune(self, number: int) -> bool:
        """Whether a running trial does so much worse than the others did that it is to be ended."""
        return self._open(number).should_prune()

    def note(self, number: int, **facts: object) -> None:
        """Write facts on a running trial into the journal, which facts_of reads again."""
        trial = self._open(number)
        for name, value in facts.items():
            trial.set_user_attr(name, value)

    def facts_of(self, number: int) -> dict[str, Any]:
        """What note has written on a trial."""
        return self.trials[number].user_attrs

    def finish(self, number: int, value: float) -> None:
        """Write down the result of a trial that has ended as it should."""
        self._study.tell(number, value)

    def prune(self, number: int) -> None:
        """Write down that a trial was ended because it did worse than the others."""
        from optuna.trial import TrialState

        self._study.tell(number, state=TrialState.PRUNED)

    def fail(self, number: int, reason: str) -> None:
        """Write down that a trial has failed, and why."""
        from optuna.trial import TrialState

        self.note(number, reason=reason)
        self._study.tell(number, state=TrialState.FAIL)

    def give_up(self, number: int, reason: str) -> None:
        """Write down why this start of the sweep does not try a trial again; the next start takes the trial up."""
        self.note(number, reason=reason)

    def take_up(self, number: int) -> None:
        """Forget why a trial was given up by an earlier start of the sweep."""
        if self.facts_of(number).get("reason") is not None:
            self.note(number, reason=None)

    def _open(self, number: int) -> "Trial":
        """A running trial as Optuna's object that draws, reports and notes."""
        from optuna.trial import Trial

        return Trial(self._study, self.trials[number]._trial_id)

    def _draw(self, trial: "Trial") -> None:
        """Give a trial the values that it lacks.

        Each value has a seed of its own, so that a trial is the same whenever, and after whatever kill, it is drawn. A
        sampler that keeps one seed would begin its draws anew after each start.
        """
        if trial.number < len(self.trials) and self.trials[trial.number].state.name != "RUNNING":
            return
        for dimension in self._dimensions:
            seed = _seed_of(self._settings.seed, trial.number, dimension.key)
            self._study.sampler = self._new_sampler(seed)
            dimension.draw(trial)

    def _new_sampler(self, seed: int) -> "BaseSampler":
        from optuna.samplers import RandomSampler, TPESampler

        if self._sampler == "tpe":
            return TPESampler(seed=seed)
        return RandomSampler(seed=seed)

    def _enqueue_grid(self) -> None:
        """Put every point of the grid that is not there yet into the journal, as a trial that waits."""
        n_known = len(self.trials)
        points = list(points_of_grid(self._dimensions))
        for point in points[n_known : self.n_trials]:
            self._study.enqueue_trial(point)


def _pruner_of(settings: SearchSettings, max_steps: int) -> "BasePruner":
    """Optuna's pruner of a sweep's settings."""
    from optuna.pruners import HyperbandPruner, MedianPruner, NopPruner

    if settings.pruner == "median":
        return MedianPruner(
            n_startup_trials=settings.pruner_startup,
            n_warmup_steps=settings.pruner_warmup,
        )
    if settings.pruner == "hyperband":
        least = max(1, settings.pruner_warmup)
        return HyperbandPruner(min_resource=least, max_resource=max(least, max_steps))
    return NopPruner()


def _mend(path: Path) -> None:
    """Take out of a journal what a killed process has left: a last line without an end, and Optuna's lock.

    The caller holds the lock of the whole sweep, so that no other process writes here.
    """
    if not path.exists():
        return
    with suppress(FileNotFoundError):
        path.with_name(f"{path.name}.lock").unlink()

    content = path.read_bytes()
    whole_lines = content[: content.rfind(b"\n") + 1]
    if whole_lines != content:
        with path.open("r+b") as file:
            file.truncate(len(whole_lines))


def _seed_of(seed: int, number: int, key: str) -> int:
    """A seed for one value of one trial."""
    digest = hashlib.sha256(f"{seed}/{number}/{key}".encode()).digest()
    return int.from_bytes(digest[:4], "little")
