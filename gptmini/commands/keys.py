"""Keys of a command line, checked before a configuration is composed; callbacks and loggers of the user's own."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.commands.configuration import (
    CONFIGS,
    as_typed,
    composer,
    folders_of,
    items_of,
    parse_overrides,
    plain_tree,
    read_if_yaml,
    read_yaml,
    state_of_gptminis_files,
)
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

# Groups whose members are parts by name, to which a user adds parts of their own with +GROUP.NAME.
PART_GROUPS = ("callbacks", "logger")

# Groups whose options call nothing: recipes, and what gptmini sweep alone reads.
WITHOUT_CALLS = ("experiment", "launcher", "sweep")

# What keys begin with that lie in a mapping whose names are the user's: the sources of a mixture, what a sweep varies,
# and options of SLURM.
NAMED_BY_USER = ("data.sources.", "sweep.params.", "launcher.options.")

# The parts of Hydra's own configuration that a user may change; gptmini sets the others, such as Hydra's log files.
HYDRA_GROUPS = ("hydra.launcher", "hydra.sweeper", "hydra.sweep", "hydra.job", "hydra.verbose")


def check_overrides(
    command: str, overrides: Sequence[str], config_dir: str | None = None
) -> "Callable[[DictConfig], None]":
    """Check the keys of overrides before a configuration is composed of them.

    Every key must be defined by the groups that the overrides choose, or belong to a callback or logger that the user
    adds.

    Args:
        command: the name of the root configuration.
        overrides: what was typed.
        config_dir: a folder of the user's own that adds options to the groups.

    Returns the check of the composed configuration. It raises UserError for a key that is not defined, and for a value
    that must be given and is not.
    Raises UserError: a key that is not defined, or an override that may not change its key.
    """
    parsed = parse_overrides(overrides)
    chosen = choices_of_groups(parsed, folders_of(config_dir))
    choices = [as_typed(override) for override in chosen]

    if config_dir is None:
        known = _keys_of_gptmini(command, tuple(choices), state_of_gptminis_files())
    else:
        known = _keys_of_choices(command, choices, config_dir)

    own_parts = own_parts_of(parsed, config_dir)
    for override in parsed:
        if override.input_line not in choices:
            _check_key(override, known, own_parts)
    return partial(_check_composed, known=known, own_parts=own_parts)


def _keys_of_choices(
    command: str, choices: Sequence[str], config_dir: str | None
) -> frozenset[str]:
    """The keys that the chosen options of the groups define.

    Only choices are composed here, so that no other override can define the key that it sets.
    """
    with composer(config_dir) as compose:
        tree = plain_tree(compose(command, list(choices)))
    return frozenset(keys_of(tree))


@cache
def _keys_of_gptmini(
    command: str, choices: tuple[str, ...], state: tuple[tuple[str, int], ...]
) -> frozenset[str]:
    """The keys of gptmini's own options, kept for the jobs of a sweep until one of gptmini's files changes.

    state is that of the files, from state_of_gptminis_files.
    """
    return _keys_of_choices(command, choices, None)


def choices_of_groups(parsed: "list[Override]", folders: list[Path]) -> "list[Override]":
    """The overrides that choose an option of a group, as in optimizer=muon.

    Raises UserError: an override that neither sets a key nor chooses one option of a group.
    """
    choices = []
    for override in parsed:
        is_group = _is_group(override.key_or_group, folders)
        if is_group and override.is_delete():
            group = override.key_or_group
            option = "none leaves all out" if group in PART_GROUPS else "NAME chooses one"
            raise UserError(f"{group} must have an option; {group}={option}")
        if not override.key_or_group or (is_group and isinstance(override.value(), list)):
            raise UserError(f"{override.input_line} is no KEY=VALUE, and no GROUP=NAME")
        if is_group and not isinstance(override.value(), dict):
            choices.append(override)
    return choices


def _check_key(override: "Override", known: frozenset[str], own_parts: dict[str, Any]) -> None:
    """Raise UserError unless an override changes a value that is defined, or adds a part of the user's own."""
    key = override.key_or_group
    if is_hydras(key) or belongs(key, own_parts) or key.startswith(NAMED_BY_USER):
        return

    # A callback can be deleted; any other value is needed by the code that reads it.
    if override.is_delete() and not key.startswith("callbacks."):
        raise UserError(f"{key} must have a value; change it with {key}=VALUE")
    if key.endswith("_") or override.package is not None:
        raise UserError(
            f"{override.input_line} would change what a value is given to, which is fixed"
        )
    if key not in known:
        raise UserError(f"no configuration here has the key {key}{_hint(key, known)}")


def _check_composed(
    config: "DictConfig", *, known: frozenset[str], own_parts: dict[str, Any]
) -> None:
    """Raise UserError unless a composed configuration has only known keys, and every value that must be given."""
    from omegaconf import OmegaConf

    for key in keys_of(plain_tree(config)):
        is_users_own = belongs(key, own_parts) or key.startswith(NAMED_BY_USER)
        if key not in known and not is_users_own:
            raise UserError(f"no configuration here has the key {key}{_hint(key, known)}")

    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise UserError(f"{missing[0]} must be given, as in {missing[0]}=VALUE")


def own_parts_of(parsed: "list[Override]", config_dir: str | None) -> dict[str, Any]:
    """The callbacks and loggers of the user's own that a command line adds with +.

    Only a command line can add a part: nothing that a run folder names is taken for the user's own.

    Args:
        parsed: the overrides that were typed.
        config_dir: a folder of the user's own that adds options to the groups.

    Returns the configuration of each part by its key, as callbacks.mine; None for a part that is turned off.
    Raises UserError: a part without a class.
    """
    from omegaconf import OmegaConf

    ours = set()
    for group in PART_GROUPS:
        ours.update(f"{group}.{name}" for name in names_of_parts(group, config_dir))

    # Several overrides may describe one part, so all of them are merged before any part is checked.
    tree = OmegaConf.create({group: {} for group in PART_GROUPS})
    last_lines = {}
    for override in parsed:
        group, _, rest = override.key_or_group.partition(".")
        name = rest.partition(".")[0]
        part = f"{group}.{name}"
        is_part = group in PART_GROUPS and name != "" and part not in ours
        if is_part and (override.is_add() or override.is_force_add()):
            last_lines[part] = override.input_line
            OmegaConf.update(tree, override.key_or_group, override.value(), force_add=True)

    parts = {}
    for part, line in last_lines.items():
        value = OmegaConf.select(tree, part)
        has_class = OmegaConf.is_dict(value) and type(value.get("_target_")) is str
        if value is not None and not has_class:
            raise UserError(
                f"{line} belongs to no part that gptmini has{_hint(part, ours)}; "
                f"a part of your own needs a class, "
                f"as in +{part}._target_=lightning.pytorch.callbacks.EarlyStopping"
            )
        parts[part] = value
    return parts


def belongs(key: str, parts: Iterable[str]) -> bool:
    """Whether a key is one of the parts, or lies in one of them."""
    return any(key == part or key.startswith(f"{part}.") for part in parts)


def names_of_parts(group: str, config_dir: str | None) -> set[str]:
    """The names of all parts that the files of a group define, or the files of an experiment for that group."""
    names = set(_names_of_gptminis_parts(group, state_of_gptminis_files()))
    if config_dir is not None:
        names.update(_names_in_folder(Path(config_dir), group))
    return names


def _names_in_folder(folder: Path, group: str) -> Iterator[str]:
    """The names of the parts that the configuration files in a folder define."""
    for file in folder.glob(f"{group}/*.yaml"):
        yield from read_if_yaml(file).keys() - {"defaults"}
    for file in folder.glob("experiment/*.yaml"):
        yield from parts_of(read_if_yaml(file), group)


@cache
def _names_of_gptminis_parts(group: str, state: tuple[tuple[str, int], ...]) -> frozenset[str]:
    """The names of the parts that gptmini's own files define, kept until one of the files changes.

    state is that of the files, from state_of_gptminis_files.
    """
    return frozenset(_names_in_folder(CONFIGS, group))


def parts_of(tree: dict, group: str) -> dict[str, Any]:
    """The parts of a group in a configuration, by name; none where the group is missing or no mapping."""
    parts = tree.get(group)
    return parts if isinstance(parts, dict) else {}


def _is_group(key: str, folders: list[Path]) -> bool:
    """Whether a key names a group of options, which may be one of Hydra's own, as hydra/launcher."""
    if key.startswith("hydra/"):
        return True
    return key != "" and any((folder / key).is_dir() for folder in folders)


def is_hydras(key: str) -> bool:
    """Whether a key is in Hydra's own configuration and may be changed."""
    return key.startswith("hydra/") or belongs(key, HYDRA_GROUPS)


def keys_of(tree: dict) -> list[str]:
    """Dotted names of a configuration's nodes, except the items of lists, whose number is free."""
    return [key for key, _ in items_of(tree) if not key.rpartition(".")[2].isdigit()]


def nearest(key: str, known: Iterable[str]) -> str | None:
    """The known key that a mistaken key resembles; None if no key does."""
    # Names that end in an underscore are Hydra's, as _target_ and _partial_, and nobody may set them.
    settable = sorted(name for name in known if not name.endswith("_"))
    close = difflib.get_close_matches(key, settable, n=1)
    if close:
        return close[0]

    # The last name of a key is often right where its group was forgotten, as in max_steps for trainer.max_steps.
    by_last_name = {name.rpartition(".")[2]: name for name in settable}
    close = difflib.get_close_matches(key.rpartition(".")[2], by_last_name, n=1)
    return by_last_name[close[0]] if close else None


def _hint(key: str, known: Iterable[str]) -> str:
    """The end of an error message: options that have a mistaken key, the known key that it resembles, or --help."""
    group, _, name = key.partition(".")
    files = sorted((CONFIGS / group).glob("*.yaml")) if group.isidentifier() else []
    options = [f"{group}={file.stem}" for file in files if name in read_yaml(file)]
    if options and group not in PART_GROUPS:
        verb = "has" if len(options) == 1 else "have"
        return f"; {' and '.join(options)} {verb} it"

    near = nearest(key, known)
    return "; the command's --help lists them" if near is None else f"; the nearest is {near}"
