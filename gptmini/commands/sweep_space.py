"""The space of a sweep, from the files and the command line: what is varied, and what holds for every run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gptmini.checks import UserError
from gptmini.commands.configuration import as_typed, composer, key_typed
from gptmini.commands.jobs import values_of_sweep
from gptmini.commands.quoting import in_hydras_grammar

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

    from gptmini.search import Dimension

# Groups and keys that are the sweep's own; every other one is for gptmini train.
OWN = ("sweep", "launcher")
# Keys that name the place of all runs of a sweep.
PLACES = ("name", "runs_dir")


@dataclass(frozen=True)
class Space:
    """What the runs of a sweep have in common, and what is varied."""

    dimensions: "list[Dimension]"
    fixed: list[str]  # KEY=VALUE for every run, in Hydra's grammar

    def overrides(self, texts: Mapping[str, str]) -> list[str]:
        """The overrides of the run with these values, by key."""
        return [*self.fixed, *(f"{key}={text}" for key, text in texts.items())]

    @property
    def first(self) -> dict[str, str]:
        """The first value of every key."""
        return {dimension.key: dimension.examples[0] for dimension in self.dimensions}


def is_own(line: str) -> bool:
    """Whether an override is for the sweep itself."""
    key = key_typed(line).lstrip("~")
    return key.partition(".")[0] in OWN


def space_of(params: Mapping[str, Any], typed: Sequence[str], config_dir: str | None) -> Space:
    """Read what is varied.

    Args:
        params: the key sweep.params of the configuration: values by key.
        typed: overrides for gptmini train, which replace those of params.
        config_dir: a folder of the user's own that adds options to the groups.

    Raises UserError: nothing is varied, or something that every run must have alike.
    """
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    keys_typed = {key_typed(line) for line in typed}
    described = [
        _line(key, values) for key, values in params.items() if key_typed(key) not in keys_typed
    ]
    lines = in_hydras_grammar([*described, *typed], multirun=True)

    dimensions = []
    fixed = []
    with composer(config_dir):
        # A parser with a loader of configurations can list the options of a group for glob(*).
        parser = OverridesParser.create(GlobalHydra.instance().config_loader())
        for override in parser.parse_overrides(lines):
            _check(override)
            if override.is_sweep_override():
                dimensions.append(_dimension(override))
            else:
                fixed.append(as_typed(override))

    if not dimensions:
        raise UserError(
            "a sweep must vary something, as in optimizer.lr=0.01,0.02; sweep=NAME takes a space from a file"
        )
    return Space(dimensions, fixed)


def _line(key: str, values: object) -> str:
    """An entry of sweep.params as it is typed."""
    if values is None or type(values) is bool:
        return f"{key}={str(values).lower().replace('none', 'null')}"
    if isinstance(values, list):
        return f"{key}=choice({','.join(map(str, values))})"
    return f"{key}={values}"


def _check(override: "Override") -> None:
    """Raise UserError for an override that a sweep cannot pass on to its runs."""
    key = override.key_or_group
    if key == "resume":
        raise UserError("resume= goes on with one run; a sweep goes on when it is typed again")
    if key in PLACES and override.is_sweep_override():
        raise UserError(f"{key} must be the same for all runs of a sweep")
    if key.startswith(("hydra.", "hydra/")):
        raise UserError(f"{as_typed(override)} is for gptmini train -m; a sweep has launcher=")


def _dimension(override: "Override") -> "Dimension":
    """The dimension that the override of a sweep describes."""
    from hydra.core.override_parser.types import IntervalSweep

    from gptmini.search import Dimension

    value = override.value()
    key = override.get_key_element()
    if not isinstance(value, IntervalSweep):
        return Dimension(key, texts=tuple(map(str, values_of_sweep(override))))

    assert value.start is not None
    assert value.end is not None
    return Dimension(
        key,
        low=value.start,
        high=value.end,
        is_whole=type(value.start) is int and type(value.end) is int,
        is_log="log" in value.tags,
    )
