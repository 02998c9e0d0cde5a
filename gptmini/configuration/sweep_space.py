"""What a sweep varies, from the command line and from its file, in the grammar of Hydra's -m."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gptmini.configuration.overrides import in_hydras_grammar, key_of, quoted
from gptmini.key_table import keys_with
from gptmini.sweep import Dimension, Space
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

# Values of one key that can be listed; more would take minutes to check.
MOST_VALUES = 1000


def is_own(line: str) -> bool:
    """Whether an override is for the sweep itself; every other one is for gptmini train."""
    return key_of(line).partition(".")[0] == "sweep"


def space_of(params: Mapping[str, Any], typed: Sequence[str]) -> Space:
    """Read what is varied.

    Args:
        params: the key sweep.params of the configuration: values by key.
        typed: overrides for gptmini train, which replace those of params.

    Raises UserError: nothing is varied, or something that every run must have alike.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    keys_typed = {key_of(line) for line in typed}
    described = [
        _line(key, values) for key, values in params.items() if key_of(key) not in keys_typed
    ]

    dimensions: dict[str, Dimension] = {}
    fixed: dict[str, str] = {}
    parser = OverridesParser.create()
    for line in in_hydras_grammar([*described, *typed], multirun=True):
        override = parser.parse_override(line)
        _check(override)
        key = override.get_key_element()
        # Of two overrides of one key the later counts, as it does for Hydra.
        dimensions.pop(key, None)
        fixed.pop(key, None)
        if override.is_sweep_override():
            dimensions[key] = _dimension(override)
        else:
            fixed[key] = line

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
    """A value of YAML in Hydra's grammar."""
    if not isinstance(value, str):
        return json.dumps(value)
    is_plain = re.fullmatch(r"[\w.+/-]+", value) is not None
    return value if is_plain else quoted(value)


def _check(override: "Override") -> None:
    """Raise UserError for an override that a sweep cannot pass on to its runs."""
    key = override.key_or_group
    if key == "resume":
        raise UserError("resume= goes on with one run; a sweep goes on when it is typed again")
    if key == "folder":
        raise UserError(
            "folder= is the place of one run; runs_dir= and name= say where those of a sweep are"
        )
    if key in keys_with("of_sweep") and override.is_sweep_override():
        raise UserError(f"{key} must be the same for all runs of a sweep")
    if key.startswith(("hydra.", "hydra/")):
        raise UserError(f"{override.input_line} is for gptmini train -m; a sweep has --jobs")


def _dimension(override: "Override") -> Dimension:
    """The dimension that the override of a sweep describes."""
    from hydra.core.override_parser.types import Glob, IntervalSweep, RangeSweep

    value = override.value()
    key = override.get_key_element()
    unknown = sorted(str(tag) for tag in getattr(value, "tags", ()) if tag != "log")
    if unknown:
        raise UserError(f"the tag of {key} must be log, got {unknown[0]}")

    if isinstance(value, IntervalSweep):
        assert value.start is not None
        assert value.end is not None
        return Dimension(
            key,
            low=value.start,
            high=value.end,
            is_whole=type(value.start) is int and type(value.end) is int,
            is_log="log" in value.tags,
        )

    if isinstance(value, Glob):
        raise UserError(f"{override.input_line} must list the options, as in {key}=a,b")
    if isinstance(value, RangeSweep) and value.step:
        n_values = ((value.stop or 0) - (value.start or 0)) / value.step
        if n_values > MOST_VALUES:
            raise UserError(
                f"{key} must have at most {MOST_VALUES:,} values, got {n_values:,.0f}; an interval has any number"
            )
    texts = tuple(map(str, override.sweep_string_iterator()))
    if not texts:
        raise UserError(f"{override.input_line} stands for no value")
    return Dimension(key, texts=texts)
