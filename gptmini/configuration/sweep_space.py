"""Read the search space of a sweep from the command line and from its file, in the grammar of Hydra's -m."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gptmini.configuration.overrides import key_of, quote_for_hydra, quoted
from gptmini.key_table import keys_with
from gptmini.sweep import Dimension, Space
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

# Maximum number of values that a sweep lists for one key. To check more values would take minutes.
MOST_VALUES = 1000


def is_sweep_override(line: str) -> bool:
    """Whether an override is for the sweep itself. Every other override is for gptmini train."""
    return key_of(line).partition(".")[0] == "sweep"


def space_of(params: Mapping[str, Any], typed: Sequence[str]) -> Space:
    """Read the search space.

    Args:
        params: the values of each key, from sweep.params in the configuration.
        typed: overrides for gptmini train. An override of a key replaces the entry of this key in params.

    Raises UserError if no key varies, or if a varied key must be the same for all runs.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    overridden = {key_of(line) for line in typed}
    described = [
        _line(key, values) for key, values in params.items() if key_of(key) not in overridden
    ]

    dimensions: dict[str, Dimension] = {}
    fixed: dict[str, str] = {}
    parser = OverridesParser.create()
    for line in quote_for_hydra([*described, *typed], multirun=True):
        override = parser.parse_override(line)
        _check(override)
        key = override.get_key_element()
        # The last override of a key counts, as in Hydra.
        dimensions.pop(key, None)
        fixed.pop(key, None)
        if override.is_sweep_override():
            dimensions[key] = _dimension(override)
        else:
            fixed[key] = line

    if not dimensions:
        raise UserError(
            "a sweep must vary at least one key; write optimizer.lr=0.01,0.02, or sweep=NAME to use a space from a file"
        )
    return Space(list(dimensions.values()), list(fixed.values()))


def _line(key: str, values: object) -> str:
    """Return an entry of sweep.params as an override. Text stays unchanged. A list becomes a choice of its values."""
    if isinstance(values, list):
        return f"{key}=choice({','.join(map(_value, values))})"
    return f"{key}={values if isinstance(values, str) else _value(values)}"


def _value(value: object) -> str:
    """Return a YAML value in Hydra's grammar."""
    if not isinstance(value, str):
        return json.dumps(value)
    is_plain = re.fullmatch(r"[\w.+/-]+", value) is not None
    return value if is_plain else quoted(value)


def _check(override: "Override") -> None:
    """Raise UserError if a sweep cannot pass an override to its runs."""
    key = override.key_or_group
    if key == "resume":
        raise UserError(
            "resume= is for a single run; to resume a sweep, repeat the command of the sweep"
        )
    if key == "folder":
        raise UserError(
            "folder= is for a single run; set runs_dir= and name= for the folder of a sweep"
        )
    if key in keys_with("of_sweep") and override.is_sweep_override():
        raise UserError(f"{key} must be the same for all runs of a sweep")
    if key.startswith(("hydra.", "hydra/")):
        raise UserError(
            f"{override.input_line} applies only to gptmini train -m; in a sweep, use --jobs"
        )


def _dimension(override: "Override") -> Dimension:
    """Return the dimension of the search space that an override describes."""
    from hydra.core.override_parser.types import Glob, IntervalSweep, RangeSweep

    value = override.value()
    key = override.get_key_element()
    unknown = sorted(str(tag) for tag in getattr(value, "tags", ()) if tag != "log")
    if unknown:
        raise UserError(f"the tag of {key} must be 'log', got {unknown[0]}")

    if isinstance(value, IntervalSweep):
        assert value.start is not None
        assert value.end is not None
        return Dimension(
            key,
            low=value.start,
            high=value.end,
            is_integer=type(value.start) is int and type(value.end) is int,
            is_log="log" in value.tags,
        )

    if isinstance(value, Glob):
        raise UserError(f"{override.input_line} must list the options, such as {key}=a,b")
    if isinstance(value, RangeSweep) and value.step:
        n_values = ((value.stop or 0) - (value.start or 0)) / value.step
        if n_values > MOST_VALUES:
            raise UserError(
                f"{key} must have at most {MOST_VALUES:,} values, got {n_values:,.0f}; use interval(LOW, HIGH)"
            )
    texts = tuple(map(str, override.sweep_string_iterator()))
    if not texts:
        raise UserError(f"{override.input_line} has no values")
    return Dimension(key, texts=texts)
