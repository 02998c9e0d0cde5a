"""Read the search space of a sweep from the command line and from its file, in the grammar of Hydra's -m."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override

from gptmini.configuration.compose import quote_for_hydra, quoted
from gptmini.configuration.request import key_of
from gptmini.key_table import keys_with
from gptmini.sweep import Space
from gptmini.system.errors import UserError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


def is_sweep_override(line: str) -> bool:
    """Whether an override is for the sweep itself. Every other override is for gptmini train."""
    return key_of(line).partition(".")[0] == "sweep"


def space_of(params: Mapping[str, Any], overrides: Sequence[str]) -> Space:
    """Read the search space from sweep.params and from the overrides for gptmini train, which replace entries of it.

    Raises UserError if no key varies, or if a varied key must be the same for all runs.
    """
    overridden = {key_of(line) for line in overrides}
    described = [
        _line(key, values) for key, values in params.items() if key_of(key) not in overridden
    ]

    dimensions: dict[str, BaseDistribution] = {}
    lines: dict[str, str] = {}
    parser = OverridesParser.create()
    for line in quote_for_hydra([*described, *overrides], multirun=True):
        override = parser.parse_override(line)
        _check(override)
        key = override.get_key_element()
        # The last override of a key counts, as in Hydra.
        dimensions.pop(key, None)
        lines[key] = line
        if override.is_sweep_override():
            dimensions[key] = _values(override)

    if not dimensions:
        raise UserError(
            "a sweep must vary a key; write optimizer.lr=0.01,0.02, or sweep=NAME for a space from a file"
        )
    return Space(
        dimensions,
        tried={key: lines[key].partition("=")[2] for key in dimensions},
        fixed=[line for key, line in lines.items() if key not in dimensions],
    )


def _line(key: str, values: object) -> str:
    """Return an entry of sweep.params as an override. Text stays unchanged. A list becomes a choice of its values."""
    if isinstance(values, list):
        return f"{key}=choice({','.join(map(_value, values))})"
    return f"{key}={values if isinstance(values, str) else _value(values)}"


def _value(value: object) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    is_plain = re.fullmatch(r"[\w.+/-]+", value) is not None
    return value if is_plain else quoted(value)


def _check(override: Override) -> None:
    key = override.key_or_group
    if key in ("resume", "folder"):
        raise UserError(
            f"{key}= is for a single run; to resume a sweep, repeat its command; its folder is runs_dir=/name="
        )
    if key in keys_with("of_sweep") and override.is_sweep_override():
        raise UserError(f"{key} must be the same for all runs of a sweep")
    if key.startswith(("hydra.", "hydra/")):
        raise UserError(
            f"{override.input_line} applies only to gptmini train -m; in a sweep, use --jobs"
        )


def _values(override: Override) -> "BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    value = override.value()
    key = override.get_key_element()
    unknown = sorted(str(tag) for tag in getattr(value, "tags", ()) if tag != "log")
    if unknown:
        raise UserError(f"the tag of {key} must be 'log', got {unknown[0]}")

    if isinstance(value, IntervalSweep):
        is_integer = type(value.start) is int and type(value.end) is int
        kind: Any = IntDistribution if is_integer else FloatDistribution
        try:
            return kind(value.start, value.end, log="log" in value.tags)
        except ValueError as error:
            raise UserError(f"{override.input_line} has no values: {error}") from None

    if isinstance(value, Glob):
        raise UserError(f"{override.input_line} must list the options, such as {key}=a,b")
    texts = tuple(map(str, override.sweep_string_iterator()))
    if not texts or len(set(texts)) < len(texts):
        raise UserError(f"{override.input_line} must list at least one value, and each value once")
    return CategoricalDistribution(texts)
