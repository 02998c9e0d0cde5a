"""The space of a sweep, from the files and the command line: what is varied, and what holds for every run."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gptmini.commands.configuration import (
    as_typed,
    composer,
    key_typed,
    parse_overrides,
    quoted,
)
from gptmini.commands.jobs import values_of_sweep
from gptmini.commands.quoting import in_hydras_grammar
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

    from gptmini.search import Dimension

# Groups and keys that are the sweep's own; every other one is for gptmini train.
OWN = ("sweep", "launcher")
# Values of one key that can be listed; more would take minutes to check.
MOST_VALUES = 1000
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
    parse_overrides(lines)  # tells mistakes in words of its own

    dimensions: dict[str, Dimension] = {}
    fixed: dict[str, str] = {}
    with composer(config_dir):
        # A parser with a loader of configurations can list the options of a group for glob(*).
        parser = OverridesParser.create(GlobalHydra.instance().config_loader())
        for override in parser.parse_overrides(lines):
            _check(override)
            key = override.get_key_element()
            # Of two overrides of one key the later counts, as it does for Hydra.
            dimensions.pop(key, None)
            fixed.pop(key, None)
            if override.is_sweep_override():
                dimensions[key] = _dimension(override)
            else:
                fixed[key] = as_typed(override)

    if not dimensions:
        raise UserError(
            "a sweep must vary something, as in optimizer.lr=0.01,0.02; sweep=NAME takes a space from a file"
        )
    return Space(list(dimensions.values()), list(fixed.values()))


def _line(key: str, values: object) -> str:
    """An entry of sweep.params as it is typed: a text is typed as it stands, a list is a choice of its values."""
    if isinstance(values, list):
        return f"{key}=choice({','.join(map(_value, values))})"
    return f"{key}={values if isinstance(values, str) else _value(values)}"


def _value(value: object) -> str:
    """A value of YAML in Hydra's grammar; UserError for a mapping or a list, which no sweep varies."""
    if value is None or type(value) is bool:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str):
        raise UserError(f"sweep.params must hold numbers and texts, got {value!r}")
    is_plain = re.fullmatch(r"[\w.+/-]+", value) is not None
    return value if is_plain else quoted(value)


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
    from hydra.core.override_parser.types import IntervalSweep, RangeSweep

    from gptmini.search import Dimension

    value = override.value()
    key = override.get_key_element()
    unknown = sorted(str(tag) for tag in getattr(value, "tags", ()) if tag != "log")
    if unknown:
        raise UserError(f"the tag of {key} must be log, got {unknown[0]}")
    if isinstance(value, RangeSweep) and value.step:
        n_values = ((value.stop or 0) - (value.start or 0)) / value.step
        if n_values > MOST_VALUES:
            raise UserError(
                f"{key} must have at most {MOST_VALUES:,} values, got {n_values:,.0f}; an interval has any number"
            )
    if not isinstance(value, IntervalSweep):
        texts = tuple(map(str, values_of_sweep(override)))
        if not texts:
            raise UserError(f"{as_typed(override)} stands for no value")
        return Dimension(key, texts=texts)

    assert value.start is not None
    assert value.end is not None
    return Dimension(
        key,
        low=value.start,
        high=value.end,
        is_whole=type(value.start) is int and type(value.end) is int,
        is_log="log" in value.tags,
    )
