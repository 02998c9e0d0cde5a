"""Keys in configuration files of the user's own, which Hydra would merge whether or not anything reads them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gptmini.checks import UserError, shown
from gptmini.commands.configuration import (
    CONFIGS,
    UsedFile,
    groups_of_gptmini,
    items_of,
    read_yaml,
)
from gptmini.commands.keys import (
    HYDRA_GROUPS,
    NAMED_BY_USER,
    PART_GROUPS,
    WITHOUT_CALLS,
    belongs,
    keys_of,
    nearest,
)

# The key that a value is computed from, as in ${width}, ${sizes.width}, ${widths[0]} and ${oc.select:width,64}.
INTERPOLATED = re.compile(r"\$\{(?:oc\.select:\s*)?(\w+(?:\.\w+)*)(?=[}\[,])")

# Keys that tell Hydra how to make an object of a mapping.
INSTANTIATION = ("_target_", "_partial_", "_args_", "_recursive_", "_convert_")


def check_own_keys(files: Sequence[UsedFile]) -> None:
    """Check the keys in those files of a configuration that are the user's own.

    A key must be one that gptmini's files of the configuration define, or one that another value is computed from, as
    width in d_model: ${width}. A part with a class of the user's own may have any keys. A callback or a logger that the
    chosen option leaves out is known here, so that its settings can stand in a file, beside callbacks.NAME=null.

    Args:
        files: all files of the configuration, in the order in which they are merged.

    Raises UserError: names the file, the key, the nearest key and how that is written.
    """
    _check_classes(files)
    keys = _Keys()
    # An option of a sweep that lacks its defaults is told what it lacks, not that its keys are unknown.
    packages = {file.package for file in files if file.is_own}
    of_sweeps = [group for group in ("sweep", "launcher") if group in packages]
    for group in (*PART_GROUPS, *of_sweeps):
        for path in (CONFIGS / group).glob("*.yaml"):
            keys.add(f"{group}.", read_yaml(path))
    for file in files:
        tree = _tree_of(file)
        if file.is_own:
            keys.add_interpolated(tree)
        else:
            keys.add(file.prefix, tree)

    for file in files:
        if file.is_own:
            tree = _tree_of(file)
            _check_own_file(file, tree, keys)
            keys.add(file.prefix, tree)


def _tree_of(file: UsedFile) -> dict:
    """The keys and values that a file adds to a configuration."""
    tree = read_yaml(file.path)
    tree.pop("defaults", None)
    return tree


def _check_classes(files: Sequence[UsedFile]) -> None:
    """Raise UserError unless some file names a class for each group of which the user has an option.

    An option that does not begin from another option has to name the class itself.
    """
    named = set()
    for file in files:
        named.update(f"{file.prefix}{key}" for key in keys_of(_tree_of(file)))

    for file in files:
        group = file.package
        needs_class = group in groups_of_gptmini() and group not in (*WITHOUT_CALLS, *PART_GROUPS)
        if file.is_own and needs_class and f"{group}._target_" not in named:
            raise UserError(
                f"{file.path} must name a class, _target_, or begin from an option of {group} "
                f"that does, as in defaults: [OPTION, _self_]"
            )


@dataclass
class _Keys:
    """The keys that the files read so far define."""

    known: set[str] = field(default_factory=set)
    # Parts with a class of the user's own, such as callbacks.stop, in which any key may stand; and keys that other
    # values are computed from.
    free: set[str] = field(default_factory=set)

    def add(self, prefix: str, tree: dict) -> None:
        """Add the keys of a file, which lie below a prefix, as "model."; empty for the root."""
        keys = [f"{prefix}{key}" for key in keys_of(tree)]
        self.known.update(key for key in keys if not belongs(key, ("hydra",)))
        if prefix:
            self.known.add(prefix[:-1])

    def add_interpolated(self, tree: dict) -> None:
        """Add the keys that values of a file are computed from, as ${width}, and the mappings that hold these keys."""
        for _, value in items_of(tree):
            for name in INTERPOLATED.findall(str(value)):
                self.free.add(name)
                parts = name.split(".")
                self.known.update(".".join(parts[:n]) for n in range(1, len(parts)))

    def has_below(self, key: str) -> bool:
        """Whether a key is known to hold further keys."""
        return any(name.startswith(f"{key}.") for name in self.known)


def _check_own_file(file: UsedFile, tree: dict, keys: _Keys) -> None:
    """Raise UserError unless every key in a file of the user's own takes effect."""
    is_experiment = file.name.startswith("experiment/")
    if is_experiment and file.package:
        raise UserError(
            f"{file.path} must begin with the line # @package _global_, "
            f"without which an experiment changes nothing"
        )

    if belongs(file.package, ("hydra",)):
        return
    if file.package and _has_own_class(file.package, tree, keys):
        return
    _check_mapping(file, tree, file.prefix, keys)


def _has_own_class(part: str, tree: dict, keys: _Keys) -> bool:
    """Whether a mapping names a class of the user's own, or belongs to a part with such a class.

    keys gains the part, or the keys of the class of gptmini's that the mapping names.
    """
    target = tree.get("_target_")
    if target is not None:
        of_gptmini = _keys_of_class(part, target)
        keys.known.update(of_gptmini)
        if not of_gptmini:
            keys.free.add(part)
    return belongs(part, keys.free)


def _keys_of_class(part: str, target: object) -> set[str]:
    """The keys that gptmini's files give a part where they name the class for it; none if no file names the class."""
    group, _, name = part.partition(".")
    found = set()
    for file in (CONFIGS / group).glob("*.yaml"):
        tree = read_yaml(file)
        described = tree.get(name) if name else tree
        if isinstance(described, dict) and described.get("_target_") == target:
            found.update(f"{part}.{key}" for key in keys_of(described))
    return found


def _check_mapping(file: UsedFile, tree: dict, prefix: str, keys: _Keys) -> None:
    """Raise UserError unless every key of a mapping, and of the mappings in it, is known."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if key == "hydra":
            _check_hydras_keys(file.path, value)
            continue
        if isinstance(value, dict) and _has_own_class(key, value, keys):
            continue
        has_users_names = f"{key}." in NAMED_BY_USER and isinstance(value, dict)
        if belongs(key, keys.free) or has_users_names:
            continue

        if "." in str(name):
            raise UserError(f"{file.path} must write {name} as {_nested(str(name))}")
        holds_keys = key in groups_of_gptmini() or keys.has_below(key)
        if holds_keys and not isinstance(value, dict):
            _check_may_replace(file.path, key, value)
        elif key not in keys.known and name not in INSTANTIATION:
            raise UserError(_unknown(file, key, keys.known))
        if isinstance(value, dict):
            _check_mapping(file, value, f"{key}.", keys)


def _check_hydras_keys(path: Path, tree: object) -> None:
    """Raise UserError unless a file changes only those parts of Hydra's own configuration that a user may change."""
    if not isinstance(tree, dict):
        raise UserError(f"{path} must give hydra its own keys, got {shown(tree)}")
    for name, value in tree.items():
        if f"hydra.{name}" in HYDRA_GROUPS and not isinstance(value, dict):
            raise UserError(
                f"{path} must give hydra.{name} its own keys, got {shown(value)}; "
                f"to choose an option, list it as defaults: [override /hydra/{name}: NAME]"
            )
        if f"hydra.{name}" not in HYDRA_GROUPS:
            allowed = ", ".join(HYDRA_GROUPS)
            raise UserError(
                f"{path} must change no part of Hydra but {allowed}, got hydra.{name}, "
                f"which gptmini sets"
            )


def _unknown(file: UsedFile, key: str, known: Iterable[str]) -> str:
    """The error message for a key that no configuration has."""
    prefix = file.prefix
    message = f"{file.path} has the key {key}, which no configuration here has"
    near = nearest(key, known)
    if near is not None:
        message += f"; the nearest is {near}"
    if near is not None and near.startswith(prefix):
        message += f", written as {_nested(near.removeprefix(prefix))}"

    group, _, rest = key.partition(".")
    is_part = group in PART_GROUPS and "." not in rest
    if is_part:
        message += f"; a part of your own needs a class, as in {_nested(f'{key}._target_')}"
    elif near is None:
        message += "; the command's --help lists them"
    return message


def _check_may_replace(path: Path, key: str, value: object) -> None:
    """Raise UserError unless a value may stand where gptmini has a mapping: only null does, for a part by its name."""
    group, _, part = key.partition(".")
    if value is None and group in PART_GROUPS and part:
        return

    if part or group not in groups_of_gptmini():
        raise UserError(f"{path} must give {key} its own keys, got {shown(value)}")
    if group == "experiment":
        raise UserError(f"{path} must name experiment {value} as defaults: [{value}]")
    option = value if isinstance(value, str) else "NAME"
    raise UserError(
        f"{path} must give {key} its own keys, got {shown(value)}; "
        f"to choose an option, list it as defaults: [override /{key}: {option}]"
    )


def _nested(key: str) -> str:
    """A dotted key as YAML on one line: optimizer.lr is optimizer: {lr: ...}."""
    first, *inner = key.split(".")
    if not inner:
        return f"{first}: ..."
    return f"{first}: {{{_nested('.'.join(inner))}}}"
