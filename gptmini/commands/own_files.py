"""Configuration files of the user's own folder: found and read before Hydra composes them.

Hydra passes over a folder that is no group, and over a file that has a namesake among gptmini's.
"""

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path

from gptmini.checks import UserError, shown
from gptmini.commands.configuration import (
    CONFIGS,
    UsedFile,
    as_typed,
    folders_of,
    groups_of_gptmini,
    parse_overrides,
    read_yaml,
    used_files,
)
from gptmini.commands.keys import choices_of_groups
from gptmini.commands.own_keys import check_own_keys

# How alike the names of a folder and of a group must be for the folder to count as mistyped, by difflib's measure from
# 0 to 1. "optimiser" and "experiments" are more alike to their groups than this; "logs" and "logger" are not.
MISTYPED = 0.75


def check_own_files(command: str, overrides: Sequence[str], config_dir: str | None) -> None:
    """Check the files of the user's own folder that a command line uses, and the names of the folders in it.

    Args:
        command: the name of the root configuration.
        overrides: what was typed, without sweeps.
        config_dir: the user's own folder; None if there is none, and nothing to check.

    Raises UserError: a file that cannot be read or is hidden by one of gptmini's, a key that no configuration has, a
    value where keys are needed, or a folder whose name nearly is that of a group.
    """
    if config_dir is None:
        return

    folder = Path(config_dir)
    _check_folder_names(folder)

    parsed = parse_overrides(overrides)
    choices = choices_of_groups(parsed, folders_of(config_dir))
    for choice in choices:
        name = str(choice.value()).removesuffix(".yaml")
        _check_readable(f"{choice.key_or_group}/{name}", folder, above=())

    used = used_files(command, [as_typed(choice) for choice in choices], config_dir)
    for file in used:
        _check_not_hidden(file, folder)
    check_own_keys(used)


def _check_folder_names(folder: Path) -> None:
    """Raise UserError for a folder of configuration files whose name is nearly, but not quite, that of a group."""
    groups = groups_of_gptmini()
    for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
        close = difflib.get_close_matches(inner.name, groups, n=1, cutoff=MISTYPED)
        if close and inner.name not in groups and any(inner.glob("*.yaml")):
            raise UserError(f"{inner} must have the name of a group; the nearest is {close[0]}")


def _check_readable(name: str, folder: Path, *, above: tuple[str, ...]) -> None:
    """Raise UserError unless a file of the user's own, and every file that its defaults name, can be read.

    Args:
        name: the path of the file in its folder without .yaml, as model/wide; the file need not exist.
        folder: the user's own folder.
        above: the names of the files whose defaults led to this file.
    """
    if (CONFIGS / f"{name}.yaml").is_file():
        return

    file = folder / f"{name}.yaml"
    if not file.is_file():
        other = file.with_name(f"{file.stem}.yml")
        if other.is_file():
            raise UserError(f"{other} must be named {file.name}")
        return

    if name in above:
        circle = " -> ".join((*above[above.index(name) :], name))
        raise UserError(f"{file} must not lead back to itself by its defaults, got {circle}")

    tree = read_yaml(file)
    _check_names(file, tree)
    for named in _named_by_defaults(file, tree, group=name.rpartition("/")[0]):
        _check_readable(named, folder, above=(*above, name))


def _check_names(file: Path, tree: object) -> None:
    """Raise UserError unless every key in a file is a name or a number, as OmegaConf needs."""
    if isinstance(tree, list):
        branches = tree
    elif isinstance(tree, dict):
        branches = list(tree.values())
        for key in tree:
            if not isinstance(key, str | int | float):
                raise UserError(f"{file} must have names for keys, got {_as_yaml(key)}")
    else:
        return

    for branch in branches:
        _check_names(file, branch)


def _as_yaml(key: object) -> str:
    """A key that is no name, as its user wrote it in YAML."""
    return "null" if key is None else str(key)


def _named_by_defaults(file: Path, tree: dict, *, group: str) -> Iterator[str]:
    """The configuration files that the defaults of a file name, without .yaml, as model/modern.

    Args:
        file: the file, for the error message.
        tree: its keys and values.
        group: the folder of the file, in which names without a leading slash are looked up.

    Raises UserError: the defaults are no list.
    """
    defaults = tree.get("defaults", [])
    if not isinstance(defaults, list):
        raise UserError(
            f"{file} must list its defaults, as in defaults: [NAME, _self_], got {shown(defaults)}"
        )

    for entry in defaults:
        # An entry is an option of the file's own group, as in "modern", or a choice, as in "override /model: wide".
        choices = entry if isinstance(entry, dict) else {"": entry}
        for key, chosen in choices.items():
            words = str(key).split(" ")
            place = words[-1].partition("@")[0]
            options = chosen if isinstance(chosen, list) else [chosen]
            for option in options:
                name = str(option).partition("@")[0].removesuffix(".yaml")
                path = f"{place}/{name}" if place else name
                yield path[1:] if path.startswith("/") else f"{group}/{path}"


def _check_not_hidden(file: UsedFile, folder: Path) -> None:
    """Raise UserError where Hydra takes a file of gptmini's instead of the user's own file of the same name."""
    own = folder / f"{file.name}.yaml"
    if not file.is_own and own.is_file() and own.read_bytes() != file.path.read_bytes():
        raise UserError(f"{own} must have another name: gptmini's own {file.name} is used instead")
