"""Configurations: composed by Hydra, checked key by key before anything starts."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.checks import UserError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

PACKAGE = Path(__file__).resolve().parent.parent
CONFIGS = next(folder for folder in (PACKAGE / "configs", PACKAGE.parent / "configs") if folder.is_dir())
PART_GROUPS = ("callbacks", "logger")  # groups of parts by name, to which users add their own
HYDRA_GROUPS = ("hydra.launcher", "hydra.sweeper", "hydra.sweep", "hydra.job", "hydra.verbose")


def sweep_described(command: str, overrides: Sequence[str], config_dir: str | None = None) -> list[str]:
    """The sweep that the chosen configurations themselves describe, KEY=VALUES each, in hydra.sweeper.params."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(list(overrides))
    fixed = [override.input_line for override in parsed if not override.is_sweep_override()]
    with composer(config_dir) as compose:
        sweeper = compose(command, fixed, return_hydra_config=True).hydra.sweeper
        return [f"{key}={values}" for key, values in (sweeper.get("params") or {}).items()]


def check_overrides(
    command: str, overrides: Sequence[str], config_dir: str | None = None
) -> "Callable[[DictConfig], None]":
    """Check the keys of overrides before anything is composed of them; returns the check of what is composed.

    Each key must be one that the chosen groups define, or belong to a part of the user's own.
    Raises UserError: another key, as does the check that is returned, or one for a value that must be given and is not.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    parsed = OverridesParser.create().parse_overrides(list(overrides))
    folders = folders_of(config_dir)
    for override in parsed:
        is_group = _is_group(override.key_or_group, folders)
        if not override.key_or_group or (is_group and isinstance(override.value(), list)):
            raise UserError(f"{override.input_line} is no KEY=VALUE, and no GROUP=NAME")
    groups = [
        override.input_line
        for override in parsed
        if _is_group(override.key_or_group, folders) and not isinstance(override.value(), dict)
    ]

    with composer(config_dir) as compose:
        known = set(_keys(OmegaConf.to_container(compose(command, groups))))
    own_parts = own_parts_of(parsed, config_dir)
    for override in parsed:
        if override.input_line not in groups:
            _check_key(override, known, own_parts)

    def check_composed(config: "DictConfig") -> None:
        keys = _keys(OmegaConf.to_container(config))
        surplus = [key for key in keys if key not in known and not belongs(key, own_parts)]
        if surplus:
            raise UserError(f"no configuration here has the key {surplus[0]}{_nearest(surplus[0], known)}")
        missing = sorted(OmegaConf.missing_keys(config))
        if missing:
            raise UserError(f"{missing[0]} must be given, as in {missing[0]}=VALUE")

    return check_composed


def _check_key(override: "Override", known: set[str], own_parts: dict[str, Any]) -> None:
    """Raise UserError unless an override changes a value that is there, or adds a part of the user's own."""
    key = override.key_or_group
    if is_hydras(key) or belongs(key, own_parts):
        return
    if override.is_delete() and "." in key and not key.startswith("callbacks."):
        raise UserError(f"{key} must have a value; change it with {key}=VALUE")
    if key.endswith("_") or override.package is not None:
        raise UserError(f"{override.input_line} would change what a value is given to, which is fixed")
    if key not in known:
        raise UserError(f"no configuration here has the key {key}{_nearest(key, known)}")


def own_parts_of(parsed: "list[Override]", config_dir: str | None) -> dict[str, Any]:
    """Callbacks and loggers of a user's own that a command line adds with +, by key; null for one that it turns off.

    Only what was typed makes such a part, whatever a run folder says of it.
    Raises UserError: one without a class to make it of.
    """
    from omegaconf import OmegaConf

    ours = {f"{group}.{name}" for group in PART_GROUPS for name in names_of_parts(group, config_dir)}
    typed = OmegaConf.create({group: {} for group in PART_GROUPS})
    added = {}
    for override in parsed:
        group, _, rest = override.key_or_group.partition(".")
        name = rest.partition(".")[0]
        part = f"{group}.{name}"
        is_added = override.is_add() or override.is_force_add()
        if is_added and group in PART_GROUPS and name and part not in ours:
            added[part] = override.input_line
            OmegaConf.update(typed, override.key_or_group, override.value(), force_add=True)

    parts = {}
    for part, line in added.items():
        value = OmegaConf.select(typed, part)
        if value is not None and not (OmegaConf.is_dict(value) and type(value.get("_target_")) is str):
            raise UserError(
                f"{line} belongs to no part that gptmini has{_nearest(part, ours)}; "
                f"a part of your own needs a class, as in +{part}._target_=lightning.pytorch.callbacks.EarlyStopping"
            )
        parts[part] = value
    return parts


def belongs(key: str, parts: Iterable[str]) -> bool:
    """Whether a key is one of the parts, or lies in one."""
    return any(key == part or key.startswith(f"{part}.") for part in parts)


def names_of_parts(group: str, config_dir: str | None) -> set[str]:
    """Names of the parts that the files of a group, or of an experiment, define."""
    names = set()
    for folder in folders_of(config_dir):
        for file in folder.glob(f"{group}/*.yaml"):
            names |= {name for name in read_yaml(file) if name != "defaults"}
        for file in folder.glob("experiment/*.yaml"):
            names |= {name for name, _ in parts_of(read_yaml(file), group)}
    return names


def parts_of(tree: dict, group: str) -> list[tuple[str, Any]]:
    """Name and value of each part of a group in a configuration."""
    parts = tree.get(group)
    return list(parts.items()) if isinstance(parts, dict) else []


@contextmanager
def composer(config_dir: str | None) -> Iterator[Callable[..., "DictConfig"]]:
    """Compose as Hydra would on the command line, whatever Hydra is doing in this process already."""
    import yaml
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    extra = [] if config_dir is None else [f"hydra.searchpath=[{quoted(f'file://{Path(config_dir).resolve()}')}]"]
    running = GlobalHydra.instance().hydra

    def told(name: str, overrides: list[str], **options: bool) -> "DictConfig":
        try:
            return compose(name, [*overrides, *extra], **options)
        except (
            ValueError,
            TypeError,
            AssertionError,
            yaml.YAMLError,
        ) as error:  # as Hydra raises of odd files and values
            raise UserError(f"the configuration cannot be composed: {error}") from error

    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            yield told
    finally:
        GlobalHydra.instance().hydra = running


def quoted(text: str) -> str:
    """Text as a value of Hydra's override grammar, whatever its characters."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def folders_of(config_dir: str | None) -> list[Path]:
    """Where configurations lie: those of gptmini, and a folder of the user's own."""
    return [CONFIGS] if config_dir is None else [CONFIGS, Path(config_dir)]


def _is_group(key: str, folders: list[Path]) -> bool:
    """Whether a key names a group of options, one of Hydra's own included, as hydra/launcher."""
    return key.startswith("hydra/") or any((folder / key).is_dir() for folder in folders if key)


def is_hydras(key: str) -> bool:
    """Whether a key is one of Hydra's that may be changed; where it runs and what it writes is ours to say."""
    return key.startswith("hydra/") or belongs(key, HYDRA_GROUPS)


def read_yaml(file: Path) -> dict:
    """What a configuration file holds; nothing for one that is empty or holds something else than keys."""
    import yaml

    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file} must be YAML: {error}") from None
    return tree if isinstance(tree, dict) else {}


def items_of(tree: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Dotted name and value of every node of a configuration."""
    if isinstance(tree, dict):
        entries = tree.items()
    elif isinstance(tree, list):
        entries = enumerate(tree)
    else:
        return
    for name, value in entries:
        yield f"{prefix}{name}", value
        yield from items_of(value, f"{prefix}{name}.")


def _keys(tree: dict) -> list[str]:
    """Names of a configuration's nodes; a list may be of any length."""
    return [key for key, _ in items_of(tree) if not key.rpartition(".")[2].isdigit()]


def _nearest(key: str, known: Iterable[str]) -> str:
    """The known key that a mistaken one was probably meant to be, as the end of a sentence."""
    settable = sorted(name for name in known if not name.endswith("_"))  # not Hydra's own _target_ and _partial_
    by_last_name = {name.rpartition(".")[2]: name for name in settable}
    close = difflib.get_close_matches(key, settable, n=1)
    if not close:
        close = [by_last_name[name] for name in difflib.get_close_matches(key.rpartition(".")[2], by_last_name, n=1)]
    return f"; the nearest is {close[0]}" if close else "; --help lists them"
