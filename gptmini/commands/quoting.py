"""Overrides as a shell's user types them, turned into the grammar of Hydra's overrides.

Hydra's grammar has no umlauts, and gives commas, parentheses and more a meaning of its own. A path or a name may hold
any of them, so whatever the grammar does not take as one value is quoted whole before Hydra sees it.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini.commands.configuration import parser, quoted
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

# Keys whose values are paths: a ~ at their start is the home folder.
PATHS = (
    "data_dir",
    "runs_dir",
    "data.path",
    "data.val_path",
    "data.folder",
    "resume",
    "init_from",
    "tokenizer.path",
)
# Keys that take a list of paths too.
LISTS = ("data.path", "data.val_path")
# Keys whose values are texts and never numbers, lists or, without -m, sweeps.
LITERAL = (
    *PATHS,
    "name",
    "data.name",
    "data.dataset",
    "data.subset",
    "data.split",
    "data.val_split",
    "data.revision",
)

# Values in a notation of Hydra's: lists, mappings, quoted texts, and in a sweep the functions that make one.
HYDRAS = re.compile(r"""[\[{'"]""")
SWEEPS = re.compile(r"(choice|range|interval|glob|shuffle|sort|tag)\(")

INTERPOLATION = re.compile(r"\$\{[^{}]*\}")


def in_hydras_grammar(typed: Iterable[str], *, multirun: bool = False) -> list[str]:
    """Overrides that mean to Hydra what a shell's user means by the typed ones.

    A value is quoted whole if Hydra's grammar cannot read it, or if its key holds a path or a name and Hydra would read
    anything but text or null. A ~ at the start of a path becomes the home folder. Every other override stays as it is.

    Args:
        typed: KEY=VALUE or GROUP=NAME each.
        multirun: whether values are sweeps, whose values are separated by commas.

    Raises UserError: a value that no configuration can hold.
    """
    return [_override(line, multirun=multirun) for line in typed]


def expand_home(config: "DictConfig") -> None:
    """Replace the ~ with which a path in a composed configuration begins, as one from a file of the user's own may."""
    from omegaconf import OmegaConf

    for name in PATHS:
        value = OmegaConf.select(config, name)
        if isinstance(value, str) and value.startswith("~"):
            OmegaConf.update(config, name, _expanded(name, value))


def override_of(key: str, value: str) -> str:
    """KEY=VALUE that a user may type for a text, quoted for Hydra only where the text would not be read as it is."""
    plain = f"{key}={value}"
    (line,) = in_hydras_grammar([plain])
    override = _parsed(line)
    if override is not None and override.value() == value:
        return plain
    return f"{key}={quoted(value)}"


def is_sweep(line: str) -> bool:
    """Whether Hydra reads an override as several values of its key."""
    override = _parsed(line)
    return override is not None and override.is_sweep_override()


def _override(line: str, *, multirun: bool) -> str:
    """One override in Hydra's grammar."""
    key, equals, value = line.partition("=")
    if not equals or key.startswith("~"):  # ~KEY deletes a value
        return line
    if multirun and SWEEPS.match(value):
        return line

    # Commas separate the values of a sweep, even where Hydra cannot read one of the values, or reads a number.
    override = _parsed(line)
    is_plain_list = key.lstrip("+") in LITERAL and not set(value) & set("'\"\\")
    is_divided = multirun and (override is None or is_plain_list)
    values = value.split(",") if is_divided else [value]
    return f"{key}={','.join(_value(key, part, multirun=multirun) for part in values)}"


def _value(key: str, value: str, *, multirun: bool) -> str:
    """The value of a key in Hydra's grammar."""
    name = key.lstrip("+")
    override = _parsed(f"{key}={value}")
    if override is None:
        _check_interpolations(key, value)
        is_hydras = name not in LITERAL and HYDRAS.match(value)
        return value if is_hydras else quoted(_expanded(name, value))
    if name not in LITERAL:
        return value

    if override.is_sweep_override():
        return value if multirun else quoted(value)
    read = override.value()
    if isinstance(read, str):
        # Hydra drops spaces at both ends of a value that has no quotes.
        text = value if read == value.strip() else read
        expanded = _expanded(name, text)
        return value if expanded == read else quoted(expanded)
    is_list = name in LISTS and isinstance(read, list) and not os.path.lexists(value)
    return value if read is None or is_list else quoted(value)


def _check_interpolations(key: str, value: str) -> None:
    """Raise UserError for a ${ that no } ends: a configuration has no way to hold it as text."""
    # The innermost are taken out first, because an interpolation may hold others.
    rest = value
    while INTERPOLATION.search(rest):
        rest = INTERPOLATION.sub("", rest)
    if "${" in rest:
        raise UserError(f"{key} must hold no ${{ but in ${{NAME}}, got {value!r}; rename the file")


def _expanded(name: str, value: str) -> str:
    """The value of a key; a path that begins with ~ with the home folder, if there is one, in the place of the ~."""
    if name not in PATHS or not value.startswith("~"):
        return value
    try:
        return str(Path(value).expanduser())
    except RuntimeError:  # no user has this name, so that the ~ begins the name of a file
        return value


def _parsed(line: str) -> "Override | None":
    """An override as Hydra reads it; None where Hydra cannot."""
    from hydra.errors import HydraException

    try:
        return parser().parse_override(line)
    except HydraException:
        return None
